"""The page: one self-contained HTML file with its style, script and plots."""

import re
from collections.abc import Mapping, Sequence
from math import isnan

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dvcfleet.secrets import masked
from merganser.config.params import Params
from merganser.report.changes import Changes
from merganser.report.layers import short_names
from merganser.report.measured import BY_LAYER, Measured
from merganser.report.rows import (
    GROUPS,
    Row,
    best,
    best_values,
    by_family,
    fingerprint,
    in_league,
    leagues,
    sampling_error,
)
from merganser.report.scores import INDIVIDUAL
from merganser.report.significance import MEAN, Significance
from merganser.report.studies import StudyResults
from merganser.report.style import VARIABLES
from merganser.report.wording import title_of

EMBEDDED = "examples/"
CARDS = {
    "single": "Best single model",
    "single+data": "Best single model, with data",
    "parts": "Best with parts per task",
    "parts+data": "Best with parts and data",
}


def render_page(
    params: Params,
    rows: Sequence[Row],
    measured: Measured,
    studies: StudyResults,
    significance: Significance,
    plots: Mapping[str, str],
    changes: Changes | None,
) -> str:
    """Return the page's HTML, without credentials that an address in params.yaml may hold."""
    rows = list(rows)
    environment = Environment(
        loader=PackageLoader("merganser.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "seconds": seconds,
        "megabytes": megabytes,
        "digits": digits,
        "signed": signed,
        "sentence": sentence,
        "p": p_value,
    }
    page = environment.get_template("page.html.j2").render(
        params=params,
        embedded=params.base.source.startswith(EMBEDDED),
        fingerprint=fingerprint(params),
        groups=GROUPS,
        with_data=[row for row in rows if row.data != "NDI"],
        families=by_family(rows),
        rows=rows,
        cards=_cards(rows),
        routed=[row for row in rows if row.scores.known is not None],
        searched=[row for row in rows if "search" in row.scores.profile],
        best=best_values(rows, list(params.tasks)),
        shade=_shades(rows),
        wording=rows[0].wording,
        titles={task: title_of(metric) for task, metric in rows[0].scores.metrics.items()},
        error=sampling_error(rows),
        by_layer=list(BY_LAYER),
        layers=_layers(measured),
        studies=studies,
        verdicts=significance.verdicts,
        ties=significance.ties(MEAN),
        changes=changes,
        plots={name: inline(svg) for name, svg in plots.items()},
    )
    return masked(page)


def _cards(rows: list[Row]) -> list[tuple[str, Row]]:
    """Choose the entries whose scores open the page."""
    chosen = [
        ("Base, zero-shot", best([row for row in rows if row.method == "base"])),
        *((CARDS[league], best(in_league(rows, league))) for league in leagues(rows)),
        ("Individual models", best([row for row in rows if row.method == INDIVIDUAL])),
    ]
    return [(title, row) for title, row in chosen if row]


def _shades(rows: list[Row]) -> dict[tuple[str, str], int]:
    """Return where each value lies between the lowest (0) and the highest (100) of its task."""
    shades: dict[tuple[str, str], int] = {}
    for task in rows[0].scores.by_task:
        column = [row.scores.values[task] for row in rows]
        low, width = min(column), (max(column) - min(column)) or 1
        shades |= {(row.entry, task): round(100 * (row.scores.values[task] - low) / width) for row in rows}
    return shades


def _layers(measured: Measured) -> list[tuple[str, str, list[float]]]:
    """Return each matrix's name, short name and measures, by depth."""
    columns = [measured.by_layer(measure) for measure in BY_LAYER]
    short = short_names(measured.matrices)
    return [(name, s, [c[name] for c in columns]) for name, s in zip(measured.matrices, short, strict=True)]


def inline(svg: str) -> Markup:
    """Inline a plot into the page: without prologue, metadata or fixed size, in the page's colours and font."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"<svg ([^>]*?)>", _responsive, body, count=1, flags=re.S)
    body = re.sub(r"'DejaVu Sans'[^;\"]*?sans-serif", "system-ui, sans-serif", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return Markup(body)  # drawn by ourselves; matplotlib escapes the names in it


def _responsive(match: re.Match[str]) -> str:
    box = re.search(r'viewBox="[^"]*"', match[1])
    return f'<svg {box[0] if box else ""} role="img">'


def sentence(words: str) -> str:
    """Begin with a capital letter."""
    return words[:1].upper() + words[1:]


def percent(value: float | None, digits: int = 1) -> str:
    """Format a fraction in per cent, a dash for none."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def signed(value: float | None) -> str:
    """Format a difference of fractions in per cent with its sign, a dash for none."""
    return "–" if value is None else f"{100 * value:+.2f}"


def digits(value: float) -> str:
    """Format a measure with three significant digits, a dash for none."""
    return "–" if isnan(value) else f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def p_value(value: float | None) -> str:
    """Format a p-value with the digits that matter, a dash for none."""
    return "–" if value is None else f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def seconds(value: float) -> str:
    """Format a time with its significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def megabytes(value: float) -> str:
    """Format a size in MiB."""
    return f"{value / 2**20:.0f}"
