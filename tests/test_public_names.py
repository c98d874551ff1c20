"""The names that users may rely on, and that every name the documents use is one of them."""

import pkgutil
import re
from pathlib import Path

import pytest

import isotherm

ROOT = Path(__file__).parent.parent
NAMES = [
    "Applied",
    "AttentionResult",
    "Monitor",
    "Report",
    "RowStats",
    "Summary",
    "TuneReport",
    "Valve",
    "Written",
    "__version__",
    "apply",
    "attention",
    "check",
    "errors",
    "models",
    "monitor",
    "ops",
    "probe",
    "scale",
    "softmax",
    "stats",
    "temperature_gradient",
    "theory",
    "tune",
    "watch",
    "write",
]


def test_the_public_names_are_these():
    assert isotherm.__all__ == NAMES == sorted(NAMES)
    assert dir(isotherm) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name):
    assert getattr(isotherm, name) is not None


def named_in(*patterns: str) -> list[str]:
    """Dotted names such as `isotherm.scale.LogN` in these documents. A name before a slash is a schema's."""
    found = set()
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        found |= set(re.findall(r"\bisotherm(?:\.[A-Za-z_]\w*)+\b(?!/)", path.read_text(encoding="utf-8")))
    return sorted(found)


@pytest.mark.parametrize("name", named_in("README*.md", "CHANGELOG.md"))
def test_what_the_readme_names_is_reachable_from_the_package(name):
    value = isotherm
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    assert value is not None


@pytest.mark.parametrize("name", named_in("*.md", "docs/**/*.md"))
def test_what_any_document_names_can_be_imported(name):
    assert pkgutil.resolve_name(name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        isotherm.nonsense  # noqa: B018
