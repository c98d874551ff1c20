"""Tiles small enough that small problems cross every border."""

import pytest


@pytest.fixture(params=[(512, 1 << 20, 4), (4, 64, 2)], ids=["one tile", "many tiles"])
def tile_size(request, monkeypatch):
    """Tiles of 4 keys make even small problems cross every border."""
    for module in ("tiles", "blockwise"):
        monkeypatch.setattr(f"isotherm.ops.{module}.KEYS", request.param[0])
    monkeypatch.setattr("isotherm.ops.tiles.TILE", request.param[1])
    monkeypatch.setattr("isotherm.ops.tiles.HEADS", request.param[2])
    monkeypatch.setattr("isotherm.ops.tiles.LEAST_HEIGHT", 3)
