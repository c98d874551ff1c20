"""Put a PEFT adapter on its base model."""

from dataclasses import dataclass, replace
from pathlib import Path

from isotherm.checkup.loading.chatter import quiet
from isotherm.checkup.loading.formats import path_of, read_object
from isotherm.checkup.loading.hub import HubName, hub_name
from isotherm.checkup.loading.loaded import Loaded, needed
from isotherm.checkup.weights import Weights
from isotherm.errors import InputError
from isotherm.language import Text

TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}
"""The class that an adapter of each task was trained on. The names of its tensors fit no other."""
PREFIX = "base_model.model."
"""What peft puts before the names of the base's tensors."""


@dataclass(frozen=True)
class Base:
    """What an adapter goes on: a folder or a name on the hub, and the class of transformers to load it as (None: its own)."""

    where: Path | HubName
    architecture: str | None


def base_of(folder: Path, what: object) -> Base:
    """Read which base the adapter in a folder belongs to. A folder is looked for beside the adapter, then from here."""
    path = folder / "adapter_config.json"
    config = read_object(path)
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(named, str) or not named or "\0" in named:
        raise InputError(
            path, Text("base_model_name_or_path names no base model", "base_model_name_or_path 没有给出基座模型")
        )
    architecture = TASKS.get(str(config.get("task_type"))) or _trained_on(config.get("auto_mapping"))
    for place in (folder / named, path_of(named)):
        if place.is_dir() and place.resolve() != folder.resolve():
            return Base(place, architecture)
    found = hub_name(named)
    if found is None:
        absent = Text("its base model {base} is not there", "找不到它的基座模型 {base}").format(base=named[:200])
        raise InputError(what, absent)
    if isinstance(revision, str) and revision and found.revision is None:
        found = hub_name(f"{found.name}@{revision}") or found
    return Base(found, architecture)


def _trained_on(mapping: object) -> str | None:
    """The class of transformers that an adapter without a task was trained on, as peft writes it down."""
    name = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    try:
        import transformers
    except ImportError:
        return None
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    return name if isinstance(kind, type) and hasattr(kind, "from_pretrained") else None


def put_on(base: Loaded, folder: Path, name: str, origin: str) -> Loaded:
    """The base with the adapter of this folder, merged into its weights where that is possible."""
    peft = needed("peft", name)
    with quiet():
        try:
            stored = set(peft.load_peft_weights(str(folder), device="cpu"))
            model = peft.PeftModel.from_pretrained(base.model, str(folder))
            places = set(peft.get_peft_model_state_dict(model))
            config = model.peft_config[model.active_adapter]
            if not config.is_prompt_learning and hasattr(model.base_model, "merge_and_unload"):
                model = model.merge_and_unload()
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            why = Text("the adapter does not go on its base {base} ({said})", "该适配器无法用于其基座 {base}（{said}）")
            raise InputError(name, why.format(base=base.name, said=said)) from error
    weights = _weights(base.weights or Weights(), stored, places)
    return replace(base, model=model.eval(), name=name, origin=origin, weights=weights)


def _weights(base: Weights, stored: set[str], places: set[str]) -> Weights:
    """What of base and adapter did not fit. The adapter may bring a head that the base lacks."""
    unexpected = sorted(name.removeprefix(PREFIX) for name in stored - places)
    brought = {name.removeprefix(PREFIX) for name in stored}
    return Weights(
        tuple(name for name in base.missing if name not in brought),
        {name: shapes for name, shapes in base.mismatched.items() if name not in brought},
        (*base.unexpected, *unexpected),
    )
