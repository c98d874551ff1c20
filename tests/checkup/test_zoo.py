"""No blind green: attention is recognised by what is computed, or listed as not seen, whatever its author wrote."""

import pytest
import torch
from torch import nn

import isotherm
from isotherm.probe import flex
from tests.checkup import zoo, zoo_rare
from tests.checkup.zoo import DIM, HEADS, SCALE, TOKENS, WEIGHTS, Mixer, Net, net

pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without:UserWarning", "ignore:return_lse is deprecated:FutureWarning"
)
LISTED = zoo.LISTED + zoo_rare.LISTED
SEEN = zoo.SEEN | zoo_rare.SEEN
NAMES = [getattr(middle, "__name__", "scripted_function") for middle in SEEN]

WHY = {  # why there is no scale in force
    zoo.one_number_for_each_head: "each head",
    zoo.one_number_for_each_query: "each query",
    **dict.fromkeys(
        (zoo.talking_heads, zoo.squashed, zoo.sparsemax, zoo.flex_with_a_cube, zoo.one_number_for_each_key),
        "not a number times q·k",
    ),
    **dict.fromkeys(
        (
            zoo.tensordot,
            zoo.inner_products,
            zoo.three_factors,
            zoo.matrix_and_vector,
            zoo.out_slices,
            zoo.cosine_similarity,
        ),
        "followed back",
    ),
}


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
    assert (layer.name, layer.kind) == ("mixers.0", "self")
    if middle in zoo.SEEN and (scale is not None or middle in WHY):
        assert (layer.heads, layer.kv_heads, layer.head_stats[0].rows) == (HEADS, HEADS, 2 * TOKENS)
        assert layer.head_dim == (1 if WHY.get(middle) == "followed back" else DIM)
        assert scale is not None or WHY[middle] in layer.scale.note.en
    assert layer.scale.effective == (None if scale is None else pytest.approx(scale, rel=1e-3))
    if WEIGHTS:
        p = WEIGHTS[0].double()
        rest = (1 - p.sum(-1)).clamp(min=0)
        entropy = -torch.special.xlogy(p, p).sum(-1) - torch.where(rest > 1e-5, torch.special.xlogy(rest, rest), 0.0)
        rough = 2e-2 if middle is zoo.upcast else 1e-4
        measured = report.rows[0].entropy
        assert measured.numel() == entropy.numel()
        torch.testing.assert_close(measured.flatten(), entropy.flatten(), rtol=0, atol=rough)


@pytest.mark.parametrize("middle", SEEN, ids=NAMES)
def test_seen_in_a_mixed_model(middle):
    report = look(*net(zoo.flex, middle, zoo.softmax_module))
    assert [layer.name for layer in report.layers] == ["mixers.0", "mixers.1", "mixers.2"]
    assert not report.record.unseen


@pytest.mark.parametrize("middle", LISTED, ids=lambda middle: middle.__name__)
def test_what_cannot_be_followed_is_listed(middle):
    report = look(*net(middle))
    assert not report.layers
    assert not report.healthy
    assert [one.name for one in report.record.unseen] == ["mixers.0"]
    assert "the probe failed" not in report.record.unseen[0].why.en
    assert [one.code for one in report.findings] == ["attention-not-seen"]


@pytest.mark.parametrize("middle", LISTED, ids=lambda middle: middle.__name__)
def test_nothing_vanishes_in_a_mixed_model(middle):
    report = look(*net(zoo.flex, middle, zoo.softmax_module, zoo.scripted_function))
    assert [layer.name for layer in report.layers] == ["mixers.0", "mixers.2", "mixers.3"]
    assert [one.name for one in report.record.unseen] == ["mixers.1"]


@pytest.mark.parametrize("middle", [zoo.exp_and_sum, zoo.log_softmax, zoo.by_reciprocal, zoo.softmax_module])
def test_one_position_attends_to_itself(middle):
    report = look(net(middle)[0], torch.randn(2, 1, zoo.WIDTH))
    assert report.record.unseen == ()
    (layer,) = report.layers
    assert (layer.heads, layer.keys) == (HEADS, 1)
    assert report.rows[0].entropy.abs().max() < 1e-6


@pytest.mark.parametrize("middle", zoo_rare.IN_BLOCKS, ids=lambda middle: middle.__name__)
def test_blocks_of_keys_are_called_blocks(middle):
    (entry,) = look(*net(middle)).record.unseen
    assert "blocks of keys" in entry.why.en


def test_two_branches_are_no_blocks():
    assert [layer.keys for layer in look(*net(zoo_rare.two_branches)).layers] == [5, 6]


def test_rows_in_chunks_are_seen():
    layers = look(*net(zoo.chunked)).layers
    assert sum(layer.head_stats[0].rows for layer in layers) == 2 * TOKENS


def test_an_operator_on_three_axes_has_one_head():
    report = look(*net(zoo.custom_op_on_three_axes))
    (layer,) = report.layers
    assert (layer.heads, layer.head_dim, layer.head_stats[0].rows) == (1, DIM, 2 * HEADS * TOKENS)
    assert layer.scale.passed == pytest.approx(0.3)


def test_grouped_queries_of_flex_attention():
    (layer,) = look(*net(zoo.flex_grouped)).layers
    assert (layer.heads, layer.kv_heads) == (2, 1)
    assert layer.scale.effective == pytest.approx(SCALE, rel=1e-3)


@pytest.mark.parametrize("middle", [zoo.flex_with_bias, zoo.flex_with_a_cap, zoo.flex_with_a_cube])
def test_of_too_many_logits_of_flex_attention_some_rows_are_kept(middle, monkeypatch):
    (whole,) = look(*net(middle)).rows
    monkeypatch.setattr(flex, "MOST", 2 * HEADS * TOKENS * 3)
    report = look(*net(middle))
    (some,), (layer,) = report.rows, report.layers
    assert (some.rows.tolist(), some.total_rows) == ([0, 5, 10], TOKENS)
    torch.testing.assert_close(some.entropy, whole.entropy[:, :, [0, 5, 10]], rtol=0, atol=1e-4)
    expected = SEEN[middle]
    assert layer.scale.effective == (None if expected is None else pytest.approx(expected, rel=1e-3))


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


class Unbiased(Scripted):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(zoo.WIDTH, zoo.WIDTH, bias=False) for _ in range(2))


COMPILED = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": torch.jit.trace,
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("made", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("kind", [Scripted, Fused, Unbiased])
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


class Core(nn.Module):
    """The middle part of linear attention as a module of its own, without the projections."""

    def forward(self, q, k, v):
        return q @ (k.mT @ v)


class BahdanauAttention(nn.Module):
    """Scores from a sum: no product of two activations leads to them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.score = nn.Linear(zoo.WIDTH, 8), nn.Linear(zoo.WIDTH, 8), nn.Linear(8, 1)

    def forward(self, x):
        weights = self.score(torch.tanh(self.q(x).unsqueeze(2) + self.k(x).unsqueeze(1))).squeeze(-1).softmax(-1)
        return (weights.unsqueeze(-1) * x.unsqueeze(1)).sum(2)


def softmax_over(weight, project):
    """A router or classifier whose weight is made anew in each forward."""

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.gain = nn.Parameter(torch.randn(4, zoo.WIDTH)), nn.Parameter(torch.tensor(2.0))
            self.a, self.b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3, zoo.WIDTH))
            self.experts = nn.ModuleList(nn.Linear(zoo.WIDTH, zoo.WIDTH) for _ in range(4))

        def forward(self, x):
            shares = project(x, lambda: weight(self)).softmax(-1).to(x.dtype)
            return torch.einsum("bte,betd->btd", shares, torch.stack([expert(x) for expert in self.experts], 1))

    return Router()


ROUTERS = {
    "normalised": lambda m: nn.functional.normalize(m.weight, dim=-1),
    "normalised by hand": lambda m: m.weight / m.weight.norm(dim=-1, keepdim=True).clamp_min(1e-6),
    "in another precision": lambda m: m.weight.double(),
    "with a gain": lambda m: m.weight * m.gain,
    "with an adapter": lambda m: m.weight + m.a @ m.b,
}


PROJECTIONS = {
    "linear": lambda x, weight: nn.functional.linear(x.to(weight().dtype), weight()),
    "turned": lambda x, weight: x.to(weight().dtype) @ weight().T,
}


@pytest.mark.parametrize("project", PROJECTIONS.values(), ids=PROJECTIONS)
@pytest.mark.parametrize("weight", ROUTERS.values(), ids=ROUTERS)
def test_a_router_whose_weight_is_made_in_the_forward_is_no_attention(weight, project):
    torch.manual_seed(0)
    report = look(softmax_over(weight, project).eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    assert report.layers == ()
    assert report.record.unseen == ()


class Head(nn.Module):
    """An encoder, and a head that the model's own forward computes."""

    def __init__(self, head):
        super().__init__()
        self.encoder, self.head = net(zoo.softmax_module)[0], head
        self.score, self.other, self.three = (nn.Linear(zoo.WIDTH, width) for width in (1, 1, 3))

    def forward(self, x):
        return self.head(self, self.encoder(x))


def test_pooling_beside_attention_is_seen():
    report = look(Head(lambda m, x: (m.score(x).softmax(1) * x).sum(1)).eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    assert [layer.name for layer in report.layers] == ["encoder.mixers.0", ""]
    assert report.layers[1].head_stats[0].rows == 2


def test_scores_of_the_shape_of_a_projection_are_seen():
    """As many positions as features: shapes do not tell the two apart, numbers do."""

    def added(m, x):
        return torch.tanh(m.wide(x).unsqueeze(2) + m.wide(x).unsqueeze(1)).sum(-1).softmax(-1) @ x

    model = Head(added)
    model.wide = nn.Linear(zoo.WIDTH, zoo.WIDTH)
    report = look(model.eval(), torch.randn(2, zoo.WIDTH, zoo.WIDTH))
    assert [layer.name for layer in report.layers] == ["encoder.mixers.0", ""]


HEADS_WITHOUT_ATTENTION = {
    "a classifier": lambda m, x: m.three(x[:, 0]).softmax(-1),
    "a gate over branches": lambda m, x: (m.three(x).softmax(-1).unsqueeze(-1) * torch.stack([x, -x, x * x], 2)).sum(2),
    "a gate with a temperature and a mask": lambda m, x: (
        (m.three(x) / 0.3).masked_fill(torch.tensor([False, False, True]), -1e9).softmax(-1).unsqueeze(-1)
        * torch.stack([x, -x, x * x], 2)
    ).sum(2),
    "a gate of some of the features": lambda m, x: (
        (m.three(x)[..., 1:] * 2 + 0.1).softmax(-1).unsqueeze(-1) * torch.stack([x, -x], 2)
    ).sum(2),
    "a gate by hand": lambda m, x: (
        (e := m.three(x).exp()) / e.sum(-1, keepdim=True) * torch.stack([x, -x, x * x], -2).mean(-1)
    ).sum(-1),
    "a gate made of several": lambda m, x: (
        torch.stack([m.score(x), m.other(x)]).softmax(0) * torch.stack([x, -x])
    ).sum(0),
    "a mean": lambda m, x: (x * torch.ones(2, TOKENS, 1).expand(x.shape)).sum(1) / TOKENS,
    "a bilinear form": lambda m, x: (m.three(x) * m.three(x[:, :1])).sum(-1).sigmoid(),
}


@pytest.mark.parametrize("head", HEADS_WITHOUT_ATTENTION.values(), ids=HEADS_WITHOUT_ATTENTION)
def test_a_head_that_does_not_attend_is_no_layer(head):
    report = look(Head(head).eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    assert [layer.name for layer in report.layers] == ["encoder.mixers.0"]
    assert report.record.unseen == ()


def test_attention_without_a_softmax_is_a_note():
    model, x = net(zoo.softmax_module)
    model.mixers.append(LinearAttention())
    report = look(model.eval(), x)
    assert [(one.code, one.severity) for one in report.findings] == [("attention-not-seen", "note")]
    assert "no temperature" in report.findings[0].message.en


def test_attention_without_a_softmax_is_that_of_the_module_with_the_projections():
    report = look(Mixer(Core()).eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    assert [(one.module, one.severity) for one in report.record.unseen] == [("Mixer", "note")]


def test_a_softmax_over_a_sum_is_seen_without_a_scale():
    torch.manual_seed(0)
    report = look(BahdanauAttention().eval(), torch.randn(2, TOKENS, zoo.WIDTH))
    (layer,) = report.layers
    assert layer.scale.effective is None
    assert not report.record.unseen
