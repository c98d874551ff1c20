"""Scores, gates, curves and the words said meanwhile."""

import io
import re
from xml.etree import ElementTree

import pytest
import torch

from isotherm.language import Text
from isotherm.models import Shape, Transformer
from isotherm.report.draw import svg, terminal
from isotherm.scale import Fixed, InverseSqrt, NoScale
from isotherm.train import progress
from isotherm.train.batches import Batch
from isotherm.train.compare_rules import LOSS, TITLE, figure
from isotherm.train.evaluate import gates, score
from isotherm.train.progress import Reporter
from isotherm.train.tokens import PAD

CPU = torch.device("cpu")


def test_scores_of_the_reference_itself_and_of_nothing_like_it():
    right = ["添加一个新的页面", "删除这个很旧的文件"]
    best = score(right, right, "zh_Hans")
    assert (best.bleu, best.chrf) == (pytest.approx(100), pytest.approx(100))
    assert "tok:zh" in best.bleu_signature
    assert "tok:13a" in score(["a b"], ["a b"], "fr").bleu_signature
    worst = score(["一二三四", "五六七八"], right, "zh_Hans")
    assert worst.bleu < 5


def batch(rows: int = 5, length: int = 11) -> Batch:
    tokens = torch.randint(4, 17, (rows, length), generator=torch.Generator().manual_seed(0))
    return Batch((tokens, tokens[:, :7]), tokens[:, :7])


def see(rule):
    torch.manual_seed(0)
    return gates(Transformer(Shape(vocabulary=17, width=64, heads=1, layers=2, head_dim=256), rule), batch(), CPU)


def test_gates_are_open_with_the_scale_and_shut_without():
    scaled, unscaled, flat = see(InverseSqrt()), see(NoScale()), see(Fixed(1e-9))
    assert scaled.p10 > 0.4
    assert unscaled.p10 < 0.02
    assert unscaled.max_logit > 5 * scaled.max_logit
    # A flat softmax over n keys has gate 1 − 1/n; self-attention of the decoder sees 2 … 7, the others 11.
    assert flat.p50 == pytest.approx(1 - 1 / 11, abs=1e-6)
    assert flat.p10 == pytest.approx(1 - 1 / 5, abs=0.1)


def test_gates_look_at_whole_examples_where_there_are_any():
    whole = batch()
    padded = whole.inputs[0].clone()
    padded[1:, 5:] = PAD
    torch.manual_seed(0)
    model = Transformer(Shape(vocabulary=17, width=16, heads=2, layers=1))
    alone = gates(model, Batch(tuple(tensor[:1] for tensor in whole.inputs), whole.labels[:1]), CPU)
    assert gates(model, Batch((padded, whole.inputs[1]), whole.labels), CPU) == alone


def test_a_model_without_attention_has_no_gates():
    assert gates(torch.nn.Embedding(17, 3), Batch((batch().inputs[0],), batch().labels), CPU) is None


CURVES = {"1/sqrt(d)": ((0, 6.0), (50, 4.0), (100, 2.0)), "a <b>": ((0, 6.0), (100, 5.0))}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_learning_curves_on_a_terminal_have_names_numbers_and_both_axes(language):
    lines = [line.plain for line in terminal.draw(figure(CURVES), language, 60)]
    assert lines[0].strip() == LOSS.to(language)
    assert lines[-3].strip() == {"en": "step", "zh": "步数"}[language]
    assert lines[-4].split() == ["0", "20", "40", "60", "80", "100"]
    assert [line.split("⠒⠒⠒ ")[1].split(" (")[0] for line in lines[-2:]] == ["1/sqrt(d)", "a <b>"]
    plot = [line.split("│")[-1].split("┤")[-1] for line in lines[1:-5]]
    ends = [next(row for row, text in enumerate(plot) if text.rstrip().endswith(sign)) for sign in "12"]
    assert ends[0] > ends[1], "the first curve ends below the second"


def test_one_point_and_a_flat_line_are_drawn_too():
    for points in (((7, 1.0),), ((1, 3.0), (9, 3.0))):
        only = figure({"x": points})
        assert any("1" in line.plain for line in terminal.draw(only, "en", 60))
        assert "<circle" in svg.draw(only, "en")


def test_no_curve_is_lost_where_there_are_more_than_colours():
    many = figure({f"rule {n}": ((0, 1.0), (9, float(n))) for n in range(9)})
    shown = "\n".join(line.plain for line in terminal.draw(many, "en", 60))
    drawn = svg.draw(many, "en")
    assert all(line.name.en in shown and line.name.en in drawn for line in many.lines)
    assert len(set(re.findall(r'd="M[^"]*" class="c\d stroke curve"', drawn))) == 9 + 8


def test_the_picture_of_learning_is_whole_and_its_points_are_the_curve_s():
    root = ElementTree.fromstring(svg.sheet([figure(CURVES)], TITLE, "en"))
    paths = [node.get("d") for node in root.findall(".//{*}path") if "curve" in (node.get("class") or "")][:2]
    points = [[tuple(map(float, pair.split())) for pair in path[1:].split("L")] for path in paths]
    assert [len(line) for line in points] == [3, 2]
    (x0, y0), (x1, y1), (x2, y2) = points[0]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    texts = {text.text for text in root.findall(".//{*}text")}
    assert {TITLE.en, LOSS.en, "step", "1/sqrt(d)", "a <b>", "2", "6", "0", "100"} <= texts


def test_in_a_log_lines_come_now_and_then_and_say_what_is_left(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Reporter(100) as reporter:
        clock[0] += 5.0  # reading and such
        reporter.begin(50)
        for step in range(55, 81, 5):
            clock[0] += 5.0
            reporter.trained(step, 2.0, 1234.0)
        reporter.measured(80, 3.0, 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "step 55/100  loss 2.000  1,234 tokens/s  00:00:45 left",
        "step 65/100  loss 2.000  1,234 tokens/s  00:00:35 left",
        "step 75/100  loss 2.000  1,234 tokens/s  00:00:25 left",
        "step 80  held-out loss 3.000  median gate 0.5",
    ]


def test_on_a_terminal_the_line_moves(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Reporter(10, title="none") as reporter:
        reporter.trained(5, 2.0, 99.0)
        reporter.say(Text("hello", "你好"))
    shown = screen.getvalue()
    assert "5/10" in shown
    assert "loss 2.000  99 tokens/s" in shown
    assert "hello" in shown


def test_the_quiet_say_nothing(capsys):
    with Reporter(10, quiet=True) as reporter:
        reporter.say(Text("hello", "你好"))
        reporter.measured(1, 2.0, None)
    assert capsys.readouterr() == ("", "")
