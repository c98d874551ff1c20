"""No blind green: attention is recognised by what is computed, or listed as not seen, whatever its author wrote."""

import pytest
import torch
from torch import nn

import isotherm
from tests.checkup import zoo
from tests.checkup.zoo import DIM, HEADS, LISTED, SCALE, SEEN, TOKENS, WEIGHTS, Mixer, Net, net

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
NAMES = [getattr(middle, "__name__", "scripted_function") for middle in SEEN]


def look(model, x):
    WEIGHTS.clear()
    with torch.no_grad():
        plain = model(x)
        report = isotherm.check(model, x, what_if=(), compare=False)
        assert torch.equal(plain, model(x))
    return report


@pytest.mark.parametrize(("middle", "scale"), SEEN.items(), ids=NAMES)
def test_seen_with_its_statistics_and_scale(middle, scale):
    report = look(*net(middle))
    assert not report.record.unseen
    (layer,) = report.layers
    assert layer.name == "mixers.0"
    assert layer.scale.effective == (None if scale is None else pytest.approx(scale, rel=1e-3))
    if WEIGHTS:
        p = WEIGHTS[0].double()
        rest = (1 - p.sum(-1)).clamp(min=0)
        entropy = -torch.special.xlogy(p, p).sum(-1) - torch.where(rest > 1e-5, torch.special.xlogy(rest, rest), 0.0)
        rough = 2e-2 if middle is zoo.upcast else 1e-4
        torch.testing.assert_close(report.rows[0].entropy, entropy, rtol=0, atol=rough)


@pytest.mark.parametrize("middle", LISTED, ids=lambda middle: middle.__name__)
def test_what_cannot_be_followed_is_listed(middle):
    report = look(*net(middle))
    assert not report.layers
    assert not report.healthy
    assert [one.name for one in report.record.unseen] == ["mixers.0"]
    assert [one.code for one in report.findings] == ["attention-not-seen"]


@pytest.mark.parametrize("middle", LISTED, ids=lambda middle: middle.__name__)
def test_nothing_vanishes_in_a_mixed_model(middle):
    report = look(*net(zoo.flex, middle, zoo.softmax_module, zoo.scripted_function))
    assert [layer.name for layer in report.layers] == ["mixers.0", "mixers.2", "mixers.3"]
    assert [one.name for one in report.record.unseen] == ["mixers.1"]


def test_rows_in_chunks_are_seen():
    layers = look(*net(zoo.chunked)).layers
    assert sum(layer.head_stats[0].rows for layer in layers) == 2 * TOKENS


def test_grouped_queries_of_flex_attention():
    (layer,) = look(*net(zoo.flex_grouped)).layers
    assert (layer.heads, layer.kv_heads) == (2, 1)
    assert layer.scale.effective == pytest.approx(SCALE, rel=1e-3)


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v


class Scripted(nn.Module):
    """Attention without Python names that TorchScript cannot compile."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(zoo.WIDTH, zoo.WIDTH) for _ in range(4))

    def forward(self, x):
        q = self.a(x).view(2, -1, 3, 8).transpose(1, 2)
        k = self.b(x).view(2, -1, 3, 8).transpose(1, 2)
        v = self.c(x).view(2, -1, 3, 8).transpose(1, 2)
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.3, dim=-1)
        return self.d(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class Fused(Scripted):
    def forward(self, x):
        q = self.a(x).view(2, -1, 3, 8).transpose(1, 2)
        k = self.b(x).view(2, -1, 3, 8).transpose(1, 2)
        v = self.c(x).view(2, -1, 3, 8).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3)
        return self.d(out.transpose(1, 2).flatten(2))


COMPILED = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": torch.jit.trace,
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("made", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("kind", [Scripted, Fused])
def test_scripted_traced_and_exported_modules_are_seen(kind, made):
    torch.manual_seed(0)
    x = torch.randn(2, TOKENS, zoo.WIDTH)
    report = look(made(kind().eval(), x), x)
    assert [layer.heads for layer in report.layers] == [HEADS]
    assert report.layers[0].head_dim == DIM
    assert report.layers[0].scale.effective == pytest.approx(0.3, rel=1e-3)


def test_a_forward_in_another_thread_is_listed():
    model = Net(zoo.softmax_module, zoo.softmax_module).eval()
    model.mixers[1] = zoo.Threaded(zoo.softmax_module).eval()
    report = look(model, torch.randn(2, TOKENS, zoo.WIDTH))
    assert [layer.name for layer in report.layers] == ["mixers.0"]
    (entry,) = report.record.unseen
    assert entry.name == "mixers.1.inner"
    assert "another thread" in entry.why.en
    assert not report.healthy


def test_the_same_model_in_another_thread_is_not_our_business():
    import threading

    model, x = net(zoo.softmax_module)
    stop = threading.Event()

    def serve():
        while not stop.is_set():
            with torch.no_grad():
                model(x)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for _ in range(5):
            assert isotherm.check(model, x, what_if=(), compare=False).record.unseen == ()
    finally:
        stop.set()
        thread.join()


class Gates(nn.Module):
    """Three projections of one input, and no attention."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(zoo.WIDTH, zoo.WIDTH) for _ in range(3))

    def forward(self, x):
        return torch.sigmoid(self.a(x)) * torch.tanh(self.b(x)) + self.c(x)


class LinearAttention(Mixer):
    def __init__(self):
        super().__init__(lambda q, k, v: q @ (k.mT @ v))


def test_what_does_not_attend_is_not_listed():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates, self.attention = Gates(), net(zoo.softmax_module)[0]

        def forward(self, x):
            return self.attention(self.gates(x))

    report = look(Whole().eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    assert report.record.unseen == ()
    assert len(report.layers) == 1


def softmax_over(weight):
    """A router or classifier whose weight is made anew in each forward."""

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.gain = nn.Parameter(torch.randn(4, zoo.WIDTH)), nn.Parameter(torch.tensor(2.0))
            self.a, self.b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3, zoo.WIDTH))
            self.experts = nn.Linear(zoo.WIDTH, 4 * zoo.WIDTH)

        def forward(self, x):
            shares = nn.functional.linear(x.to(weight(self).dtype), weight(self)).softmax(-1).to(x.dtype)
            return (shares.unsqueeze(-1) * self.experts(x).unflatten(-1, (4, -1))).sum(-2)

    return Router()


ROUTERS = {
    "normalised": lambda m: nn.functional.normalize(m.weight, dim=-1),
    "in another precision": lambda m: m.weight.double(),
    "with a gain": lambda m: m.weight * m.gain,
    "with an adapter": lambda m: m.weight + m.a @ m.b,
}


@pytest.mark.parametrize("weight", ROUTERS.values(), ids=ROUTERS)
def test_a_router_whose_weight_is_made_in_the_forward_is_no_attention(weight):
    torch.manual_seed(0)
    report = look(softmax_over(weight).eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    assert report.layers == ()
    assert report.record.unseen == ()


def test_attention_without_a_softmax_is_a_note():
    model, x = net(zoo.softmax_module)
    model.mixers.append(LinearAttention())
    report = look(model.eval(), x)
    assert [(one.code, one.severity) for one in report.findings] == [("attention-not-seen", "note")]
    assert "no temperature" in report.findings[0].message.en
