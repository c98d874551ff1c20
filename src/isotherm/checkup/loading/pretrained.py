"""Build a model of transformers from a folder, after its size was checked."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotherm.checkup.folder import stored_bytes
from isotherm.checkup.loading.chatter import quiet
from isotherm.checkup.loading.device import memory
from isotherm.checkup.loading.loaded import EXTRA, NEEDED, Loaded, Loading, Progress, needed
from isotherm.checkup.weights import Weights
from isotherm.errors import InputError
from isotherm.language import Text

MOST_UNTRAINED = 10**10
"""The most parameters of a model that is built from its configuration alone: filling them with random numbers takes minutes."""
FEW = 10**8
"""So many parameters are made within seconds, whether or not there are weights for them."""


def open_pretrained(
    folder: Path, name: str, origin: str, loading: Loading, told: Progress, *, architecture: str | None = None
) -> Loaded:
    """Load the model in a folder. `architecture` is a class of transformers to use instead of the one that its configuration
    names."""
    try:
        import transformers
    except ImportError:
        raise InputError(name, NEEDED.format(package="transformers", how=EXTRA.format(extra="hf"))) from None
    common = {"trust_remote_code": loading.trust_remote_code, "local_files_only": not loading.trust_remote_code}
    with quiet(told):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **common)
            kind = _architecture(transformers, config, architecture)
            check_size(lambda: _untrained(kind, copy.deepcopy(config)), config, name, folder, loading)
            model, weights = _build(kind, folder, config, loading, common)
            if loading.device_map is None:
                model = model.to(loading.device)
        except InputError:
            raise
        except Exception as error:
            raise explained(name, error) from error
    return Loaded(model.eval(), name, origin, str(folder), weights=weights)


def _architecture(transformers: Any, config: Any, wanted: str | None) -> Any:
    """The class asked for, else the one that the configuration names, else AutoModel."""
    if wanted is not None:
        return getattr(transformers, wanted)
    names = getattr(config, "architectures", None) or []
    found = (getattr(transformers, name, None) for name in names)
    return next(
        (kind for kind in found if isinstance(kind, type) and issubclass(kind, nn.Module)), transformers.AutoModel
    )


def _untrained(kind: Any, config: Any) -> nn.Module:
    return kind._from_config(config) if issubclass(kind, nn.Module) else kind.from_config(config)


def _build(
    kind: Any, folder: Path, config: Any, loading: Loading, common: dict[str, Any]
) -> tuple[nn.Module, Weights | None]:
    dtype = precision(loading)
    if loading.from_config:
        model = _untrained(kind, config)
        return model if dtype is None else model.to(dtype), None
    # A tensor of another shape is left out, as a missing one is; both are findings.
    settings: dict[str, Any] = {"ignore_mismatched_sizes": True, "output_loading_info": True}
    settings |= {_dtype_word(): "auto" if dtype is None else dtype, **spread(loading)}
    made = kind.from_pretrained(folder, config=config, **settings, **common)
    model, info = made if isinstance(made, tuple) else (made, {})  # a class of one's own may return the model alone
    return model, Weights.of(info)


def _dtype_word() -> str:
    """What `from_pretrained` calls the precision: another word before transformers 4.56."""
    import transformers

    major, minor = map(int, transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def precision(loading: Loading) -> torch.dtype | None:
    """The precision asked for; None for the checkpoint's own."""
    found: torch.dtype | None = None if loading.dtype == "auto" else getattr(torch, loading.dtype)
    return found


def spread(loading: Loading) -> dict[str, Any]:
    """The argument that spreads a model over all devices, if that was asked for."""
    if loading.device_map is None:
        return {}
    needed("accelerate", "--device-map")
    return {"device_map": loading.device_map}


def check_size(build: Callable[[], nn.Module], config: Any, name: str, folder: Path, loading: Loading) -> None:
    """Refuse a model that is larger than the memory it is to be in, or than anything there are weights for in the folder.

    Its size is counted without allocating it: `build` makes it untrained.
    """
    try:
        with torch.device("meta"):
            model = build()
    except Exception:
        return  # building it in earnest will say what is wrong
    parameters = sum(tensor.numel() for tensor in model.parameters())
    numbers = parameters + sum(tensor.numel() for tensor in model.buffers())
    _check_memory(name, numbers, _width(config, loading), loading)
    if loading.from_config and parameters > MOST_UNTRAINED:
        why = Text(
            "config.json asks for {n:.3g} parameters; --from-config builds {most:.0g} at most",
            "config.json 要求 {n:.3g} 个参数；--from-config 最多新建 {most:.0g} 个",
        )
        raise InputError(name, why.format(n=parameters, most=MOST_UNTRAINED))
    if loading.from_config:
        return
    stored = stored_bytes(folder)
    if parameters > max(FEW, 8 * stored):  # no format stores a weight in less than a bit
        why = Text(
            "config.json asks for {n:.3g} parameters, and the weights in this folder have only {stored:.3g} bytes",
            "config.json 要求 {n:.3g} 个参数，而该文件夹中的权重只有 {stored:.3g} 字节",
        )
        raise InputError(name, why.format(n=parameters, stored=stored))


def _width(config: Any, loading: Loading) -> float:
    """Bytes of a weight: of the precision asked for, else of the checkpoint's. Quantised weights stay as they are."""
    if getattr(config, "quantization_config", None):
        return 0.5
    dtype = precision(loading) or getattr(config, "dtype", None)
    return float(getattr(dtype, "itemsize", 2))


def _check_memory(name: str, numbers: int, width: float, loading: Loading) -> None:
    there, where = memory(loading.device, spread=loading.device_map is not None)
    if numbers * width <= there:
        return
    why = Text(
        "config.json asks for {n:.3g} numbers, {needed:.3g} GiB; {where} has {there:.3g} GiB",
        "config.json 要求 {n:.3g} 个数，即 {needed:.3g} GiB；{where}只有 {there:.3g} GiB",
    ).format(n=numbers, needed=numbers * width / 2**30, there=there / 2**30, where=where)
    if loading.device_map is None and numbers * width <= memory("cpu", spread=True)[0]:
        hint = Text(
            "{why}; --device-map auto spreads it over all devices", "{why}；--device-map auto 可将其分布到所有设备"
        )
        why = hint.format(why=why)
    raise InputError(name, why)


def explained(name: str, error: Exception) -> InputError:
    """Turn an error of transformers, peft or diffusers into one line."""
    said = " ".join(str(error).split())
    if "trust_remote_code" in said:
        why = Text(
            "needs code of its own, which is not run unless you say --trust-remote-code",
            "需要运行它自带的代码；除非指定 --trust-remote-code，否则不会运行",
        )
    elif "model type" in said or "model_type" in said or isinstance(error, KeyError):
        why = Text("a configuration of unknown type ({said})", "未知类型的配置（{said}）").format(said=said[:160])
    else:
        why = Text("cannot be loaded ({said})", "无法加载（{said}）").format(
            said=f"{type(error).__name__}: {said[:200]}"
        )
    return InputError(name, why)
