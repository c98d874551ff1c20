"""What the header says a batch holds."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.inputs import contents
from isotherm.report import vocabulary
from tests.checkup.models import Attention, Model, batch

WIDTH = 64


class Vision(nn.Module):
    """Patches of 8 × 8 pixels and a class token."""

    def __init__(self, attention=None):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, WIDTH, 8, 8), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.attention = attention or Attention()

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        return self.attention(torch.cat([self.first.expand(len(x), -1, -1), tokens], 1))


class Windows(Vision):
    """Attention in windows of four patches."""

    def forward(self, x):
        return self.attention(self.patches(x).flatten(2).mT.reshape(-1, 4, WIDTH))


class Sound(nn.Module):
    """Frames of a waveform or of a spectrum."""

    def __init__(self, bins=1, stride=10):
        super().__init__()
        self.frames, self.attention = nn.Conv1d(bins, WIDTH, stride, stride), Attention()

    def forward(self, x):
        return self.attention(self.frames(x if x.dim() == 3 else x.unsqueeze(1)).mT)


class Pooled(nn.Module):
    """Pairs of neighbouring vectors as one."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return self.attention(x.unflatten(1, (-1, 2)).mean(2))


class Words(nn.Module):
    """Tokens, embedded."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Embedding(50, WIDTH), Attention()

    def forward(self, ids):
        return self.attention(self.embed(ids if ids.dim() == 2 else ids.unsqueeze(0)))


class Seq(nn.Module):
    """PyTorch's default: the tokens are the first axis."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4)

    def forward(self, x):
        return self.attention(x, x, x)


@pytest.mark.parametrize(
    ("model", "given", "en", "zh"),
    [
        pytest.param(Words(), torch.arange(7).view(1, -1), "7 tokens", "7 个词元", id="tokens"),
        pytest.param(Words(), torch.zeros(3, 7).long(), "3 × 7 tokens", "3 × 7 个词元", id="several"),
        pytest.param(Words(), torch.arange(7), "7 tokens", "7 个词元", id="one sequence alone"),
        pytest.param(Model(Attention()), batch(23), "2 × 23 positions", "2 × 23 个位置", id="vectors"),
        pytest.param(Model(Attention()), batch(1)[:1], "1 position", "1 个位置", id="one position"),
        pytest.param(Seq(), torch.randn(9, 2, WIDTH), "2 × 9 positions", "2 × 9 个位置", id="tokens first"),
        pytest.param(Seq(), torch.randn(9, WIDTH), "9 positions", "9 个位置", id="vectors without a batch"),
        pytest.param(
            Vision(),
            torch.randn(1, 3, 32, 48),
            "1 picture 32 × 48 (25 positions)",
            "1 张 32 × 48 的图像（25 个位置）",
            id="picture",
        ),
        pytest.param(
            Windows(),
            torch.randn(2, 3, 32, 32),
            "2 pictures 32 × 32 (16 positions)",
            "2 张 32 × 32 的图像（16 个位置）",
            id="windows",
        ),
        pytest.param(
            Sound(),
            torch.randn(1, 16000)[:, :2000],
            "1 sound of length 2,000 (200 positions)",
            "1 段长度为 2,000 的声音（200 个位置）",
            id="sound",
        ),
        pytest.param(
            Sound(8, 2),
            torch.randn(2, 8, 90),
            "2 sounds of length 90 (45 positions)",
            "2 段长度为 90 的声音（45 个位置）",
            id="spectrum",
        ),
        pytest.param(
            Sound(8, 1),
            torch.randn(2, 8, 45),
            "2 sounds of length 45 (45 positions)",
            "2 段长度为 45 的声音（45 个位置）",
            id="a frame for each position",
        ),
        pytest.param(Pooled(), torch.randn(3, 90, WIDTH), "3 × 45 positions", "3 × 45 个位置", id="pooled"),
        pytest.param(Pooled(), torch.randn(3, WIDTH, WIDTH), "3 × 32 positions", "3 × 32 个位置", id="pooled square"),
    ],
)
def test_the_header_counts_what_there_is(model, given, en, zh):
    report = isotherm.check(model, given, what_if=())
    said = vocabulary.amount(report.record.model)
    assert (said.en, said.zh) == (en, zh)
    assert en in report.to_markdown("en")


@pytest.mark.parametrize(
    ("given", "unit"),
    [
        pytest.param({"features": {"mask": None, "ids": torch.zeros(2, 5).long()}}, "tokens", id="a dict in a dict"),
        pytest.param([torch.zeros(2, 5).bool()], "tokens", id="a list"),
        pytest.param(torch.zeros(2, 5, 3), "positions", id="vectors"),
        pytest.param(torch.zeros(2, 5, 3, 3, 3), "positions", id="a video"),
    ],
)
def test_without_attention_the_shape_alone_counts(given, unit):
    held = contents(given)
    assert (held.batch, held.positions, held.unit) == (2, 5, unit)


def test_sequences_of_different_lengths():
    held = contents(torch.nested.nested_tensor([torch.zeros(4, 3), torch.zeros(7, 3)], layout=torch.jagged))
    assert (held.batch, held.positions, held.unit) == (2, 7, "positions")


@pytest.mark.parametrize(("given", "unit"), [((), "tokens"), (torch.tensor(3.0), "positions")])
def test_a_batch_without_a_shape(given, unit):
    held = contents(given)
    assert (held.batch, held.positions, held.unit) == (1, 0, unit)


def test_a_picture_with_its_colours_last():
    for colours in (1, 2, 3, 4):
        assert contents(torch.zeros(2, 32, 48, colours)).size == (32, 48)
        assert contents(torch.zeros(2, colours, 32, 48)).size == (32, 48)
    assert contents(torch.zeros(2, 3, 32, 4)).size == (32, 4)
    assert contents(torch.zeros(2, 5, 32, 48)).size == (32, 48)


def test_an_old_report_counts_tokens():
    subject = isotherm.check(Words(), torch.arange(7).view(1, -1), what_if=()).record.model
    old = replace(subject, unit="tokens", size=(), batch=1)
    assert vocabulary.amount(old).en == "7 tokens"


@pytest.mark.parametrize("pictures", [1, 3])
def test_attention_across_pictures_is_called_out(pictures):
    class Lost(Vision):
        def forward(self, x):
            tokens = self.patches(x).flatten(2).mT
            return self.attention(tokens, tokens, tokens)[0]

    wrong, right = (Lost(nn.MultiheadAttention(WIDTH, 4, batch_first=first)) for first in (False, True))
    report = isotherm.check(wrong, torch.randn(pictures, 3, 32, 32), what_if=())
    assert [layer.kind for layer in report.layers] == ["batch"]
    assert [(one.code, one.severity) for one in report.findings if "batch" in one.code] == [
        ("attention-across-batch", "note")
    ]
    report = isotherm.check(right, torch.randn(pictures, 3, 32, 32), what_if=())
    assert [layer.kind for layer in report.layers] == ["self"]


def test_sequences_with_the_tokens_first_are_no_batch():
    assert [layer.kind for layer in isotherm.check(Seq(), torch.randn(9, 2, WIDTH), what_if=()).layers] == ["self"]
