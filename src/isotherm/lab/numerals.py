"""Numbers inside a sentence, as a person writes them."""

from math import floor, log10

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def numeral(value: float, digits: int = 3) -> str:
    """So many significant digits; a power of ten below a thousandth and from a hundred thousand on.

    >>> numeral(0.16983), numeral(2.784e-8, 2), numeral(1.0), numeral(65.016), numeral(-0.5), numeral(131072)
    ('0.170', '2.8·10⁻⁸', '1.00', '65.0', '−0.500', '1.31·10⁵')
    """
    if value == 0:
        return "0"
    sign, size = "−" if value < 0 else "", abs(value)
    exponent = floor(log10(size))
    if -3 <= exponent < 5:
        return f"{sign}{size:.{max(digits - 1 - exponent, 0)}f}"
    mantissa, power = f"{size:.{digits - 1}e}".split("e")
    return f"{sign}{mantissa}·10{str(int(power)).translate(_RAISED)}"


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage.

    >>> percent(0.9512), percent(1.0, 0)
    ('95.1 %', '100 %')
    """
    return f"{100 * share:.{digits}f} %"


def signed(value: float) -> str:
    """Two decimals after a sign; zero has none.

    >>> signed(0.254), signed(-1.5), signed(0.001)
    ('+0.25', '−1.50', '0.00')
    """
    said = f"{value:+.2f}"
    return "0.00" if said[1:] == "0.00" else said.replace("-", "−")
