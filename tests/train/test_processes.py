"""Several processes by `torchrun`, as a person runs them: they join once, and one of them speaks."""

import os
import subprocess
import sys

import pytest

from isotherm.errors import IsothermError
from isotherm.language import Text
from isotherm.train.processes import join
from tests.train.corpora import SMALL, write_tsv

TOML = (
    SMALL.format(path="pairs.tsv")
    + """
[run]
steps = 3
batch_tokens = 160
samples = 5
device = "cpu"
"""
)


def test_alone_a_failure_is_one_s_own():
    failure = IsothermError(Text("no", "不"))
    with pytest.raises(IsothermError) as caught, join("cpu").together():
        raise failure
    assert caught.value is failure


@pytest.mark.slow
def test_rules_side_by_side_in_two_processes_and_one_says_what_is_wrong(tmp_path):
    write_tsv(tmp_path / "pairs.tsv")
    (tmp_path / "small.toml").write_text(TOML)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "isotherm", "train", "small.toml", "--rules", "1/sqrt(d),none", "--out", "both"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def call():
        return subprocess.run(
            [*torchrun, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    done = call()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both/curves.svg").exists()
    again = call()
    assert again.returncode != 0
    assert again.stderr.count("isotherm: both/1-sqrt-d: holds a run already") == 1, again.stderr
    assert again.stderr.count("Traceback") == 1, again.stderr  # torchrun's own
