"""Small tables that come to the host together."""

import torch

from isotherm.checkup.fetch import by_shape, fetched


def test_large_whole_numbers_beside_single_precision_stay_whole():
    counts, medians = torch.tensor([2**24 + 1, 3]), torch.tensor([[0.1], [0.2]])
    first, second, third = fetched([counts, medians, torch.tensor(True)])
    assert first.tolist() == [2**24 + 1, 3]
    assert torch.equal(second, medians.double())
    assert third.tolist() == 1.0


def test_tables_of_one_precision_come_as_they_are():
    tables = [torch.randn(3, 2), torch.randn(0), torch.randn(())]
    found = fetched(tables)
    assert [one.shape for one in found] == [one.shape for one in tables]
    assert all(torch.equal(one, other.double()) for one, other in zip(found, tables, strict=True))


def test_tensors_are_put_together_by_shape_and_type():
    tensors = [torch.ones(2), torch.zeros(3), torch.zeros(2), torch.zeros(2).double()]
    found = by_shape(tensors)
    assert [places for places, _ in found] == [[0, 2], [1], [3]]
    assert found[0][1].tolist() == [[1, 1], [0, 0]]
