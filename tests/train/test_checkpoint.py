"""Checkpoints: whole or not there."""

import json
import re

import pytest
import torch
from safetensors import SafetensorError

from isotherm.errors import InputError, IsothermError
from isotherm.train.checkpoint import Checkpoint, Notes, latest, save


def write(folder, *steps):
    for step in steps:
        tensors = {"weight": torch.full((3, 5), float(step)), "random": torch.arange(7, dtype=torch.uint8)}
        save(folder, Checkpoint(step, tensors, Notes(losses=(0.1, 1 / 3))))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back_exactly(tmp_path):
    write(tmp_path, 3)
    found = latest(tmp_path)
    assert (found.step, found.notes) == (3, Notes(losses=(0.1, 1 / 3)))
    assert torch.equal(found.tensors["weight"], torch.full((3, 5), 3.0))
    assert found.tensors["random"].dtype == torch.uint8


def test_the_last_two_are_kept_and_what_was_half_written_goes(tmp_path):
    (tmp_path / ".step-00000002.safetensors.part").write_bytes(b"half")
    write(tmp_path, 1, 2, 10)
    assert names(tmp_path) == [
        "step-00000002.json",
        "step-00000002.safetensors",
        "step-00000010.json",
        "step-00000010.safetensors",
    ]
    assert latest(tmp_path).step == 10


def test_nothing_saved_yet(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "none") is None


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "a flipped bit": (lambda tensors, manifest: flip(tensors), "damaged"),
    "truncated": (lambda tensors, manifest: tensors.write_bytes(tensors.read_bytes()[:-9]), "damaged"),
    "empty": (lambda tensors, manifest: tensors.write_bytes(b""), "damaged"),
    "gone": (lambda tensors, manifest: tensors.unlink(), "not there any more"),
    "no manifest": (lambda tensors, manifest: manifest.unlink(), "not finished"),
    "half a manifest": (lambda tensors, manifest: manifest.write_text('{"schema": "iso'), "json: not JSON"),
    "a manifest of nothing": (lambda tensors, manifest: manifest.write_text("{}"), "json: schema: expected a value"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_recognised_and_the_one_before_it_used(tmp_path, damage, message):
    write(tmp_path, 5, 9)
    damage(tmp_path / "step-00000009.safetensors", tmp_path / "step-00000009.json")
    said = []
    assert latest(tmp_path, said.append).step == 5
    assert len(said) == 1
    assert message in str(said[0])
    assert re.match(r"step-00000009\.(safetensors|json): ", str(said[0]))
    assert str(said[0]).endswith("the one before it is used")


def test_where_none_is_whole_any_more_nothing_is_thrown_away_in_silence(tmp_path):
    write(tmp_path, 5, 9)
    for step in (5, 9):
        flip(tmp_path / f"step-{step:08d}.safetensors")
    said = []
    with pytest.raises(InputError, match="no checkpoint in it is whole"):
        latest(tmp_path, said.append)
    assert [str(text).endswith("; the one before it is used") for text in said] == [True, False]


def test_only_one_that_was_never_finished_is_none(tmp_path):
    write(tmp_path, 5)
    (tmp_path / "step-00000005.json").unlink()
    said = []
    assert latest(tmp_path, said.append) is None
    assert "not finished" in str(said[0])


def test_a_checkpoint_of_another_version_is_not_passed_over(tmp_path):
    write(tmp_path, 5, 9)
    manifest = tmp_path / "step-00000009.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": "isotherm.checkpoint/9"}))
    with pytest.raises(IsothermError, match=r"schema isotherm\.checkpoint/9; this version reads"):
        latest(tmp_path)


def test_a_disk_that_is_full_leaves_the_one_before(tmp_path, monkeypatch):
    write(tmp_path, 5)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("isotherm.train.checkpoint.os.fsync", full)
        with pytest.raises(IsothermError, match="no space is left on the disk"):
            write(tmp_path, 9)
    assert latest(tmp_path).step == 5
    write(tmp_path, 11)
    assert [name for name in names(tmp_path) if name.endswith(".part")] == []


def test_what_safetensors_says_of_a_full_disk_is_said_too(tmp_path, monkeypatch):
    def full(_, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(IsothermError, match=r"cannot write .*step-00000009\.safetensors: no space is left on the disk"):
        write(tmp_path, 9)
    assert names(tmp_path) == []


def test_whoever_may_read_the_folder_may_read_a_checkpoint(tmp_path):
    tmp_path.chmod(0o750)
    write(tmp_path, 3)
    assert (tmp_path / "step-00000003.safetensors").stat().st_mode & 0o777 == 0o640
