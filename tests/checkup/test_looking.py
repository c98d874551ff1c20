"""Long inputs on a GPU: measured as layers run, without waiting, on a sample of queries, and within memory."""

import gc
import sys
from dataclasses import asdict

import pytest
import torch

import isotherm
from isotherm.checkup import heads, implementations, looking, rows, together, what_if
from isotherm.checkup.piece import piece_of
from isotherm.probe import Capture, probe, session
from isotherm.stats import RowStats
from tests.checkup.models import Attention, Model, batch, trained
from tests.checkup.reads import counted

transformers = pytest.importorskip("transformers")
HEADS, TOKENS, KEPT = 4, 60, 20


def llama(layers=2, **options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=2, vocab_size=50, **options,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.mul_(8)
        layer.self_attn.k_proj.weight.data.mul_(8)
    return model


def ids(sequences=1, tokens=TOKENS):
    return {"input_ids": torch.randint(0, 50, (sequences, tokens), generator=torch.Generator().manual_seed(0))}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Calls of many rows are measured while the model runs, and outputs are summed up for later."""
    monkeypatch.setattr(looking, "is_measured_at_once", lambda capture: capture.rows is None)
    monkeypatch.setattr(session, "largest_of", lambda output: output.detach().abs().amax().double())
    for module in (looking, what_if):
        monkeypatch.setattr(module, "QUERIES", HEADS * KEPT)


def check(model, given, **options):
    with torch.no_grad():
        return isotherm.check(model, given, **options)


def heads_of(report):
    return [asdict(head) for layer in report.layers for head in layer.head_stats]


@pytest.mark.parametrize("most", [1, 2 * HEADS * TOKENS])
def test_however_many_layers_and_heads_are_summarised_at_once(most, as_on_a_gpu, monkeypatch):
    expected = check(llama(3), ids(2), compare=False)
    monkeypatch.setattr(looking, "SUMMARISED", most)
    monkeypatch.setattr(heads, "AT_ONCE", most)
    assert heads_of(check(llama(3), ids(2), compare=False)) == heads_of(expected)


def test_every_row_counts_though_some_queries_are_kept(as_on_a_gpu, monkeypatch):
    expected = check(llama(), ids(), compare=False)
    monkeypatch.undo()
    assert heads_of(check(llama(), ids(), compare=False)) == heads_of(expected)


def test_what_if_and_curves_are_taken_from_the_kept_queries(as_on_a_gpu):
    report = check(llama(), ids(), compare=False, what_if=["x2"])
    remark = "What-if was computed on 20 of 60 rows of each head, spread evenly."
    assert [text.en for text in report.record.remarks] == [remark]
    with torch.no_grad(), probe(model := llama()) as seen:
        model(**ids())
    chosen = rows.spread_rows(TOKENS, KEPT, torch.device("cpu"))
    capture = seen.captures[1]
    for rule, scale in (("as is", 1), ("x2", 2)):
        (stats,) = rows.measure_rows(capture, chosen, [capture.problem.scale * scale])
        (found,) = [one.layers[1] for one in report.what_if if one.rule == rule]
        assert found.jacobian_trace == pytest.approx(rows.quantile(stats.jacobian_trace, 0.5))
        assert found.max_logit == pytest.approx(stats.max_logit.max().item())
    curve = report.layers[1].curve
    assert (curve.rows, curve.rows_total, curve.label) == (KEPT, TOKENS, "sampled")
    (stats,) = rows.measure_rows(capture, chosen, [capture.problem.scale])
    assert curve.gate[8] == pytest.approx(rows.quantile(stats.jacobian_trace, 0.5), rel=1e-3)


def test_layers_measured_as_one_give_what_each_gives(monkeypatch):
    rules = ["x2", "softmax1", "none"]
    monkeypatch.setattr(sys.modules["isotherm.checkup.curve"], "ROWS", TOKENS)
    apart = check(llama(3), ids(2), compare=False, what_if=rules)
    monkeypatch.setattr(together, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(sys.modules["isotherm.checkup.examine"], "_is_plain", lambda capture: True)
    calls = []
    measure_at = together.measure_at
    monkeypatch.setattr(together, "measure_at", lambda *args: calls.append(args) or measure_at(*args))
    as_one = check(llama(3), ids(2), compare=False, what_if=rules)
    # all rows, two rules as one scale each, the curve; and one rule that is no scale, for each layer
    assert len(calls) == 3 + 3
    for one, other in zip(apart.layers, as_one.layers, strict=True):
        assert one.curve == other.curve
        for a, b in zip(one.head_stats, other.head_stats, strict=True):
            assert asdict(a.entropy) == pytest.approx(asdict(b.entropy), rel=1e-6)
            assert (a.max_logit, a.logit_std) == pytest.approx((b.max_logit, b.logit_std), rel=1e-6)
    for one, other in zip(apart.what_if, as_one.what_if, strict=True):
        for a, b in zip(one.layers, other.layers, strict=True):
            assert [a.entropy_fraction, a.jacobian_trace, a.max_logit, *a.head_gate] == pytest.approx(
                [b.entropy_fraction, b.jacobian_trace, b.max_logit, *b.head_gate], rel=1e-6
            )


def test_q_and_k_of_all_layers_are_never_held_together(as_on_a_gpu, monkeypatch):
    """When a layer begins, those before it have given their queries up."""
    most = []
    forward = transformers.models.llama.modeling_llama.LlamaAttention.forward

    def counting(*args, **kwargs):
        most.append(sum(kept.capture.problem.q.shape[2] == TOKENS for kept in probing._kept))
        return forward(*args, **kwargs)

    class Watched(looking.CheckSession):
        def __init__(self, *args, **kwargs):
            nonlocal probing
            super().__init__(*args, **kwargs)
            probing = self

    probing = None
    monkeypatch.setattr("isotherm.checkup.measure.CheckSession", Watched)
    monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaAttention, "forward", counting)
    check(llama(5), ids(), compare=False, what_if=())
    assert most == [0] * 5


def test_statistics_of_too_many_rows_are_kept_in_part(as_on_a_gpu, monkeypatch):
    (whole, _) = check(llama(), ids(), compare=False, what_if=()).rows
    monkeypatch.setattr(looking, "ROWS", HEADS * 7)
    (some, _) = check(llama(), ids(), compare=False, what_if=()).rows
    assert (whole.label, some.label, some.total_rows, len(some.rows)) == ("exact", "sampled", TOKENS, 7)
    torch.testing.assert_close(some.entropy, whole.entropy[:, :, some.rows], rtol=0, atol=0)


@pytest.mark.parametrize("padded_in", ["batch", "mask"])
def test_padding_is_left_out_though_it_is_found_later(as_on_a_gpu, monkeypatch, padded_in):
    """The mask reaches the kernel in one model; in the other only the batch has it."""
    given = ids(2) | {"attention_mask": torch.ones(2, TOKENS, dtype=torch.long)}
    given["attention_mask"][1, 40:] = 0
    model = llama()
    if padded_in == "batch":
        forward = model.model.forward
        model.model.forward = lambda *args, **kwargs: forward(*args, **(kwargs | {"attention_mask": None}))
    found = check(model, given, compare=False, what_if=["x2"])
    monkeypatch.undo()
    expected = check(model, given, compare=False, what_if=["x2"])
    assert found.layers[0].head_stats[0].rows == TOKENS + 40
    assert heads_of(found) == heads_of(expected)
    assert found.layers[0].curve.rows < 2 * KEPT


def test_slices_of_one_call_are_put_together_as_before(as_on_a_gpu, monkeypatch):
    class Blocks(Attention):
        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
            attend = torch.nn.functional.scaled_dot_product_attention
            return self.o_proj(torch.cat([attend(part, k, v) for part in q.split(9, 2)], 2).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = trained(Model(Blocks()))
    found = check(model, batch(), compare=False)
    monkeypatch.undo()
    assert heads_of(found) == heads_of(check(model, batch(), compare=False))


@pytest.mark.parametrize("options", [{"what_if": (), "detail": False}, {}], ids=["look", "with what-if and curves"])
def test_nothing_is_read_layer_by_layer(as_on_a_gpu, monkeypatch, options):
    """However many layers there are, all numbers come to the host in a few transfers."""
    found = []
    for layers in (2, 6):
        model = llama(layers)
        with monkeypatch.context() as patched:
            reads = counted(patched)
            check(model, ids(), compare=False, **options)
        found.append(reads)
    assert found[0] == found[1]
    assert sum(found[0].values()) <= 10, found[0]


def test_reads_are_counted(monkeypatch):
    with monkeypatch.context() as patched:
        reads = counted(patched)
        rows.quantile(torch.randn(9), 0.5)
    assert reads == {"checkup/rows.py:quantile": 1}


def test_when_memory_runs_out_a_smaller_sample_is_taken(monkeypatch):
    real = rows.statistics_at

    def statistics_at(problem, scales, chosen=None):
        if (problem.q.shape[2] if chosen is None else len(chosen)) > 8:
            raise torch.OutOfMemoryError("no room")
        return real(problem, scales, chosen)

    monkeypatch.setattr(rows, "statistics_at", statistics_at)
    report = check(llama(1), ids(), what_if=["x2"])
    assert report.layers[0].head_stats[0].rows == 7
    assert report.layers[0].head_stats[0].label == "sampled"
    said = [text.en for text in report.record.remarks]
    assert said[0] == (
        "Memory ran out while measuring model.layers.0.self_attn; 7 of 60 rows of each head were taken instead."
    )
    assert [text.split(";")[0] for text in said[1:]] == [
        "Memory ran out while replaying model.layers.0.self_attn under other rules"
    ]
    assert report.layers[0].curve.rows == 7


def test_implementations_are_compared_on_a_piece(monkeypatch):
    monkeypatch.setattr(implementations, "ENTRIES", HEADS * TOKENS * TOKENS - 1)
    monkeypatch.setattr("isotherm.checkup.piece.OF_A_PIECE", HEADS * 30 * 30)
    model = llama()
    (comparison,) = check(model, ids(), what_if=()).record.comparisons
    assert comparison.agree
    assert comparison.on.en == "the first 30 of 60 tokens"
    monkeypatch.undo()
    (comparison,) = check(model, ids(), what_if=()).record.comparisons
    assert comparison.on is None


def test_when_memory_runs_out_the_piece_is_smaller(monkeypatch):
    real = transformers.models.llama.modeling_llama.eager_attention_forward

    def eager(module, q, *args, **kwargs):
        if q.shape[2] > 25:
            raise torch.OutOfMemoryError("no room")
        return real(module, q, *args, **kwargs)

    monkeypatch.setattr(transformers.models.llama.modeling_llama, "eager_attention_forward", eager)
    model = llama()
    (comparison,) = check(model, ids(2), what_if=()).record.comparisons
    assert comparison.agree
    assert comparison.on.en == "the first 21 of 60 tokens of the first sequence"


def captured(shape, keys=None):
    """A capture of a call with so many entries, as far as a piece needs it."""
    sequences, heads, queries = shape
    problem = isotherm.ops.Problem(
        *(torch.zeros(sequences, heads, n, 1) for n in (queries, keys or queries, keys or queries)), None
    )
    return type("Captured", (), {"problem": problem, "queries": queries})


MOST = 4 * 10 * 10


@pytest.mark.parametrize(
    ("given", "sequences", "cut", "words"),
    [
        ({"input_ids": torch.zeros(1, 10).long()}, 1, (1, 10), None),
        ({"input_ids": torch.zeros(1, 40).long()}, 1, (1, 10), "the first 10 of 40 tokens"),
        ({"input_ids": torch.zeros(3, 10).long()}, 3, (1, 10), "the first sequence"),
        ({"input_ids": torch.zeros(2, 40).long()}, 2, (1, 10), "the first 10 of 40 tokens of the first sequence"),
        (torch.zeros(1, 40).long(), 1, (1, 10), "the first 10 of 40 tokens"),
        ([torch.zeros(1, 40).long(), torch.zeros(1, 40, 7)], 1, (1, 10), "the first 10 of 40 tokens"),
        ({"x": torch.zeros(3, 1, 8, 8)}, 3, None, None),
        ({"input_ids": torch.zeros(1, 40).long(), "mask": torch.zeros(1, 1, 40, 40)}, 1, None, None),
    ],
)
def test_a_piece_of_a_batch(given, sequences, cut, words):
    first = (
        given if isinstance(given, torch.Tensor) else next(iter(given.values() if isinstance(given, dict) else given))
    )
    tokens = first.shape[1] if first.dim() == 2 else 40
    piece = piece_of(given, [captured((sequences, 4, tokens))], MOST)
    if cut is None:
        assert piece is None
        return
    assert (None if piece.on is None else piece.on.en) == words
    values = [piece.batch] if isinstance(piece.batch, torch.Tensor) else piece.batch
    for value in values.values() if isinstance(values, dict) else values:
        assert value.shape[:2] == cut


def test_a_sequence_that_begins_with_padding_is_cut_at_its_end():
    mask = torch.ones(1, 40).long()
    mask[0, :30] = 0
    given = {"input_ids": torch.arange(40)[None], "attention_mask": mask, "positions": torch.arange(40), "n": 3}
    piece = piece_of(given, [captured((1, 4, 40))], MOST)
    assert piece.on.en == "the last 10 of 40 tokens"
    assert piece.batch["input_ids"].tolist() == [list(range(30, 40))]
    assert piece.batch["positions"].tolist() == list(range(30, 40))
    assert piece.batch["n"] == 3


def test_nothing_of_a_check_stays_in_memory():
    """Not even until Python collects cycles: q and k of long inputs would fill a GPU."""
    model = llama()
    gc.collect()
    gc.disable()
    try:
        check(model, ids())
        left = [one for one in gc.get_objects() if type(one) in (Capture, RowStats)]
    finally:
        gc.enable()
    assert left == []


def test_a_forward_that_does_not_fit_is_one_sentence():
    model = llama()
    model.model.layers[1].mlp.forward = lambda _: (_ for _ in ()).throw(torch.OutOfMemoryError("no room"))
    with pytest.raises(isotherm.errors.ArgumentError, match="fits in memory"):
        check(model, ids())
