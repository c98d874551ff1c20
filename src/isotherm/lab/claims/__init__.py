"""Every claim in the order a reader meets it, by topic; each is one folder here, loaded when it is run.

A folder has `experiment.py`, what is measured, and `en.md` and `zh.md`, what is said (`lab/content.py` describes them). An
experiment needs torch; titles and recorded verdicts are read without running it, so that listing them is quick.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from isotherm.errors import IsothermError
from isotherm.language import LANGUAGES, Text
from isotherm.record import Verdict

if TYPE_CHECKING:
    from isotherm.lab.claim import Claim


@dataclass(frozen=True)
class Topic:
    """A few claims about one thing."""

    id: str
    title: Text
    lead: Text
    claims: tuple[str, ...]


TOPICS = (
    Topic(
        "softmax",
        Text("The softmax", "softmax 本身"),
        Text(
            "What happens to a softmax, and to its derivative, when its inputs grow.",
            "输入变大时，softmax 和它的导数会怎样。",
        ),
        ("softmax-saturates", "a-a-2a", "jacobian", "one-hot-kills-gradient"),
    ),
    Topic(
        "dot-product",
        Text("The dot product", "点积"),
        Text(
            "How far the scores q·k spread, and which power of the dimension brings them back.",
            "q·k 得分散布得多开，以及除以维度的几次方才能把它收回来。",
        ),
        ("dot-variance", "variance-is-sqrt-d", "sqrt-is-the-right-power"),
    ),
    Topic(
        "gradient",
        Text("The gradient", "梯度"),
        Text(
            "Does it vanish, does it explode, and for which rows? The documents' own examples, drawn again many times.",
            "梯度消失还是爆炸，发生在哪些行上？把各文档自己的例子反复抽样再看。",
        ),
        ("ten-draws", "jacobian-at-high-variance", "vanishing-not-exploding", "mean-versus-quantile"),
    ),
    Topic(
        "additive",
        Text("Adding or multiplying", "相加还是相乘"),
        Text(
            "Additive attention beside dot-product attention: spread, cost, and what training makes of both.",
            "加性注意力与点积注意力的对照：散布、代价，以及训练的结果。",
        ),
        (
            "additive-needs-no-scale",
            "bounded-inputs",
            "additive-versus-dot-cost",
            "additive-wins-at-large-d",
            "scaling-restores-it",
        ),
    ),
    Topic(
        "transformer",
        Text("Around attention", "注意力之外"),
        Text(
            "What else the documents say: the classifier's softmax, long paths, parallel training, heads, and the models.",
            "各文档的其他说法：分类器的 softmax、长路径、并行训练、多头，以及这些模型。",
        ),
        ("cross-entropy-is-safe", "constant-path", "parallel", "heads-differ", "encoder-decoder", "bert"),
    ),
    Topic(
        "other-scales",
        Text("Other ways to set the temperature", "设定温度的其他办法"),
        Text(
            "A factor of log n for long contexts, and a smaller initialisation in place of a scale.",
            "长上下文用的 log n 因子，以及用更小的初始化代替缩放。",
        ),
        ("entropy-invariance", "init-instead-of-scale"),
    ),
    Topic(
        "beyond",
        Text("Beyond the documents", "文档之外"),
        Text(
            "Where exactly the softmax freezes, and where a trained model stands.",
            "softmax 究竟在哪里冻结，训练好的模型又处在哪里。",
        ),
        ("freezing", "trained-model"),
    ),
)
CLAIMS = tuple(claim for topic in TOPICS for claim in topic.claims)


@dataclass(frozen=True)
class Listed:
    """One line of the list of claims."""

    id: str
    title: Text
    expected: Verdict


def module_of(claim: str) -> str:
    """The module that holds a claim's experiment."""
    return f"{__name__}.{claim.replace('-', '_')}.experiment"


def load(claim: str) -> "Claim":
    """The claim itself, with its experiment."""
    return cast("Claim", import_module(module_of(claim)).CLAIM)


def missing() -> tuple[str, ...]:
    """Claims named above that have no file."""
    return tuple(claim for claim in CLAIMS if find_spec(module_of(claim)) is None)


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """The claims asked for, in the order of the topics; all of them when none is named."""
    asked = set(names)
    for name in asked:
        if name not in CLAIMS:
            near = get_close_matches(name, CLAIMS, n=1, cutoff=0.4)
            hint = Text("did you mean {near}?", "是否要用 {near}？").format(near=near[0]) if near else Text("", "")
            message = Text(
                "no such claim: {name}; {hint} isotherm explain --list shows all",
                "没有这个论断：{name}；{hint}isotherm explain --list 可列出全部",
            )
            raise IsothermError(message.format(name=name, hint=hint))
    return tuple(claim for claim in CLAIMS if not asked or claim in asked)


def listed(claim: str) -> Listed:
    """A claim's title and the verdict on record, read from its files without running them."""
    folder = Path(__file__).parent / claim.replace("-", "_")
    expected = re.search(r'^    expected="(\w+)"', (folder / "experiment.py").read_text(encoding="utf-8"), re.M)
    assert expected is not None
    titles = ((folder / f"{language}.md").read_text(encoding="utf-8").split("\n")[0] for language in LANGUAGES)
    return Listed(claim, Text(*(title.removeprefix("# ") for title in titles)), cast(Verdict, expected[1]))
