"""The page: one self-contained HTML file with its style, script and plots."""

import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from merganser.config.params import Params
from merganser.evaluation.scoring import by_data_set
from merganser.hashes import sha256_of_json
from merganser.merging.licences import LICENCES
from merganser.report import formats
from merganser.report.baselines import Baseline, mean_of
from merganser.report.bounds import check_claims
from merganser.report.budgets import BUDGETS
from merganser.report.changes import Changes
from merganser.report.choices import Choice, front, ranks, standings
from merganser.report.confusions import Confusions
from merganser.report.explanations import KINDS, TITLES, Explanations
from merganser.report.formulas import mathml
from merganser.report.glossary import TERMS
from merganser.report.layers import short_names
from merganser.report.measured import BY_LAYER, Measured
from merganser.report.origin import Origin
from merganser.report.published import Reproduced
from merganser.report.rows import GROUPS, Row, best_values, by_family, sampling_error
from merganser.report.significance import MEAN, Significance, on_unseen
from merganser.report.spaces import middle_name
from merganser.report.studies import StudyResults
from merganser.report.style import VARIABLES
from merganser.report.sweeps import Curve
from merganser.report.templates import open_templates
from merganser.report.wording import title_of
from merganser.terminal.secrets import masked

EMBEDDED = "examples/"
# of the templates: every function of `formats`
FILTERS = {name: made for name, made in vars(formats).items() if getattr(made, "__module__", None) == formats.__name__}


def render_page(
    params: Params,
    rows: Sequence[Row],
    measured: Measured,
    studies: StudyResults,
    significance: Significance,
    choices: Sequence[Choice],
    plots: Mapping[str, str],
    changes: Changes | None,
    reproduced: Sequence[Reproduced],
    baselines: Sequence[Baseline],
    explanations: Explanations,
    confusions: Confusions,
    searches: Mapping[str, Curve],
    unseen: Significance | None,
    origin: Origin | None = None,
) -> str:
    """Return the page's HTML, without credentials that an address in params.yaml may hold."""
    rows = list(rows)
    environment = open_templates("merganser.report")
    environment.filters |= {**FILTERS, "mathml": mathml}
    page = environment.get_template("page.html.j2").render(
        params=params,
        embedded=params.base.source.startswith(EMBEDDED),
        fingerprint=sha256_of_json(params.model_dump())[:8],
        groups=GROUPS,
        with_data=[row for row in rows if row.data != "NDI"],
        families=by_family(rows),
        rows=rows,
        budgets={budget: [choice for choice in choices if choice.budget is budget] for budget in BUDGETS},
        references=[row for row in rows if row.group == "reference"],
        ranked=sorted(rows, key=lambda row: -row.scores.mean),
        ranks=ranks(rows, significance.pairs[MEAN]),
        standings=standings(choices),
        front={row.entry for row in front(rows, [row.amr for row in rows])},
        terms=TERMS,
        routed=[row for row in rows if row.scores.known is not None],
        grouped=any(by_data_set(row.scores.by_task) for row in rows),
        searched=[row for row in rows if "search" in row.scores.profile],
        licences=dict.fromkeys(line for row in rows for line in row.scores.profile.get(LICENCES, ())),
        best=best_values(rows, params.measured),
        shade=_shades(rows),
        wording=rows[0].wording,
        titles={task: title_of(metric) for task, metric in rows[0].scores.metrics.items()},
        error=sampling_error(rows),
        by_layer=list(BY_LAYER),
        layers=_layers(measured),
        claims=check_claims(measured),
        explanations=explanations,
        confusions=confusions,
        searches=searches,
        middle=middle_name(measured),
        kinds=KINDS,
        measure_titles=TITLES,
        studies=studies,
        verdicts=significance.verdicts,
        unseen_verdicts=unseen.verdicts if unseen else {},
        best_unseen=best_values(on_unseen(rows), list(params.unseen)) if unseen else {},
        changes=changes,
        origin=origin,
        reproduced=reproduced,
        baselines={
            name: [mean_of(baselines, name), *(getattr(each, name) for each in baselines)]
            for name in ("chance", "majority")
            if any(getattr(each, name) is not None for each in baselines)
        },
        plots={name: inline(svg) for name, svg in plots.items()},
    )
    return masked(page)


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
    return Markup(f'<div class="plot">{body}</div>')  # drawn by ourselves; matplotlib escapes the names in it


def _responsive(match: re.Match[str]) -> str:
    """Let a plot fill its figure at two thirds to one and a half times its size: below that it scrolls."""
    box = re.search(r'viewBox="0 0 ([0-9.]+) [0-9.]+"', match[1])
    if box is None:
        return "<svg>"
    pixels = 4 / 3 * float(box[1])  # of points
    return f'<svg {box[0]} role="img" style="min-width: {2 / 3 * pixels:.0f}px; max-width: {1.5 * pixels:.0f}px">'
