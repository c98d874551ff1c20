"""Check a model folder before transformers reads it: one sentence names the file that is wrong, and nothing is built."""

import re
from collections.abc import Iterator
from math import isnan
from pathlib import Path, PurePosixPath
from typing import Any

from isotherm.checkup.loading.formats import REFUSED, read_object, refuse_format
from isotherm.errors import InputError
from isotherm.language import Text

LARGEST_NUMBER = 10**15
"""No size, length or frequency in a configuration is larger."""
MOST = 100_000
"""The most experts, heads, repeats … of one kind. A loop makes or runs each of them, so a huge number would never end."""
MOST_LAYERS = 2_000
"""The deepest Transformer published has 1,000 layers (DeepNet, arXiv:2203.00555)."""
MOST_PARTS = 10**6
"""The most layers times experts."""
WIDEST = 2**18
"""The widest layer published has 81,920 numbers (MT-NLG's feed-forward layers, arXiv:2201.11990)."""
COUNTED = re.compile(
    r"(^|_)(num|n)_|layers?$|depths?$|blocks$|stages$|experts|groups?|heads$|quantizers|codebooks|cycles|repeats|iter|_num$|number"
)
"""Keys that give a number of parts."""
WIDTHS = re.compile(
    r"^(d_[a-z_]+|n_embd|n_inner|ffn_dim)$|(hidden|intermediate|embedding|embed|head|ffn|inner|model|state)_(size|dims?|width)$"
)
"""Keys that give a number of rows or columns of a weight."""
LENGTHS = re.compile(r"position|ctx|emb|token|param|vocab|samples|length|seq")
"""Keys that begin like a number of parts and are a length or a size."""


def check_folder(folder: Path, *, from_config: bool) -> None:
    """Refuse a folder whose configuration, index or weights cannot be what they should."""
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(folder, Text("no config.json in this folder", "该文件夹中没有 config.json"))
    check_sizes(read_object(config), config)
    inside = sorted(folder.iterdir())
    for path in inside:
        if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe or a device may never end
            raise InputError(path, Text("not a regular file", "不是普通文件"))
    if from_config:
        return
    weights = [path for path in inside if _holds_weights(path)]
    if not weights:
        if any(path.suffix.lower() in endings for path in inside for endings in REFUSED):
            raise refuse_format(folder, [path.name for path in inside])
        hint = Text(
            "no weights in this folder; --from-config checks it untrained",
            "该文件夹中没有权重；--from-config 可检查未训练的模型",
        )
        raise InputError(folder, hint)
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / name).exists():
            _check_index(folder / name)
    for path in weights:
        if path.suffix == ".safetensors":
            check_safetensors(path)


def stored_bytes(folder: Path) -> int:
    """The size of all weights in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if _holds_weights(path))


def _holds_weights(path: Path) -> bool:
    named = path.suffix == ".safetensors" or (path.name.startswith("pytorch_model") and path.suffix == ".bin")
    return named and path.is_file()


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Nearest key and value of everything that is no container. The keys of `label2id` are a dataset's words."""
    stack: list[tuple[str, Any]] = [("", config)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            stack += [(key if key == "label2id" else str(name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            stack += [(key, inner) for inner in value]
        else:
            yield key, value


def check_sizes(config: dict[str, Any], where: object) -> None:
    """Refuse a configuration with a number that no model has."""
    layers, experts = ("layers", 1), ("experts", 1)
    for key, value in _numbers(config):
        if isinstance(value, float) and isnan(value):
            raise InputError(where, Text("{key} is NaN", "{key} 是 NaN").format(key=key[:80]))
        if type(value) is not int:
            continue
        most = _most(key)
        if abs(value) > most:
            raise InputError(where, _too_many(key, value, most))
        layers = (key, value) if most == MOST_LAYERS and value > layers[1] else layers
        experts = (key, value) if "experts" in key and value > experts[1] else experts
    if layers[1] * experts[1] > MOST_PARTS:
        raise InputError(where, _too_many(f"{layers[0]} × {experts[0]}", layers[1] * experts[1], MOST_PARTS))


def _too_many(key: str, value: int, most: int) -> Text:
    shown = str(value) if abs(value) < 10**20 else f"{value:.0e}" if abs(value) < 10**300 else "10^300 …"
    why = Text("{key} = {value}; more than {most} is refused", "{key} = {value}；超过 {most} 不予接受")
    return why.format(key=key[:80], value=shown, most=most)


def _most(key: str) -> int:
    if WIDTHS.search(key):
        return WIDEST
    if not COUNTED.search(key) or LENGTHS.search(key):
        return LARGEST_NUMBER
    return MOST_LAYERS if re.search(r"layer|depth|block|stage", key) else MOST


def _check_index(index: Path) -> None:
    """Refuse an index that names anything but files of its own folder."""
    where = read_object(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise InputError(index, Text("no weight_map", "没有 weight_map"))
    for shard in dict.fromkeys(value if isinstance(value, str) else repr(value) for value in where.values()):
        path = PurePosixPath(shard)
        if path.is_absolute() or ".." in path.parts or "\\" in shard:
            raise InputError(
                index,
                Text("points outside its folder ({shard})", "指向文件夹之外（{shard}）").format(shard=shard[:120]),
            )
        if not _is_file(index.parent, shard):
            absent = Text("{shard!r} is not the name of a file in this folder", "{shard!r} 不是该文件夹中的文件名")
            raise InputError(index, absent.format(shard=shard[:120]))


def _is_file(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except ValueError:  # a NUL in the name
        return False


def check_safetensors(path: Path) -> None:
    """Check header and length before anything is loaded, so that the error can name the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise InputError(
            path, Text("corrupt or truncated ({why})", "损坏或不完整（{why}）").format(why=error)
        ) from None
