"""Fetch a model by its name on the hub: the files that a check-up needs, in the revision asked for."""

import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn

from isotherm.checkup.loading.chatter import bar_class, quiet
from isotherm.checkup.loading.formats import MARKERS, refuse_format, transformer_part
from isotherm.checkup.loading.loaded import EXTRA, NEEDED, Progress
from isotherm.errors import InputError
from isotherm.language import Text

NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([A-Za-z0-9][\w./-]*))?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
SHORT_COMMIT = re.compile(r"[0-9a-f]{6,39}")
FILES = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".txt", ".toml", ".py", ".zip")
"""Endings of files, which no model of a hub is named by. Other names may have a dot: Llama-3.2-1B."""
SMALL = (".json", ".txt", ".model", ".tiktoken", ".jinja")
"""Endings of configurations and tokenizers."""
WEIGHTS = (
    "adapter_model.safetensors",
    "adapter_model.bin",
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of weights. Of those a model has, the first is taken, as transformers does."""
DOWNLOADING = Text("downloading {file} ({size:.0f} MB)", "下载 {file}（{size:.0f} MB）")


@dataclass(frozen=True)
class HubName:
    """A model of the hub. The revision is a branch, a tag or a commit; None is the main branch."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_name(text: str) -> HubName | None:
    """Read `name`, `owner/name` or one of these with `@revision`; None if it can only be a path."""
    match = NAME.fullmatch(text)
    if match is None or PurePosixPath(match[1]).suffix.lower() in FILES:
        return None
    return HubName(match[1], match[2])


def fetch(wanted: HubName, told: Progress, *, weights: bool, code: bool) -> Path:
    """Download what is not in the local cache, or take what is there when the hub cannot be reached. The folder's name is the
    commit.

    `weights`, `code`: also fetch the model's weights, and its own Python files.
    """
    try:
        import huggingface_hub
        import transformers  # noqa: F401
    except ImportError:
        raise InputError(wanted, NEEDED.format(package="transformers", how=EXTRA.format(extra="hf"))) from None
    with quiet():
        try:
            found = huggingface_hub.HfApi().model_info(wanted.name, revision=wanted.revision, files_metadata=True)
        except Exception as error:
            cached = _cached(wanted)
            if cached is None:
                raise _explained(wanted, error) from error
            return cached
        try:
            return _download(wanted, found, told, weights=weights, code=code)
        except InputError:
            raise
        except Exception as error:
            raise _explained(wanted, error) from error


def _download(wanted: HubName, found: Any, told: Progress, *, weights: bool, code: bool) -> Path:
    sizes = {file.rfilename: int(file.size or 0) for file in found.siblings}
    if not any(marker in sizes for marker in MARKERS):
        raise refuse_format(wanted, sizes)
    small = small_files(sizes, "", code=code)
    folder = _files(wanted, found.sha, small, sizes, told)
    inner = ""
    if (folder / "modules.json").is_file():
        inner = transformer_part(folder)
        _files(wanted, found.sha, small_files(sizes, inner, code=code), sizes, told)
    if weights and "model_index.json" not in sizes:
        _files(wanted, found.sha, weight_files(sizes, folder, inner), sizes, told)
    return folder


def small_files(files: dict[str, int], inner: str, *, code: bool) -> list[str]:
    """Configurations and tokenizers directly in the folder `inner`, and its Python files if its code may run."""
    endings = (*SMALL, ".py") if code else SMALL
    return [name for name in _directly_in(files, inner) if name.lower().endswith(endings)]


def weight_files(files: dict[str, int], folder: Path, inner: str) -> list[str]:
    """The weights in the folder `inner`. An index, which is on disk already, names its shards."""
    there = set(_directly_in(files, inner))
    names = [name for name in (_joined(inner, name) for name in WEIGHTS) if name in there]
    if not names:
        return []
    if not names[0].endswith(".index.json"):
        return names[:1]
    try:
        index = json.loads((folder / names[0]).read_text(encoding="utf-8"))
        shards = {_joined(inner, str(shard)) for shard in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # the folder is checked before it is loaded, and that says what is wrong with the index
    return sorted(shards & set(files))


def _directly_in(files: dict[str, int], inner: str) -> list[str]:
    return [name for name in files if str(PurePosixPath(name).parent) == (inner or ".")]


def _joined(inner: str, name: str) -> str:
    return f"{inner}/{name}" if inner else name


def _files(wanted: HubName, commit: str, names: list[str], sizes: dict[str, int], told: Progress) -> Path:
    """Download these files, one after the other. The folder of the snapshot."""
    from huggingface_hub import hf_hub_download

    total, before, folder = sum(sizes[name] for name in names) or 1, 0, Path()
    shown = "tqdm_class" in inspect.signature(hf_hub_download).parameters  # later versions have it
    for place, name in enumerate(names):
        what, done, size = DOWNLOADING.format(file=name, size=sizes[name] / 1e6), before / total, sizes[name] / total
        told(what, done)
        bar = bar_class(lambda part, what=what, done=done, size=size: told(what, done + part * size))  # type: ignore[misc]
        # The first file is asked for by the revision as typed, which makes the cache remember its commit.
        revision = commit if place else wanted.revision
        settings: dict[str, Any] = {"revision": revision} | ({"tqdm_class": bar} if shown else {})
        path = hf_hub_download(wanted.name, name, **settings)
        folder = Path(path).parents[len(PurePosixPath(name).parts) - 1]
        before += sizes[name]
    return folder


def _cached(wanted: HubName) -> Path | None:
    """The folder of the revision in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    for revision in (wanted.revision, _whole_commit(wanted)):
        for marker in MARKERS:
            try:
                path = try_to_load_from_cache(wanted.name, marker, revision=revision)
            except ValueError:  # a name or revision that the hub does not allow
                return None
            if isinstance(path, str):
                return Path(path).parent
    return None


def folder_of(model: nn.Module) -> str | None:
    """The folder on this disk that a model of transformers was loaded from; None if it is not known or not there."""
    config = getattr(getattr(model, "module", model), "config", None)  # a wrapper for several devices has none itself
    where, commit = getattr(config, "_name_or_path", None), getattr(config, "_commit_hash", None)
    if not isinstance(where, str) or not where:
        return None
    if Path(where).is_dir():
        return where
    name = hub_name(where)
    try:
        cached = None if name is None else _cached(HubName(name.name, commit if isinstance(commit, str) else None))
    except ImportError:
        return None
    return None if cached is None else str(cached)


def _whole_commit(wanted: HubName) -> str | None:
    """The one cached commit that begins like the revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if wanted.revision is None or not SHORT_COMMIT.fullmatch(wanted.revision):
        return wanted.revision
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=wanted.name, repo_type="model") / "snapshots"
    commits = [path.name for path in folder.glob(f"{wanted.revision}*") if COMMIT.fullmatch(path.name)]
    return commits[0] if len(commits) == 1 else wanted.revision


def _explained(wanted: HubName, error: Exception) -> InputError:
    """Turn an error of the hub into one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        why = Text(
            "gated: ask for access on its page, then log in with: hf auth login",
            "需要授权：请在其页面申请访问，再用 hf auth login 登录",
        )
    elif isinstance(error, errors.RevisionNotFoundError):
        why = Text("the hub has no revision {revision}", "模型库中没有版本 {revision}")
    elif isinstance(error, errors.RepositoryNotFoundError):
        why = Text(
            "no such folder, and the hub has no such model, or it is private (log in with: hf auth login)",
            "没有这个文件夹，模型库中也没有这个模型，或它是私有的（请用 hf auth login 登录）",
        )
    elif wanted.revision is not None and _cached(HubName(wanted.name)) is not None:
        why = Text(
            "the local cache does not have revision {revision}, and it could not be fetched",
            "本地缓存中没有版本 {revision}，也取不到",
        )
    else:
        why = Text("no such folder, and no model of that name could be fetched", "没有这个文件夹，也取不到同名的模型")
    return InputError(wanted, why.format(revision=wanted.revision))
