"""A run as a folder: the page, every figure with its caption, every record.

    index.html   captions.en.txt   captions.zh.txt   records/CLAIM.json   figures/ID.en.svg   figures/ID.zh.svg   figures/ID.png

Everything is written to a temporary folder and moved into place when it is complete.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

from isotherm.language import LANGUAGES, Language, Text
from isotherm.record import Timed, to_plain
from isotherm.report.draw import png, svg
from isotherm.report.explain import page
from isotherm.report.explain.book import Book, drawings
from isotherm.report.files import write_atomically, write_error

FILE = Text("it is a file", "它是一个文件")


def prepare(path: Path) -> None:
    """Refuse a folder that cannot be written, before the experiments run; leaves nothing behind."""
    if path.exists() and not path.is_dir():
        raise write_error(path, FILE)
    home = path
    while not home.exists():
        home = home.parent
    try:
        shutil.rmtree(mkdtemp(dir=home, prefix=".isotherm-"))
    except OSError as error:
        raise write_error(path, error) from error


def write(book: Book, path: Path, language: Language, tell: Callable[[float], object] = lambda _: None) -> Text | None:
    """Write everything; returns why there are no PNG figures, where there are none."""
    new = next((part for part in [*reversed(path.parents), path] if not part.exists()), None)
    stage: Path | None = None
    try:
        path.mkdir(parents=True, exist_ok=True)
        stage = Path(mkdtemp(dir=path, prefix=".isotherm-"))
        obstacle = _fill(book, stage, language, tell)
        for file in sorted(stage.rglob("*"), key=lambda file: file.name == "index.html"):
            if file.is_file():
                target = path / file.relative_to(stage)
                target.parent.mkdir(exist_ok=True)
                file.replace(target)
        shutil.rmtree(stage)
    except BaseException as error:
        for leftover in filter(None, (stage, new)):
            shutil.rmtree(leftover, ignore_errors=True)
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise
    return obstacle


def _fill(book: Book, stage: Path, language: Language, tell: Callable[[float], object]) -> Text | None:
    for name in ("figures", "records"):
        (stage / name).mkdir()
    obstacle = png.obstacle(language)
    claims = list(book.claims())
    for done, timed in enumerate(claims):
        text = json.dumps(to_plain(timed), ensure_ascii=False, indent=1)
        write_atomically(stage / "records" / f"{timed.record.id}.json", text + "\n")
        for picture in drawings(timed):
            for each in LANGUAGES:
                write_atomically(stage / "figures" / f"{picture.id}.{each}.svg", f"{svg.draw(picture, each)}\n")
            if obstacle is None:
                png.write([picture], stage / "figures" / f"{picture.id}.png", language)
        tell((done + 1) / len(claims))
    for each in LANGUAGES:
        write_atomically(stage / f"captions.{each}.txt", "".join(_captions(claims, each)))
    write_atomically(stage / "index.html", page.to_html(book, language))
    return obstacle


def _captions(claims: list[Timed], language: Language) -> Iterator[str]:
    for timed in claims:
        for picture in drawings(timed):
            x, y = picture.x.to(language), picture.y.to(language)
            yield f"{picture.id} ({timed.record.id})\n  {picture.caption.to(language)}\n  x: {x}\n  y: {y}\n\n"
