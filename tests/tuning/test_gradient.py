import pytest
import torch

from isotherm.checkup.measure import look
from isotherm.tuning.gradient import slopes
from isotherm.tuning.knobs import Knobs
from isotherm.tuning.losses import make_task
from tests.tuning.copiers import HALF, copier, loaded, material

STEP = 1e-3


@pytest.fixture(scope="module")
def tuned():
    """A model in float64, its task, its knobs, and the gradient."""
    model = copier().double()
    task = make_task(loaded(model), material(40), "next", 2 * HALF, 40, HALF)
    with torch.no_grad():
        captures = look(model, task.batch(model)).captures
    with Knobs(model, captures, task.batch(model), ()) as knobs:
        yield model, task, knobs, slopes(model, knobs, task)


def loss(model, task) -> float:
    with torch.no_grad():
        return float(torch.cat([task.losses(model, group).double() for group in task.groups]).mean())


def test_it_equals_finite_differences_for_every_head(tuned):
    model, task, knobs, found = tuned
    record = found.record(task)
    for name, values in zip(record.layers, record.gradient, strict=True):
        for head, value in enumerate(values):
            sides = []
            for x in (STEP, -STEP):
                knobs.turn(x, name, head)
                sides.append(loss(model, task))
            knobs.turn(0.0, name, head)
            assert value == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=1e-3, abs=1e-7)
    assert max(abs(value) for row in record.gradient for value in row) > 1e-3


def test_the_layers_are_the_sums_of_their_heads(tuned):
    _, task, _, found = tuned
    record = found.record(task)
    for (name, _), (mean, _) in found.by_layer().items():
        assert mean == pytest.approx(sum(record.gradient[record.layers.index(name)]))
    assert len(found.by_head()) == sum(map(len, record.gradient))


def test_its_loss_is_that_of_the_model_as_it_is(tuned):
    model, task, _, found = tuned
    assert found.record(task).loss == pytest.approx(loss(model, task))


def test_the_margin_is_students_over_the_groups(tuned):
    _, task, _, found = tuned
    one = found.values[:, 0]
    assert len(one) == 8
    expected = 2.3646 * one.std(ddof=1) / 8**0.5
    assert found.record(task).margin[0][0] == pytest.approx(expected, rel=1e-3)


def test_weights_get_no_gradient_and_the_model_is_left_as_it_was():
    model = copier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.arange(1, 2 * HALF).view(1, -1)
    plain = model(ids)
    task = make_task(loaded(model), material(8), "next", 2 * HALF, 8, None)
    with torch.no_grad():
        captures = look(model, task.batch(model)).captures
    with Knobs(model, captures, task.batch(model), ()) as knobs:
        slopes(model, knobs, task)
        knobs.turn(0.5)
        assert not torch.equal(model(ids), plain)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model(ids), plain)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
