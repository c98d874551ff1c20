"""What a folder or a file holds, and what to do with formats that are not read."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record.files import parse_json, read_bytes

LARGEST_JSON = 2**24
MARKERS = ("config.json", "adapter_config.json", "modules.json", "model_index.json")
"""Files of which a model has at least one."""
Kind = Literal["model", "adapter", "sentence", "pipeline", "component"]
"""A transformers model, a PEFT adapter, a sentence-transformers model, a diffusers pipeline, or one model of a pipeline."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
REFUSED = {
    (".gguf",): Text(
        "GGUF holds weights for llama.cpp; check the model that it was converted from, or convert it back:"
        " AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE).save_pretrained(NEW)",
        "GGUF 是供 llama.cpp 使用的权重；请检查转换前的模型，或将其转回："
        "AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE).save_pretrained(NEW)",
    ),
    (".onnx",): Text(
        "ONNX holds a graph without PyTorch modules; check the model that it was exported from",
        "ONNX 是不含 PyTorch 模块的计算图；请检查导出前的模型",
    ),
    (".pt2",): Text(
        "an exported program has no modules to look into; check the model that it was exported from",
        "导出的程序没有可供观察的模块；请检查导出前的模型",
    ),
    PICKLES: Text(
        "a pickle alone does not say what model it belongs to; check the folder with its config.json, or"
        " package.module:function that builds the model and loads it",
        "单独的 pickle 文件不说明它属于什么模型；请检查带 config.json 的文件夹，或用 package.module:function 构建并加载模型",
    ),
    (".h5", ".keras", ".msgpack", ".tflite", ".mlmodel", ".mlpackage", ".npz"): Text(
        "weights of another framework; convert them to PyTorch first", "其他框架的权重；请先转换为 PyTorch 格式"
    ),
}
"""What to do about files without a configuration, by their endings. Of several, the first that a folder has is named."""
NO_CONFIG = Text(
    "needs the model's config.json beside it, which says what model the weights belong to",
    "旁边需要有模型的 config.json，以说明权重属于什么模型",
)
CODE = Text(
    "Python code is checked as package.module:function, a function that returns the model",
    "Python 代码请写成 package.module:function，即返回模型的函数",
)
NO_MODEL = Text(
    "not a model: expected a folder, a .safetensors file or a JSON report",
    "不是模型：应为文件夹、.safetensors 文件或 JSON 报告",
)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size and depth. Somebody else wrote it: a key may stand twice, as transformers allows."""
    found = parse_json(path, read_bytes(path, LARGEST_JSON), unique=False)
    if not isinstance(found, dict):
        raise InputError(path, Text("not an object", "不是对象"))
    return found


def path_of(text: str) -> Path:
    """A path as typed, with ~ as in a shell."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~x, and nobody is called x
        return Path(text)


def kind_of(folder: Path) -> Kind:
    """What a folder holds. One that holds nothing of ours is refused with a sentence that says what to do."""
    if (folder / "adapter_config.json").is_file():
        return "adapter"
    if (folder / "model_index.json").is_file():
        return "pipeline"
    if (folder / "modules.json").is_file():
        return "sentence"
    if not (folder / "config.json").is_file():
        raise refuse_format(folder, [path.name for path in folder.iterdir()])
    return "component" if "_class_name" in read_object(folder / "config.json") else "model"


def refuse_format(what: object, names: Iterable[str]) -> InputError:
    """The error for files without a config.json: one sentence for each format."""
    endings = {PurePosixPath(name).suffix.lower() for name in names}
    known = (why for ours, why in REFUSED.items() if endings.intersection(ours))
    return InputError(what, next(known, Text("no config.json in this folder", "该文件夹中没有 config.json")))


def refuse_file(path: Path) -> InputError:
    """The error for a file that is no model."""
    ending = path.suffix.lower()
    known = (why for endings, why in REFUSED.items() if ending in endings)
    return InputError(path, CODE if ending == ".py" else next(known, NO_MODEL))


def transformer_part(folder: Path) -> str:
    """The folder of the transformer inside a sentence-transformers model, relative to it; "" if that is the folder itself."""
    path = folder / "modules.json"
    modules = parse_json(path, read_bytes(path, 2**20), unique=False)
    listed = [module for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    for module in sorted(listed, key=lambda module: not str(module.get("type", "")).endswith("Transformer")):
        inner = module.get("path")
        if isinstance(inner, str) and _is_inside(inner):
            return inner.strip("/")
    raise InputError(path, Text("names no module with a folder of its own", "没有列出任何带文件夹的模块"))


def _is_inside(inner: str) -> bool:
    path = PurePosixPath(inner)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in inner and "\0" not in inner


def refuse_pipeline(folder: Path, what: object) -> InputError:
    """The error for a diffusers pipeline: it has several models, and one is checked at a time."""
    index = read_object(folder / "model_index.json")
    parts = [name for name, value in index.items() if _attends(value)]
    if not parts:
        return InputError(
            what, Text("a diffusers pipeline in which nothing attends", "diffusers 流水线，其中没有注意力")
        )
    part = next((name for name in parts if name.startswith("text_encoder")), parts[0])
    if (folder / part).is_dir() or Path(str(what)).is_dir():
        why = Text(
            "a diffusers pipeline; check a part that attends ({parts}): isotherm check {example}",
            "diffusers 流水线；请检查其中含注意力的部件（{parts}）：isotherm check {example}",
        )
    else:
        why = Text(
            "a diffusers pipeline; fetch it with: hf download {what} --local-dir DIR, and check a part that attends"
            " ({parts}): isotherm check DIR/{part}",
            "diffusers 流水线；请先用 hf download {what} --local-dir DIR 下载，再检查其中含注意力的部件（{parts}）："
            "isotherm check DIR/{part}",
        )
    return InputError(what, why.format(what=what, parts=", ".join(parts), part=part, example=folder / part))


def _attends(value: Any) -> bool:
    """Whether [library, class] names a model with attention, and not a scheduler, tokenizer or image processor."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(word, str) for word in value):
        return False
    words = (
        "Model",
        "Transformer",
        "UNet",
        "Encoder",
        "Autoencoder",
        "Prior",
        "Controlnet",
        "ForCausalLM",
        "WithProjection",
    )
    others = ("Scheduler", "Tokenizer", "Processor", "Extractor")
    return any(word in value[1] for word in words) and not any(word in value[1] for word in others)
