"""A model is checked as it is: in the caller's grad mode, and through whatever is wrapped around it."""

import functools
import os
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.measure import look
from isotherm.checkup.subject import ModelSource, subject_of
from isotherm.cli import run
from isotherm.report import terminal
from tests.checkup.models import Attention, Model, batch
from tests.checkup.test_rows import small_bert

compiled = functools.partial(torch.compile, backend="eager")


class Forces(Model):
    """A force field: its forward differentiates its own energy."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(super().forward(x).square().sum(), x)[0]


class Asks(Model):
    """Remembers the grad mode of its last forward."""

    def forward(self, x):
        self.gradients = torch.is_grad_enabled()
        return super().forward(x)


class TestGradients:
    """The caller's grad mode is the model's."""

    def test_a_forward_that_takes_gradients_runs(self):
        assert len(isotherm.check(Forces(Attention()), batch(), what_if=()).layers) == 1

    def test_on_the_command_line_too(self, capsys):
        code = run(["check", "tests.checkup.test_as_it_is:force_field", "--what-if", ""])
        assert code in (0, 1)
        assert "1 layer ×" in capsys.readouterr().out

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_the_mode_is_kept(self, mode):
        model = Asks(Attention())
        with mode():
            assert len(isotherm.check(model, batch(), what_if=()).layers) == 1
            assert model.gradients is torch.is_grad_enabled()
            assert model.gradients is (mode is torch.enable_grad)

    def test_the_command_line_needs_no_gradients(self, capsys):
        run(["check", "tests.checkup.test_as_it_is:asking", "--what-if", ""])
        capsys.readouterr()
        assert ASKING.gradients is False

    def test_no_graph_stays_alive(self):
        class Saved:
            def __init__(self, tensor):
                self.tensor = tensor.detach()  # with its graph it would hold on to itself

        saved = []

        def pack(tensor):
            saved.append(weakref.ref(kept := Saved(tensor)))
            return kept

        model = Model(Attention(), Attention(fused=False, norm=True), Attention(scale=1.0, early=2.0))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            captures = look(model, batch()).captures
        assert len(captures) == 3
        assert saved
        assert not any(reference() is not None for reference in saved)
        for capture in captures:
            assert not capture.problem.q.requires_grad
            assert not capture.problem.k.requires_grad


ASKING = Asks(Attention())


def asking():
    return ASKING, batch()


def force_field():
    torch.manual_seed(0)
    return Forces(Attention()).eval(), batch()


@pytest.fixture(scope="module")
def group():
    """A process group of one process."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


IDS = torch.arange(12).view(2, 6)


class Adapter(nn.Module):
    """Passes everything on to what it wraps, attributes too, as PEFT does."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


class Holder(nn.Module):
    """Holds the model under a name of its own, as Lightning modules do."""

    def __init__(self, model):
        super().__init__()
        self.net = model

    def forward(self, input_ids):
        return self.net(input_ids)


class Retriever(nn.Module):
    """Two encoders."""

    def __init__(self, one, other):
        super().__init__()
        self.question, self.passage = one, other

    def forward(self, input_ids):
        return self.question(input_ids)[0], self.passage(input_ids)[0]


def compared(model):
    report = isotherm.check(model, {"input_ids": IDS}, what_if=())
    return report, [(*c.implementations, c.agree) for c in report.record.comparisons]


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


class TestWrappers:
    """Wrappers hide neither layers nor implementations."""

    @pytest.mark.parametrize(
        "wrap",
        [nn.DataParallel, Adapter, Holder, lambda model: nn.DataParallel(Holder(Adapter(model))), compiled],
        ids=["DataParallel", "PEFT-like", "Lightning-like", "several", "compiled"],
    )
    def test_the_comparison_is_made_inside(self, transformers, wrap):
        torch.manual_seed(0)
        model = small_bert(transformers)
        plain, _ = compared(model)
        report, pairs = compared(wrap(model))
        assert pairs == [("sdpa", "eager", True)]
        assert report.record.not_compared == ()
        assert model.config._attn_implementation == "sdpa"
        assert [layer.head_stats for layer in report.layers] == [layer.head_stats for layer in plain.layers]
        assert [layer.scale for layer in report.layers] == [layer.scale for layer in plain.layers]

    @pytest.mark.usefixtures("group")
    def test_distributed_data_parallel(self, transformers):
        report, pairs = compared(nn.parallel.DistributedDataParallel(small_bert(transformers)))
        assert pairs == [("sdpa", "eager", True)]
        assert report.record.model.architecture == "DistributedDataParallel(BertModel)"
        assert report.layers[0].name == "module.encoder.layer.0.attention.self"

    @pytest.mark.usefixtures("group")
    def test_fully_sharded_data_parallel(self, transformers):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        model = small_bert(transformers)
        plain, _ = compared(model)
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.encoder.layer:
            fully_shard(layer, mesh=mesh)
        report, pairs = compared(fully_shard(model, mesh=mesh))
        assert pairs == [("sdpa", "eager", True)]
        assert report.record.model.at_initialisation
        assert [layer.head_stats for layer in report.layers] == [layer.head_stats for layer in plain.layers]

    def test_two_encoders_are_switched_together(self, transformers):
        model = Retriever(small_bert(transformers), small_bert(transformers))
        assert compared(model)[1] == [("sdpa", "eager", True)]
        model = Retriever(small_bert(transformers), small_bert(transformers, "eager"))
        assert compared(model)[1] == [("sdpa + eager", "eager", True), ("sdpa + eager", "sdpa", True)]
        assert model.passage.config._attn_implementation == "eager"

    def test_layers_are_named_as_the_model_that_was_passed_names_them(self):
        model = nn.DataParallel(Model(Attention()))
        (layer,) = isotherm.check(model, batch(), what_if=()).layers
        assert layer.name == "module.layers.0"
        assert model.get_submodule(layer.name) is model.module.layers[0]


class Choosy(Model):
    """A model with a choice of implementations that does not let itself be switched."""

    def __init__(self, what):
        super().__init__(Attention())
        self.config, self.what = SimpleNamespace(_attn_implementation="eager"), what

    def set_attn_implementation(self, name):
        if self.what == "refuses":
            raise ValueError("no such attention here")
        if self.what != "stays":
            self.config._attn_implementation = name

    def forward(self, x):
        if self.config._attn_implementation == "sdpa" and self.what == "raises":
            raise RuntimeError("not on this machine")
        if self.config._attn_implementation == "sdpa" and self.what == "is blind":
            return x
        return super().forward(x)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("refuses", "Choosy refuses it (ValueError: no such attention here)"),
        ("stays", "Choosy stays with eager"),
        ("raises", "the model did not run under it (RuntimeError: not on this machine)"),
        ("is blind", "no attention was seen under it"),
    ],
)
def test_a_comparison_is_never_skipped_in_silence(what, why, capsys):
    report = isotherm.check(model := Choosy(what), batch(), what_if=())
    assert report.record.comparisons == ()
    assert [(one.implementation, one.why.en) for one in report.record.not_compared] == [("sdpa", why)]
    assert model.config._attn_implementation == "eager"
    assert why in report.to_markdown("en").replace("\\", "")
    show(report)
    assert "sdpa was not compared" in capsys.readouterr().out


def test_a_model_without_a_choice_has_nothing_to_compare():
    report = isotherm.check(Model(Attention()), batch(), what_if=())
    assert (report.record.comparisons, report.record.not_compared) == ((), ())


def show(report):
    from rich.console import Console

    terminal.show(report.record, Console(width=200), "en")


def test_statistics_that_are_the_same_are_called_so(capsys):
    class Twice(Choosy):
        def forward(self, x):
            return Model.forward(self, x)

    show(isotherm.check(Twice("switches"), batch(), what_if=()))
    out = capsys.readouterr().out
    assert "eager and sdpa agree: every statistic is the same" in out
    assert "none differs" not in out


class TestCompiled:
    """A compiled model is checked uncompiled, and the report says so."""

    @staticmethod
    def method(model):
        model.compile(backend="eager")
        return model

    @staticmethod
    def part(model):
        model.layers[0] = compiled(model.layers[0])
        return model

    @staticmethod
    def function(model):
        model.layers[0].forward = compiled(model.layers[0].forward)
        return model

    @pytest.mark.parametrize("wrap", [compiled, method, part, function], ids=["whole", "method", "part", "forward"])
    def test_is_reported(self, wrap, capsys):
        report = isotherm.check(wrap(Model(Attention())), batch(), what_if=())
        assert report.record.model.compiled
        assert report.record.model.architecture == "Model"
        assert "compiled; checked uncompiled" in report.to_markdown("en")
        assert "已编译；以未编译方式检查" in report.to_markdown("zh")
        show(report)
        assert "compiled; checked uncompiled" in capsys.readouterr().out

    def test_others_are_not(self):
        report = isotherm.check(Model(Attention()), batch(), what_if=())
        assert not report.record.model.compiled
        assert "compiled" not in report.to_markdown("en")


def test_peft(transformers):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(small_bert(transformers), peft.LoraConfig(target_modules=["query"], r=2))
    report, pairs = compared(model)
    assert pairs == [("sdpa", "eager", True)]
    assert report.layers[0].scale.agrees
    assert report.record.model.architecture == "PeftModel(LoraModel(BertModel))"


def test_lightning(transformers):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = small_bert(transformers)

        def forward(self, input_ids):
            return self.net(input_ids)

    assert compared(Module())[1] == [("sdpa", "eager", True)]


def test_offloading_by_accelerate(transformers):
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(small_bert(transformers), torch.device("cpu"))
    report, pairs = compared(model)
    assert pairs == [("sdpa", "eager", True)]
    assert report.record.model.at_initialisation


class Gain(nn.Module):
    """A norm of one's own."""

    def __init__(self, name, value):
        super().__init__()
        self.register_parameter(name, nn.Parameter(value))


class OwnNorm(Gain):
    """Its class is named after a norm."""


OFFLOADED = OwnNorm("g", torch.ones(3, device="meta"))
OFFLOADED._hf_hook = SimpleNamespace(weights_map={"g": torch.ones(3)})
MOVED = OwnNorm("g", torch.ones(3, device="meta"))
MOVED._hf_hook = SimpleNamespace(hooks=[SimpleNamespace(weights_map={"g": torch.full((3,), 1.5)})])
COUNTED = nn.BatchNorm1d(3)
COUNTED.num_batches_tracked += 1


@pytest.mark.parametrize(
    ("norm", "untrained"),
    [
        pytest.param(OwnNorm("g", torch.ones(3)), True, id="g"),
        pytest.param(OwnNorm("g", torch.ones(3) * 1.2), False, id="g that has moved"),
        pytest.param(OwnNorm("gamma", torch.zeros(4, 1, 3)), True, id="gamma for each head"),
        pytest.param(OwnNorm("scale", torch.ones(1)), True, id="scale"),
        pytest.param(OwnNorm("anything", torch.ones(3)), True, id="another name"),
        pytest.param(OwnNorm("bias", torch.ones(3)), False, id="only a bias"),
        pytest.param(OwnNorm("weight", torch.ones(3, 3)), False, id="a matrix is no gain"),
        pytest.param(nn.LayerNorm(3, elementwise_affine=False), False, id="no gain"),
        pytest.param(OwnNorm("g", torch.ones(3, device="meta")), False, id="not to be read"),
        pytest.param(OFFLOADED, True, id="offloaded"),
        pytest.param(MOVED, False, id="offloaded and moved"),
        pytest.param(nn.BatchNorm1d(3), True, id="batch norm"),
        pytest.param(COUNTED, False, id="batch norm that has seen batches"),
        pytest.param(Gain("g", torch.ones(3)), False, id="no norm"),
    ],
)
def test_at_initialisation(norm, untrained):
    model = nn.Sequential(nn.Linear(3, 3), norm)
    assert subject_of(model, torch.zeros(1, 2, 3), ModelSource("", "")).at_initialisation is untrained


def test_a_probe_in_the_fused_encoder_path_follows_the_callers_mode():
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    with torch.no_grad():
        fused = isotherm.check(layer, x, what_if=()).layers[0].head_stats
    plain = isotherm.check(layer, x, what_if=()).layers[0].head_stats
    assert [head.rows for head in fused] == [head.rows for head in plain]
    assert [head.entropy.mean for head in fused] == pytest.approx([head.entropy.mean for head in plain])
