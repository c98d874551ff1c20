"""Versions of what a record was made with."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from platform import python_version


@cache
def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions(*packages: str) -> dict[str, str]:
    """Python's version and those of the packages that are installed. Nothing is imported to find out."""
    found = ((package, _installed(package)) for package in ("isotherm", *packages))
    return {"python": python_version(), **{package: at for package, at in found if at is not None}}
