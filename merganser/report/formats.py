"""Numbers and names as the report writes them."""

import json
import re
from collections.abc import Mapping
from math import isnan
from typing import Any

from markupsafe import Markup, escape


def sentence(words: str) -> str:
    """Begin with a capital letter."""
    return words[:1].upper() + words[1:]


def breakable(name: str) -> Markup:
    """Let a name break after its underscores.

    >>> breakable("a_b<")
    Markup('a_<wbr>b&lt;')
    """
    return Markup(escape(name).replace("_", Markup("_<wbr>")))


def coded(text: str) -> Markup:
    """Set what stands between backticks as code.

    >>> coded("by `k` < 2")
    Markup('by <code>k</code> &lt; 2')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def written(value: Any) -> str:
    """Write a parameter's value as it stands in params.yaml."""
    return value if isinstance(value, str) else json.dumps(value)


def settings(values: Mapping[str, Any]) -> str:
    """Write parameters with their values in one line.

    >>> settings({"elect": False, "averaging": "simple"})
    'elect: false, averaging: simple'
    """
    return ", ".join(f"{name}: {written(value)}" for name, value in values.items())


def percent(value: float | None, digits: int = 1) -> str:
    """Format a fraction in per cent, a dash for none."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def memory(rate: float) -> str:
    """Format an additional memory rate in per cent, with the digits that tell small ones apart.

    >>> memory(0), memory(0.0089), memory(0.139), memory(1)
    ('0', '0.89', '13.9', '100.0')
    """
    return percent(rate, 1 if rate >= 0.1 else 2) if rate else "0"


def signed(value: float | None) -> str:
    """Format a difference of fractions in per cent with its sign, a dash for none."""
    return "–" if value is None else f"{100 * value:+.2f}"


def digits(value: float) -> str:
    """Format a measure with three significant digits, a dash for none."""
    return "–" if isnan(value) else f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def correlation(value: float) -> str:
    """Format a correlation with its sign, a dash for none.

    >>> correlation(0.5), correlation(float("nan"))
    ('+0.50', '–')
    """
    return "–" if isnan(value) else f"{value:+.2f}"


def interval(estimate: Any) -> str:
    """Format the interval of a correlation, a dash for none."""
    return "–" if isnan(estimate.low) else f"{correlation(estimate.low)} to {correlation(estimate.high)}"


def p_value(value: float | None) -> str:
    """Format a p-value with the digits that matter, a dash for none.

    >>> p_value(0.0125), p_value(2e-5), p_value(0.0)
    ('0.013', '2e-05', '<1e-99')
    """
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}" if value >= 1e-99 else "<1e-99"


def seconds(value: float) -> str:
    """Format a time with its significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def megabytes(value: float) -> str:
    """Format a size in MiB."""
    return f"{value / 2**20:.0f}"
