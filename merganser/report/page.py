"""The page: one self-contained HTML file with its style, script and plots."""

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from merganser.evaluation.scoring import by_data_set
from merganser.hashes import sha256_of_json
from merganser.merging.licences import LICENCES
from merganser.report import formats
from merganser.report.comparison import Comparison
from merganser.report.formats import mathml
from merganser.report.glossary import TERMS
from merganser.report.plots import VARIABLES
from merganser.report.sections import Section, sections
from merganser.report.sections import __path__ as places
from merganser.report.templates import open_templates
from merganser.terminal.secrets import masked

EMBEDDED = "examples/"
# of the templates: every function of `formats`
FILTERS = {name: made for name, made in vars(formats).items() if getattr(made, "__module__", None) == formats.__name__}
MACROS = ("term", "heading", "data_mark", "mean")  # of terms.html.j2, for every template


def render_page(comparison: Comparison, plots: Mapping[str, str]) -> str:
    """Return the page's HTML, without credentials that an address in params.yaml may hold."""
    environment = open_templates("merganser.report", *places)
    environment.filters |= {**FILTERS, "mathml": mathml}
    macros = environment.get_template("terms.html.j2").make_module({"terms": TERMS})
    environment.globals |= {name: getattr(macros, name) for name in MACROS}
    environment.globals |= {
        "entry_count": len(comparison.rows),
        "shown": {row.entry for row in comparison.shown},
        "params": comparison.params,
        "rows": comparison.shown,
        "wording": comparison.wording,
        "plots": {name: inline(svg) for name, svg in plots.items()},
    }
    page = environment.get_template("page.html.j2").render(
        embedded=comparison.params.base.source.startswith(EMBEDDED),
        fingerprint=sha256_of_json(comparison.params.model_dump())[:8],
        licences=dict.fromkeys(line for row in comparison.rows for line in row.scores.profile.get(LICENCES, ())),
        fragments=_fragments(environment, comparison),
        ways=sum(row.group != "reference" for row in comparison.rows),
        grouped=any(by_data_set(row.scores.by_task) for row in comparison.rows),
        terms=TERMS,
    )
    return masked(page)


def _fragments(environment: Environment, comparison: Comparison) -> dict[str, Markup]:
    """Return the HTML of every stand-alone section, empty if it has no content."""
    known = sections()

    def fragment(name: str, section: Section[Any]) -> Markup:
        data = comparison.of(section.read)
        shown = None if data is None else section.page(data)
        if shown is None:
            return Markup()
        inside = [fragment(other, each) for other, each in known.items() if each.inside == name]
        text = section.template
        template = environment.from_string(text) if text else environment.get_template(f"{name}.html.j2")
        return Markup(template.render({name: data, **shown, "inside": [each for each in inside if each]}))

    return {name: fragment(name, section) for name, section in known.items() if section.inside is None}


def inline(svg: str) -> Markup:
    """Embed a plot into the page: without prologue, metadata or fixed size, in the page's colours and font."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r"<svg ([^>]*?)>", _responsive, body, count=1, flags=re.S)
    body = re.sub(r"'DejaVu Sans'[^;\"]*?sans-serif", "system-ui, sans-serif", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return Markup(f'<div class="plot">{body}</div>')  # drawn by ourselves; matplotlib escapes the names in it


def _responsive(match: re.Match[str]) -> str:
    """Let a plot fill its figure at two thirds to one and a half times its size; in smaller figures it scrolls."""
    box = re.search(r'viewBox="0 0 ([0-9.]+) [0-9.]+"', match[1])
    if box is None:
        return "<svg>"
    pixels = 4 / 3 * float(box[1])  # of points
    return f'<svg {box[0]} role="img" style="min-width: {2 / 3 * pixels:.0f}px; max-width: {1.5 * pixels:.0f}px">'
