"""Configurations from TOML files and plain tables, and back."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from isotherm.record import plain
from isotherm.record.files import checked
from isotherm.train.config import Config
from isotherm.train.text_files import read_toml


def load(path: str | Path) -> Config:
    """The configuration in a TOML file."""
    table, _ = read_toml(path)
    return checked(Config, path, table, strict=True)


def from_plain(table: Any) -> Config:
    """The configuration in plain tables. A key that is not given has its default; an unknown key is refused."""
    return plain.from_plain(Config, table, where="", strict=True)


def to_plain(config: Config) -> dict[str, Any]:
    """The configuration as plain tables, keys without a value left out, for JSON."""
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in asdict(config).items()
    }
