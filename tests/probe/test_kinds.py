"""What a call attends over."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isotherm.probe import probe
from isotherm.probe.kinds import with_landmarks

WIDTH, HEADS = 24, 3


class Along(nn.Module):
    """Attention on q, k and v cut from one projection [B, N, 3·WIDTH] by a function of one's own."""

    def __init__(self, cut, attend=F.scaled_dot_product_attention):
        super().__init__()
        self.qkv, self.cut, self.attend = nn.Linear(WIDTH, 3 * WIDTH), cut, attend

    def forward(self, x):
        return self.attend(*self.cut(self.qkv(x)))


def cross_covariance(y):
    """XCA: unit vectors along the tokens."""
    q, k, v = y.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 4, 1)
    return F.normalize(q, dim=-1) * 1.3, F.normalize(k, dim=-1), v


def channels(y):
    """DaViT: heads as usual, then the transposed product."""
    return [part.transpose(-1, -2) for part in y.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)]


def batch(y):
    """One number a position: what was meant as [B, N, 1] has lost its last axis."""
    return y[..., :3].unbind(-1)


def usual(y):
    return y.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)


def by_hand(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand], ids=["fused", "by hand"])
@pytest.mark.parametrize("shape", [(2, 11), (1, 11), (2, WIDTH // HEADS), (3, 3)], ids=str)
@pytest.mark.parametrize(
    ("cut", "kind"),
    [(cross_covariance, "channel"), (channels, "channel"), (batch, "batch"), (usual, "self")],
    ids=["XCA", "channels", "batch", "usual"],
)
def test_strides_tell_what_vectors_run_along(cut, kind, shape, attend):
    torch.manual_seed(0)
    if cut is batch and attend is F.scaled_dot_product_attention:
        attend = by_hand  # PyTorch's kernel takes no two axes
    model = Along(cut, attend)
    with probe(model) as seen:
        model(torch.randn(*shape, WIDTH))
    assert [capture.kind for capture in seen.captures] == [kind]


def test_channels_of_a_convolution():
    class Restoring(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Conv2d(12, 36, 1)

        def forward(self, x):
            q, k, v = (part.unflatten(1, (HEADS, -1)).flatten(3) for part in self.qkv(x).chunk(3, 1))
            return torch.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT, -1) @ v

    with probe(model := Restoring()) as seen:
        model(torch.randn(2, 12, 5, 7))
    assert [capture.kind for capture in seen.captures] == ["channel"]


@pytest.mark.parametrize(("turned", "kind"), [(True, "self"), (False, "channel")])
def test_a_convolution_over_positions_has_its_features_first(turned, kind):
    """Point cloud transformers attend over points; without their transposition the vectors would run along these."""

    class Points(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Conv1d(12, 6, 1) for _ in range(3))

        def forward(self, x):
            q, k, v = (part(x).mT if turned else part(x) for part in (self.q, self.k, self.v))
            return torch.softmax(q @ k.mT, -1) @ v

    with probe(model := Points()) as seen:
        model(torch.randn(2, 12, 11))
    assert [capture.kind for capture in seen.captures] == [kind]


@pytest.mark.parametrize(("name", "kind"), [("XCA", "channel"), ("ChannelAttention", "channel"), ("Mixing", "self")])
@pytest.mark.parametrize("inside", ["part", "channel_att"])
def test_a_name_tells_what_copies_do_not(name, kind, inside):
    """Vectors that were copied have no strides to go by. The class or the name of the module is enough."""
    copied = type(name, (Along,), {})(lambda y: [part * 1.0 for part in channels(y)], by_hand)
    with probe(model := nn.ModuleDict({inside: copied})) as seen:
        model[inside](torch.randn(2, 11, WIDTH))
    assert [capture.kind for capture in seen.captures] == ["channel" if inside == "channel_att" else kind]


class Nystrom(nn.Module):
    """Attention by way of `landmarks` means of neighbouring tokens."""

    def __init__(self, landmarks=4, parts=3):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.landmarks, self.parts = landmarks, parts

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        few_q, few_k = (y.unflatten(2, (self.landmarks, -1)).mean(3) for y in (q, k))
        one, two, three = ((a @ b.mT).softmax(-1) for a, b in ((q, few_k), (few_q, few_k), (few_q, k)))
        return one @ (two @ (three @ v))


def test_landmarks():
    with probe(model := Nystrom()) as seen:
        model(torch.randn(2, 16, WIDTH))
    assert [capture.kind for capture in with_landmarks(seen.captures)] == ["landmark"] * 3


def test_a_module_that_attends_there_and_back_has_no_landmarks():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Pair()

        def forward(self, x, y):
            return self.attention(x, y), self.attention(y, x)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x, y):
            return F.scaled_dot_product_attention(self.q(x), self.k(y), self.v(y))

    with probe(model := Both()) as seen:
        model(torch.randn(2, 16, WIDTH), torch.randn(2, 4, WIDTH))
    assert [capture.kind for capture in with_landmarks(seen.captures)] == ["cross", "cross"]
