"""Help pages: whole sentences, within 80 columns, in both languages, and quick."""

import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from isotherm.cli import VERBS, command, program, run
from isotherm.language import LANGUAGES

PAGES = [[], *([name] for name in VERBS), ["data", "gettext"]]
COMMANDS = [*VERBS, "data gettext"]


def verb_of(words):
    found = program
    for word in words:
        found = found.get_command(None, word)
    return found


def page_of(capsys, words, language):
    assert run([*words, "--help", "--lang", language]) == 0
    return capsys.readouterr().out


def sentences(verb):
    """Everything that a help page should say, as `Text`s."""
    yield verb.text
    yield from (
        parameter.text for parameter in verb.params if getattr(parameter, "text", None) and not parameter.hidden
    )
    if verb is program:
        yield from VERBS.values()


def squeezed(text):
    return re.sub(r"\s+", "", text)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("words", PAGES, ids=lambda words: " ".join(words) or "program")
def test_a_page_says_whole_sentences_within_80_columns(capsys, words, language):
    page = page_of(capsys, words, language)
    assert [line for line in page.splitlines() if cell_len(line) > 80] == []
    on_page, words_on_page = squeezed(page), set(page.split())
    for text in sentences(verb_of(words)):
        sentence = text.to(language)
        assert squeezed(sentence) in on_page
        latin = {word for word in sentence.split() if not re.search(r"[\u3000-\uffef]", word)}
        assert latin <= words_on_page, "a word was cut"
        assert re.search(r"[.。]$", sentence), sentence


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("words", PAGES, ids=lambda words: " ".join(words) or "program")
def test_no_line_of_a_page_begins_with_closing_punctuation(capsys, words, language):
    assert [
        line for line in page_of(capsys, words, language).splitlines() if re.match(r"\s*[，。、；：）”.,;:)]", line)
    ] == []


@pytest.mark.parametrize("width", [8, 13, 21, 40])
@pytest.mark.parametrize(
    "text", ["Rules to replay, comma-separated; '' for none.", "只在数值上不同（如 d=64）的训练会一起进行。"]
)
def test_wrapping_keeps_every_letter_and_the_width(text, width):
    lines = command.wrap(text, width)
    assert squeezed("".join(lines)) == squeezed(text)
    assert all(cell_len(line) <= width or not re.search(r"[\s\u4e00-\u9fff]", line) for line in lines)
    assert max(map(cell_len, lines)) > width / 2


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_a_verb_does_not_load_torch(words):
    code = f"import sys; from isotherm.cli import run; run({words.split()!r} + ['--help']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
