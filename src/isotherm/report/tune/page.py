"""A tuned model as one HTML file that works without a network. Its script only switches language and theme."""

from collections.abc import Sequence
from os import PathLike

from isotherm.errors import as_language
from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import Figure, Heatmap
from isotherm.record.tune import TuneRecord
from isotherm.report import shell
from isotherm.report.digits import number, thousands
from isotherm.report.draw import svg
from isotherm.report.files import write_atomically
from isotherm.report.markup import Html, both, join, tag
from isotherm.report.tune import figures, terminal, words

EYEBROW = Text("The temperature of attention, tuned on held-out text", "用留出文本调出的注意力温度")
FACTS = {
    "task": Text("What is predicted", "预测什么"),
    "text": Text("Text", "文本"),
    "layers": Text("Layers tuned", "所调的层"),
    "evaluations": Text("Evaluations", "评估次数"),
    "device": Text("Device, precision", "设备、精度"),
    "seconds": Text("Seconds", "秒数"),
    "created": Text("Made", "生成于"),
    "versions": Text("Versions", "版本"),
}
METHOD = (
    Text(
        "The factor multiplies the scale in force of all tuned layers at once, on top of whatever rule the model has. The model"
        " itself is left as it was.",
        "倍数同时乘在所有被调层的实际缩放上，叠加于模型已有的规则之上。模型本身保持原样。",
    ),
    Text(
        "Losses are compared on the same documents. The best factor is the minimum of a cubic through the mean losses over"
        " ln factor; its interval comes from drawing documents again, 2,000 times.",
        "损失在相同文档上比较。最佳倍数是平均损失对 ln 倍数的三次拟合的最小点；其区间由对文档重抽 2,000 次得到。",
    ),
    Text(
        "The gain is cross-validated: each document is judged at the optimum of the others. If its interval holds 0, the scale"
        " is best left as it is.",
        "收益经交叉验证：每篇文档都用其余文档的最佳倍数评判。若其区间包含 0，则应保持现有缩放。",
    ),
    Text(
        "Critical factor: the largest of ln(1 + j)/gap_j over the keys of a row, gap_j the distance of the j-th competitor from"
        " the largest logit, after the gap count of Hayase & Karakida (arXiv:2605.12697). Medians over heads and rows of"
        " the second half.",
        "临界倍数：一行各键的 ln(1 + j)/gap_j 的最大值，gap_j 为第 j 个竞争者与最大 logit 之差，依 Hayase 与 Karakida 的"
        "间隙计数（arXiv:2605.12697）。取各头与后半各行的中位数。",
    ),
)
METHOD_TITLE = Text("How it was found", "如何得到")
CAPTION_LENGTHS = Text("The best factor at each length", "每个长度的最佳倍数")
FOOTER = Text(
    "Made by isotherm tune. Everything is in this one file; it needs no network.",
    "由 isotherm tune 生成。一切都在这个文件里，不访问网络。",
)
LANGUAGE, DARK, LIGHT = Text("Language", "语言"), Text("Dark", "深色"), Text("Light", "浅色")


def to_html(record: TuneRecord, language: Language | None = None) -> str:
    """The page as text; it opens in `language` and can be switched to the other."""
    opening = as_language(language)
    main = tag("main", _hero(record), _lengths(record), _laws(record), _steps(record), _gradient(record), _method())
    return shell.fill(
        join(_bar(opening), main, tag("footer", both(FOOTER))),
        styles=["explain.css", "tune.css"],
        scripts=["tune.js"],
        wait=True,
        title=f"{printable(record.model, 80)} · isotherm tune",
        language="zh-CN" if opening == "zh" else "en",
    )


def write_html(record: TuneRecord, path: str | PathLike[str], language: Language | None = None) -> None:
    """Write the page."""
    write_atomically(path, to_html(record, language))


def _bar(opening: Language) -> Html:
    buttons = [
        tag(
            "button",
            name,
            type="button",
            id=f"lang-{code}",
            lang=lang,
            translate="no",
            aria_pressed=str(code == opening).lower(),
        )
        for code, lang, name in (("en", "en", "English"), ("zh", "zh-CN", "中文"))
    ]
    theme = tag(
        "button",
        tag("span", both(DARK), class_="to-dark"),
        tag("span", both(LIGHT), class_="to-light"),
        type="button",
        id="theme",
    )
    label = tag("span", both(LANGUAGE), id="language", class_="unseen")
    group = tag("div", *buttons, class_="buttons", role="group", aria_labelledby="language")
    return tag("header", tag("span", "isotherm", class_="wordmark", translate="no"), label, group, theme, class_="top")


def _hero(record: TuneRecord) -> Html:
    worth = any(best.worth for best in record.bests)
    sign = tag("span", "▲" if worth else "✔", class_="glyph", aria_hidden="true")
    kind = f"verdict {'warning' if worth else 'healthy'}"
    told = {
        "task": words.TASKS[record.task],
        "text": _plain(record.text),
        "layers": _plain(str(len(record.layers))),
        "evaluations": _plain(str(record.evaluations)),
        "device": _plain(f"{record.device}, {record.dtype}"),
        "seconds": _plain(number(record.seconds)),
        "created": _plain(record.created.replace("T", " ")[:16] + " UTC"),
        "versions": _plain(", ".join(f"{name} {it}" for name, it in record.versions.items())),
    }
    facts = (tag("div", tag("dt", both(FACTS[key])), tag("dd", both(said))) for key, said in told.items())
    return tag(
        "div",
        both(EYEBROW, "p", class_="eyebrow"),
        tag("h1", printable(record.model, 120), translate="no"),
        tag("p", sign, " ", both(words.verdict(record)), class_=kind),
        tag("dl", *facts, class_="facts"),
        class_="opening",
    )


def _lengths(record: TuneRecord) -> Html:
    rows: list[tuple[Text | str, Sequence[Text | str]]] = []
    for one in record.lengths:
        best = one.best
        cells = (
            number(one.loss, 4),
            number(best.factor),
            words.interval(best),
            words.gain(best),
            number(one.critical),
            number(one.freezing),
        )
        rows.append((thousands(one.length), [*cells, words.judged(best)]))
    pictures = [_picture(figures.curves(record))]
    if len(record.lengths) > 1:
        pictures.append(_picture(figures.factors(record)))
    shown = tag("div", *pictures, class_="two drawn claim")
    return _section(
        terminal.LENGTHS,
        shown,
        _table(CAPTION_LENGTHS, terminal.COLUMNS, rows),
        both(terminal.LENGTHS_NOTE, "p", class_="quiet"),
    )


def _laws(record: TuneRecord) -> Html | None:
    said = words.laws(record)
    if said is None:
        return None
    least = min(law.chi_squared for law in record.laws)
    rows: list[tuple[Text | str, Sequence[Text | str]]] = []
    for law in record.laws:
        worse = words.LAW_WORSE.format(by=number(law.chi_squared - least, 2))
        state = words.LAW_SUPPORTED if law.supported else worse
        name = words.LAW_NAMES.get(law.name, _plain(law.name))
        rows.append((name, [_plain(law.formula), number(law.constant), number(law.chi_squared, 2), state]))
    return _section(
        terminal.LAWS,
        both(said, "p", class_="summary"),
        _table(terminal.LAWS, terminal.LAW_COLUMNS, rows),
        both(words.LAWS_ABOUT, "p", class_="quiet"),
    )


def _steps(record: TuneRecord) -> Html | None:
    if not record.steps:
        return None
    rows: list[tuple[Text | str, Sequence[Text | str]]] = []
    for step in record.steps:
        best = step.best
        cells = (
            number(step.gradient, 2),
            number(best.factor),
            words.interval(best),
            words.gain(best),
            number(step.loss, 4),
        )
        rows.append((words.place(step), [*cells, words.judged(best)]))
    return _section(terminal.STEPS, _table(terminal.STEPS, terminal.STEP_COLUMNS, rows))


def _gradient(record: TuneRecord) -> Html | None:
    if record.gradient is None or not any(record.gradient.gradient):
        return None
    return _section(terminal.GRADIENT, tag("div", _picture(figures.gradient(record.gradient)), class_="claim"))


def _method() -> Html:
    lines = (tag("li", both(line)) for line in METHOD)
    return _section(METHOD_TITLE, tag("ul", *lines, class_="method"))


def _section(title: Text, *children: Html | None) -> Html:
    return tag("section", tag("h2", both(title)), *children)


def _picture(picture: Figure | Heatmap) -> Html:
    items = [
        tag("li", tag("svg", sign, viewBox="0 0 28 14", aria_hidden="true"), tag("span", both(name)))
        for sign, name in svg.signs(picture)
    ]
    key = tag("ul", *items, class_="key-list") if items else None
    name, drawing = f"{picture.id}-caption", svg.draw(picture)
    if isinstance(picture, Heatmap):
        drawing = tag("div", drawing, class_="scroll", tabindex="0", role="region", aria_labelledby=name)
    kind = "picture" if isinstance(picture, Heatmap) else None
    return tag("figure", drawing, key, both(picture.caption, "figcaption", id=name), class_=kind)


def _table(caption: Text, heads: tuple[Text, ...], rows: Sequence[tuple[Text | str, Sequence[Text | str]]]) -> Html:
    head = tag(
        "tr",
        *(
            tag("th", both(it), scope="col", class_=None if place in (0, len(heads) - 1) else "number")
            for place, it in enumerate(heads)
        ),
    )
    lines = []
    for first, cells in rows:
        made = [
            tag(
                "td",
                both(cell) if isinstance(cell, Text) else cell,
                class_=None if place == len(cells) - 1 else "number",
            )
            for place, cell in enumerate(cells)
        ]
        lines.append(tag("tr", tag("th", both(first) if isinstance(first, Text) else first, scope="row"), *made))
    unseen = tag("caption", both(caption), class_="unseen")
    return tag("div", tag("table", unseen, tag("thead", head), tag("tbody", *lines)), class_="scroll", tabindex="0")


def _plain(text: str) -> Text:
    """What is the same in both languages."""
    shown = printable(text, 200)
    return Text(shown, shown)
