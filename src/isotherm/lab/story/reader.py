"""Read one language's file of the story, `en.md` or `zh.md`:

    # Title
    ## question                  a paragraph
    ## formula                   a sentence, and its formula on a line $$…$$
    ## answer                    three numbered sentences
    ## before-after              paragraphs; the first says what the picture shows
    ## row                       a paragraph, a table, a paragraph
    ## step NAME                 one for each step; NAME is also that of its picture
    ### title, lead, seen        a paragraph each
    ### derivation               numbered sentences; a line $$…$$ below one is its formula in LaTeX
    ### points                   a list of sentences, each linked to the claims that support it
    ### predict                  a question, choices «- [ ] …» of which the right one is «- [x] …», and why
    ## side NAME                 ### title, ### text
    ## glossary                  ### NAME, then the word in a paragraph of its own, then what it means

`[words](#claim-id)` names the claim that supports the words, `[words](#term-NAME)` a word of the glossary; `**words**` are
bold, and backticks hold code. A field such as `{spread}` stands for a measured number: `{x}` shows two significant digits,
`{x:4}` four, `{x:.2f}` two decimals, `{x:%}` a percentage, `{x:1%}` one with a decimal. Both languages have the same parts,
fields, formulas and links: `tests/lab/test_story.py` compares them.
"""

import re
from typing import Any

from isotherm.lab.content import joined, mathml, numbered, sections


class Told(str):
    """A sentence, which each language has in words of its own. Any other text of a page is the same in both."""

    __slots__ = ()


def read_page(text: str) -> dict[str, Any]:
    """The page as `isotherm.record.Story` holds it, in JSON's types, with `Told` for each of its sentences."""
    title, _, body = text.removeprefix("# ").partition("\n")
    parts = sections(body, "## ")
    lead, table, shows = _blocks(parts["row"])
    return {
        "title": Told(title.strip()),
        "question": _told(parts["question"]),
        "formula": _formulas("1. " + parts["formula"].lstrip())[0],
        "answer": [Told(sentence) for sentence, _ in numbered(parts["answer"])],
        "before_after": _paragraphs(parts["before-after"]),
        "row": {"lead": _told(lead), "table": _table(table), "shows": _told(shows)},
        "steps": [_step(name, part) for name, part in _named(parts, "step ")],
        "sides": [_side(name, part) for name, part in _named(parts, "side ")],
        "glossary": [_term(name, part) for name, part in sections(parts["glossary"], "### ").items()],
    }


def _step(name: str, part: str) -> dict[str, Any]:
    inner = sections(part, "### ")
    told = {place: _told(inner[place]) for place in ("title", "lead", "seen")}
    points = [_told(point) for point in re.split(r"^- ", inner["points"], flags=re.M)[1:]]
    derivation = _formulas(inner["derivation"])
    return {"id": name, **told, "derivation": derivation, "points": points, "predict": _predict(inner["predict"])}


def _predict(part: str) -> dict[str, Any]:
    question, listed, why = _blocks(part)
    marked = re.findall(r"^- \[([ x])\] (.+(?:\n  .+)*)", listed, flags=re.M)
    answer = [mark for mark, _ in marked].index("x")
    return {
        "question": _told(question),
        "choices": [_told(choice) for _, choice in marked],
        "answer": answer,
        "why": _told(why),
    }


def _side(name: str, part: str) -> dict[str, Any]:
    inner = sections(part, "### ")
    return {"id": name, "title": _told(inner["title"]), "paragraphs": _paragraphs(inner["text"])}


def _term(name: str, part: str) -> dict[str, Any]:
    word, meaning = _paragraphs(part)
    return {"id": name, "name": word, "meaning": meaning}


def _table(block: str) -> dict[str, Any]:
    heads, _, *rows = (
        [Told(cell.strip()) for cell in line.strip().strip("|").split("|")] for line in block.splitlines()
    )
    return {"heads": heads, "rows": rows}


def _formulas(part: str) -> list[dict[str, Any]]:
    return [{"sentence": Told(sentence), "math": mathml(latex)} for sentence, latex in numbered(part)]


def _named(parts: dict[str, str], kind: str) -> list[tuple[str, str]]:
    return [(head.removeprefix(kind), part) for head, part in parts.items() if head.startswith(kind)]


def _paragraphs(part: str) -> list[Told]:
    return [_told(block) for block in _blocks(part)]


def _blocks(part: str) -> list[str]:
    return [block for block in re.split(r"\n\s*\n", part.strip()) if block.strip()]


def _told(part: str) -> Told:
    return Told(joined(part))
