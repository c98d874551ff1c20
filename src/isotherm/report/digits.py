"""Numbers as a person reads them."""

from math import isfinite, isnan

NOTHING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits; a dash where there is none.

    >>> number(0.12512), number(1.0), number(1.5), number(3.1e-5), number(65504.0), number(None)
    ('0.125', '1', '1.50', '3.1e-5', '65504', '–')
    """
    if value is None or isnan(value):
        return NOTHING
    if not isfinite(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e6:
        mantissa, exponent = f"{size:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        text = f"{mantissa}e{int(exponent)}"
    else:
        places = max(digits - 1 - int(f"{size:.{digits - 1}e}".split("e")[1]), 0)
        text = f"{size:.{places}f}"
        if "." in text and (size < 0.1 or size == int(size)):
            text = text.rstrip("0").rstrip(".")
    return f"−{text}" if value < 0 else text


def compact(value: float | None, digits: int = 4) -> float | int | None:
    """A number rounded for JSON: few digits, whole numbers without a point, None for what is not a number."""
    if value is None or not isfinite(value):
        return None
    if 1e3 <= abs(value) < 1e6:
        return round(value)
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e9 else rounded


def thousands(count: int) -> str:
    """A count with commas: 4,096."""
    return f"{count:,}"


def magnitude(count: int) -> str:
    """A count to three digits, in thousands, millions or billions.

    >>> magnitude(124_439_808), magnitude(70_000_000_000), magnitude(512)
    ('124 M', '70 B', '512')
    """
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)
