# mypy: disable-error-code="import-untyped, import-not-found"
"""A run as one table for other programs: a row for each head of each reading. JSON holds the whole record instead."""

import csv
import json
from io import BytesIO, StringIO
from typing import Any

import numpy as np

from isotherm.errors import IsothermError
from isotherm.language import Text
from isotherm.record.plain import to_plain
from isotherm.record.watch import GRADIENTS, STATISTICS, WatchRecord

NO_PYARROW = Text(
    "writing Parquet needs pyarrow: pip install pyarrow", "写出 Parquet 需要 pyarrow：pip install pyarrow"
)


def columns(record: WatchRecord) -> dict[str, Any]:
    """The table by columns. A layer's gradients stand in the row of each of its heads."""
    sizes = [layer.heads for layer in record.layers]
    times, heads = len(record.readings), sum(sizes)
    found: dict[str, Any] = {"step": np.repeat(np.array([one.step for one in record.readings], np.int64), heads)}
    for name in ("at", "loss", "rows", "seconds"):
        given = [getattr(one, name) for one in record.readings]
        found[name] = [value for value in given for _ in range(heads)]
    found["layer"] = np.tile(np.repeat([layer.number for layer in record.layers], sizes).astype(np.int64), times)
    found["name"] = [layer.name for layer in record.layers for _ in range(layer.heads)] * times
    found["head"] = np.tile(np.array([head for size in sizes for head in range(size)], np.int64), times)
    for name in STATISTICS:
        found[name] = _joined([one.values[name] for one in record.readings])
    for name in GRADIENTS:
        found[f"gradient_{name}"] = _joined([np.repeat(one.gradients[name], sizes) for one in record.readings])
    return found


def to_csv(record: WatchRecord) -> str:
    """The table as CSV. Empty: not known. A name that a spreadsheet would take for a formula gets an apostrophe."""
    file = StringIO()
    table = columns(record)
    table["name"] = [f"'{name}" if name[:1] in set("=+-@\t\r") else name for name in table["name"]]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(map(_cell, column) for column in table.values()), strict=True))
    return file.getvalue()


def to_json(record: WatchRecord) -> str:
    """The whole record, events included, as `isotherm watch` reads it too."""
    return json.dumps(to_plain(record), ensure_ascii=False)


def to_parquet(record: WatchRecord) -> bytes:
    """The table as Parquet. An `IsothermError` without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise IsothermError(NO_PYARROW) from error
    kinds = {"at": pa.float64(), "loss": pa.float64(), "rows": pa.int64(), "seconds": pa.float64(), "name": pa.string()}
    table = columns(record)
    made = pa.table({name: pa.array(column, kinds.get(name)) for name, column in table.items()})
    file = BytesIO()
    parquet.write_table(made.replace_schema_metadata({"schema": record.schema, "model": record.model}), file)
    return file.getvalue()


def _joined(arrays: list[Any]) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.float32)


def _cell(value: Any) -> object:
    """A number with as many digits as it has: a float32 has at most nine."""
    if value is None or value != value:  # noqa: PLR0124  NaN
        return ""
    return str(value) if isinstance(value, np.generic) else value
