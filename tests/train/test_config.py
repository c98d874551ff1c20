"""Configurations: strict, and explained."""

import json
from dataclasses import fields, replace

import pytest

from isotherm.errors import ArgumentError, InputError
from isotherm.train.config import Config, DataSettings, ModelSettings, OptimizerSettings, RunSettings, changed
from isotherm.train.config_file import from_plain, load, to_plain
from isotherm.train.learner import rate

GOOD = '[data]\npath = "x.tsv"\n'


def read(tmp_path, text):
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    return load(tmp_path / "run.toml")


def test_what_is_not_given_has_its_default(tmp_path):
    config = read(tmp_path, GOOD + "[optimizer]\nlr = 1\n")
    assert config == Config(DataSettings(path="x.tsv"), ModelSettings(), OptimizerSettings(lr=1.0), RunSettings())
    assert isinstance(config.optimizer.lr, float)


def test_a_configuration_survives_json(tmp_path):
    config = read(tmp_path, GOOD + 'columns = ["en", "zh"]\n[model]\nhead_dim = 7\n')
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


MISTAKES = {
    "section": ("[dta]\n", r"dta: expected a known key \(did you mean data\?\)"),
    "key": (GOOD + "[run]\nstps = 3\n", r"run.stps: expected a known key \(did you mean steps\?\), got 'stps'"),
    "foreign key": (GOOD + "[run]\nzzz = 3\n", "run.zzz: expected one of steps, batch_tokens"),
    "no table": ("data = 3\n", "data: expected a table, got 3"),
    "text for a number": (GOOD + '[run]\nsteps = "3"\n', "run.steps: expected a whole number, got '3'"),
    "a fraction": (GOOD + "[run]\nsteps = 2.5\n", "run.steps: expected a whole number, got 2.5"),
    "yes for a number": (GOOD + "[run]\nsteps = true\n", "run.steps: expected a whole number, got True"),
    "number for yes": (GOOD + "[run]\ncompile = 1\n", "run.compile: expected true or false, got 1"),
    "number for text": ("[data]\npath = 3\n", "data.path: expected text in quotes, got 3"),
    "list": (GOOD + 'columns = "en"\n', "data.columns: expected a list of texts, got 'en'"),
    "choice": (
        GOOD + '[optimizer]\nschedule = "cosin"\n',
        r"schedule: expected noam \| cosine \| constant \(did you mean cosine\?\), got 'cosin'",
    ),
    "too small": (GOOD + "[run]\nsteps = 0\n", "run.steps: expected 1 to 1000000000, got 0"),
    "too large": (GOOD + "[model]\ndropout = 1.5\n", "model.dropout: expected 0.0 to 0.9, got 1.5"),
    "not a number": (GOOD + "[optimizer]\nlr = nan\n", "optimizer.lr: expected a number within range, got nan"),
    "width": (GOOD + "[model]\nwidth = 10\n", "model.width: expected a multiple of model.heads, or a model.head_dim"),
    "rule": (GOOD + '[model]\nrule = "logn"\n', r"model\.rule: expected a rule of the atlas \(nearest: log-n"),
    "no path": ("[model]\n", "data.path: expected a value for data.kind = tsv, got ''"),
    "no packages": ('[data]\nkind = "gettext"\n', "data.packages: expected a value for data.kind = gettext"),
    "one column": (GOOD + 'columns = ["en"]\n', "data.columns: expected two names"),
    "nothing held out": (GOOD + "held_out = 0\n", "data.held_out: expected above 0"),
    "decoder": (
        GOOD + '[model]\nkind = "decoder"\n',
        "model.kind: expected transformer or recurrent for parallel text",
    ),
    "text": (GOOD + 'kind = "text"\n', "model.kind: expected decoder or bert for plain text"),
    "bert": (
        '[data]\nkind = "copy"\n[model]\nkind = "bert"\n',
        "model.kind: expected transformer, recurrent or decoder",
    ),
    "a memory without end": (GOOD + "[optimizer]\nbeta1 = 1.0\n", "optimizer.beta1: expected 0.0 to 0.9999, got 1.0"),
    "nor of squares": (GOOD + "[optimizer]\nbeta2 = 1.0\n", "optimizer.beta2: expected 0.0 to 0.9999, got 1.0"),
    "a seed past 64 bits": (GOOD + "[run]\nseed = 99999999999999999999\n", "run.seed: expected 0 to "),
    "layers without end": (
        GOOD + "[model]\nlayers = 100000000000000000000\n",
        r"model\.layers: expected 1 to 1024, got 10\^20",
    ),
    "a width of ten thousand digits": (
        GOOD + f"[model]\nwidth = 0x{'f' * 9000}\n",
        r"model\.width: expected 1 to 131072, got 10\^",
    ),
    "a choice of ten thousand digits": (
        GOOD + f"[model]\nnorm = 0x{'f' * 9000}\n",
        r"model\.norm: expected pre \| post, got 10\^",
    ),
    "a name of a million letters": (GOOD + f"[model]\n{'w' * 10**6} = 1\n", r"model\.w{100}: expected one of kind"),
    "a number of ten thousand digits": (GOOD + f"[model]\nwidth = {'9' * 9000}\n", r"not TOML \("),
    "words without end": (
        "[data]\nkind = 'copy'\nvocabulary = 100000000000000000000\n",
        r"data\.vocabulary: expected 6 to ",
    ),
    "a large float": (GOOD + "[run]\nsteps = 1e20\n", r"run\.steps: expected a whole number, got 1e\+20"),
    "an infinite rate": (GOOD + "[optimizer]\nlr = inf\n", r"optimizer\.lr: expected a number within range, got inf"),
    "nested without end": (f"data = {'[' * 99999}", r"not TOML \("),
    "too many parameters": (
        GOOD + "[model]\nwidth = 131072\nlayers = 1024\n",
        r"model: expected at most 1e\+11 parameters in all, got",
    ),
    "no threads": (GOOD + "[run]\nthreads = 0\n", r"run\.threads: expected 1 to 256, got 0"),
    "a key of another kind": (
        'data = {kind = "files", source = "a", target = "b", path = "x"}\n',
        "data.path: expected nothing for data.kind = files, got 'x'",
    ),
    "score": (
        GOOD + '[model]\nkind = "recurrent"\nrule = "aditive"\n',
        r"model\.rule: expected additive \| .* \(did you mean additive\?\) for model.kind = recurrent, got 'aditive'",
    ),
    "not TOML": ("[data\n", r"not TOML \("),
    "empty": ("", "the file is empty"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_with_the_file(tmp_path, text, message):
    with pytest.raises(InputError, match=r"run\.toml: .*" + message):
        read(tmp_path, text)


def test_a_recurrent_model_has_a_score_for_a_rule(tmp_path):
    recurrent = GOOD + '[model]\nkind = "recurrent"\n'
    assert read(tmp_path, recurrent).model.rule == "scaled-dot"
    assert read(tmp_path, recurrent + 'rule = "dot"\n').model.rule == "dot"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load(tmp_path / "none.toml")


def test_only_keys_that_change_the_numbers_count_as_changed():
    config = Config(DataSettings(path="x"), ModelSettings(), OptimizerSettings(), RunSettings())
    longer = replace(config, run=replace(config.run, steps=9, accumulate=2, log_every=1, samples=0))
    assert changed(config, longer) == []
    other = replace(longer, model=replace(config.model, rule="none"), run=replace(longer.run, seed=1))
    assert changed(config, other) == ["model.rule", "run.seed"]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("noam", {1: 0.1, 10: 1.0, 40: 0.5, 1000: 0.1}),
        ("constant", {1: 0.1, 10: 1.0, 1000: 1.0}),
        ("cosine", {1: 0.1, 10: 1.0, 505: 0.55, 1000: 0.1}),
    ],
)
def test_rates(schedule, wanted):
    settings = OptimizerSettings(lr=1.0, warmup=10, schedule=schedule)
    for step, value in wanted.items():
        assert rate(settings, step, 1000) == pytest.approx(value)


@pytest.mark.parametrize("schedule", ["noam", "constant", "cosine"])
def test_no_warm_up_is_no_division_by_zero(schedule):
    settings = OptimizerSettings(lr=1.0, warmup=0, schedule=schedule)
    assert rate(settings, 1, 1) == pytest.approx(1.0)


def test_bounds_hold_for_defaults():
    for table in (DataSettings, ModelSettings, OptimizerSettings, RunSettings):
        given = {item.name: item.default for item in fields(table) if item.default is not None}
        if table is DataSettings:
            given["path"] = "x"
        name = {DataSettings: "data", ModelSettings: "model", OptimizerSettings: "optimizer", RunSettings: "run"}[table]
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        assert getattr(from_plain({"data": {"path": "x"}, name: plain}), name) == table(**given)


def test_every_number_has_an_upper_bound():
    for table in (DataSettings, ModelSettings, OptimizerSettings, RunSettings):
        for item in fields(table):
            if type(item.default) in (int, float) or item.name in ("head_dim", "hidden"):
                assert item.metadata["least"] <= (item.default or 1) <= item.metadata["most"], item.name


def test_an_error_of_a_plain_table_names_the_key():
    with pytest.raises(ArgumentError) as caught:
        from_plain({"run": {"steps": -1}})
    assert caught.value.argument == "run.steps"
