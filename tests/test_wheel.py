"""The wheel: it holds the whole package and nothing else, and it runs without the source tree."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "isotherm"
LARGEST = 2_250_000
"""Bytes, about one and a half times the wheel of today: a dataset or a picture in the package would not fit."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built by the backend itself, which needs no network."""
    folder = tmp_path_factory.mktemp("dist")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def content(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_it_holds_every_file_of_the_package_and_nothing_else(content):
    package = {
        str(PurePosixPath("isotherm", *path.relative_to(PACKAGE).parts))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in content if ".dist-info/" not in name} == package


def test_it_holds_types_pages_and_recorded_runs_but_no_tests(content):
    assert "isotherm/py.typed" in content
    for ending in (".html", ".css", ".js", ".json"):
        assert any(name.startswith("isotherm/") and name.endswith(ending) for name in content), ending
    assert not [name for name in content if "test" in PurePosixPath(name).parts[0] or "/tests/" in name]


def test_its_size_is_bounded(wheel):
    assert wheel.stat().st_size < LARGEST


def test_its_metadata_names_the_licence_and_only_extras_that_exist(wheel, content):
    [metadata] = [name for name in content if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(metadata).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in text
    extras = {line.split(": ")[1] for line in text.splitlines() if line.startswith("Provides-Extra: ")}
    assert extras == {"hf", "demo", "explain", "gpu", "plots", "train", "ray", "dev"}


def test_it_runs_without_the_source_tree(wheel, tmp_path):
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True, timeout=120)
    paths = [str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ISOTHERM_LANG": "en"}

    def run(*arguments: str) -> str:
        # -S: no .pth file, by which an editable installation would bring the source tree back.
        options = {"cwd": empty, "env": environment, "capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run([sys.executable, "-S", *arguments], check=False, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import isotherm, sys; print(isotherm.__file__, *sys.path, sep='\\n')")
    assert Path(where.splitlines()[0]).is_relative_to(installed)
    assert str(ROOT / "src") not in where.splitlines()
    assert "1/sqrt(d)" in run("-m", "isotherm", "rules")
