"""Build one model of a diffusers pipeline: a UNet, a transformer or an autoencoder."""

from pathlib import Path
from typing import Any

from torch import nn

from isotherm.checkup.loading.chatter import quiet
from isotherm.checkup.loading.formats import read_object
from isotherm.checkup.loading.loaded import Loaded, Loading, Progress, needed
from isotherm.checkup.loading.pretrained import check_size, explained, precision, spread
from isotherm.checkup.weights import Weights
from isotherm.errors import InputError
from isotherm.language import Text


def open_component(folder: Path, name: str, origin: str, loading: Loading, told: Progress) -> Loaded:
    """Load the model in a folder, of the class of diffusers that its configuration names."""
    diffusers = needed("diffusers", name)
    config = read_object(folder / "config.json")
    kind = getattr(diffusers, str(config["_class_name"]), None)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        unknown = Text("diffusers has no model {kind}", "diffusers 中没有模型 {kind}")
        raise InputError(folder / "config.json", unknown.format(kind=repr(config["_class_name"])[:80]))
    with quiet(told):
        try:
            check_size(lambda: _untrained(kind, config), None, name, folder, loading)
            model, weights = _build(kind, folder, config, loading)
            if loading.device_map is None:
                model = model.to(loading.device)
        except InputError:
            raise
        except Exception as error:
            raise explained(name, error) from error
    return Loaded(model.eval(), name, origin, str(folder), weights=weights)


def _untrained(kind: Any, config: dict[str, Any]) -> nn.Module:
    return kind.from_config(dict(config))


def _build(kind: Any, folder: Path, config: dict[str, Any], loading: Loading) -> tuple[nn.Module, Weights | None]:
    dtype = precision(loading)
    if loading.from_config:
        model = _untrained(kind, config)
        return model if dtype is None else model.to(dtype), None
    settings = {"torch_dtype": dtype, "local_files_only": True, "output_loading_info": True, **spread(loading)}
    model, info = kind.from_pretrained(folder, **settings)
    return model, Weights.of(info)
