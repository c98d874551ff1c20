"""The lab as a folder: page, figures, captions and records, all of them or nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from matplotlib import font_manager

from isotherm.errors import IsothermError
from isotherm.record import Timed, from_plain
from isotherm.report.draw import png
from isotherm.report.explain import folder
from isotherm.report.explain.book import drawings
from tests.report import claims


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_folder_has_the_page_figures_captions_and_records(tmp_path, language):
    book = claims.usual()
    target = tmp_path / "new" / "out"
    told = folder.write(book, target, language)
    assert told == (None if language == "en" else png.obstacle("zh"))  # on a machine without a Chinese font
    names = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    expected = {"index.html", "captions.en.txt", "captions.zh.txt"}
    for timed in book.claims():
        expected.add(f"records/{timed.record.id}.json")
        for picture in drawings(timed):
            endings = ("en.svg", "zh.svg") if told else ("en.svg", "zh.svg", "png")
            expected |= {f"figures/{picture.id}.{ending}" for ending in endings}
    assert names == expected
    for path in target.glob("figures/*.svg"):
        ET.parse(path)
    for path in target.glob("figures/*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 4000
    captions = (target / "captions.zh.txt").read_text(encoding="utf-8")
    assert "softmax 在哪里冻结" in captions
    again = from_plain(Timed, json.loads((target / "records" / "freezing.json").read_text(encoding="utf-8")))
    assert again == list(book.claims())[2]


def test_without_matplotlib_the_rest_is_written_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(png, "find_spec", lambda name: None)
    assert "isotherm[plots]" in folder.write(claims.usual(), tmp_path / "out", "en").en
    assert list((tmp_path / "out").rglob("*.png")) == []
    assert (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize("font", ["Noto Sans CJK JP", None], ids=["since then", "none"])
def test_fonts_that_came_after_matplotlib_made_its_list_are_found(tmp_path, monkeypatch, font):
    manager = SimpleNamespace(ttflist=[SimpleNamespace(name="DejaVu Sans", fname="old.ttf")])

    def read(path):
        if path == "broken.ttf":
            raise RuntimeError("not a font")
        assert path == "new.ttc"
        manager.ttflist.append(SimpleNamespace(name=font, fname=path))

    manager.addfont = read
    monkeypatch.setattr(font_manager, "fontManager", manager)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: ["old.ttf", "broken.ttf", "new.ttc"])
    assert (png.obstacle("zh") is None) == (font is not None)
    if font is None:
        assert folder.write(claims.usual(), tmp_path / "out", "zh") == png.NO_FONT
        assert list((tmp_path / "out").rglob("*.png")) == []
        assert png.obstacle("en") is None


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    old = tmp_path / "old"
    old.mkdir()
    (old / "mine.txt").write_text("kept")
    monkeypatch.setattr(png, "write", fail)
    for target in (tmp_path / "a" / "b", old):
        with pytest.raises(IsothermError, match="no space is left"):
            folder.write(claims.usual(), target, "en")
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "mine.txt"]


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(IsothermError, match="cannot write"):
            folder.prepare(target)
    folder.prepare(tmp_path / "new" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
