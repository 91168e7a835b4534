"""Generate the pages about the methods from the registry: `python -m tools.catalogue` (`make docs`).

One page per family under `docs/methods/`, and a table of all methods. A test holds the pages to the registry.
"""

import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from merganser import registry
from merganser.descriptions import default_of, describe_method
from merganser.flows.suites.published import figures_of
from merganser.flows.suites.ready import load_suite
from merganser.limits import read_yaml
from merganser.outputs import read_json
from merganser.report.templates import open_templates

ROOT = Path(__file__).resolve().parent.parent
PAGES, EVIDENCE = ROOT / "docs/methods", ROOT / "docs/evidence"
TABLE = "table"
SUITES = ("minilm", "vit-s", "smollm2")  # of real models, with results in `EVIDENCE`
PUBLISHED = "clip-vit-b-32-8"  # the suite whose published figures are shown
YEAR = re.compile(r"\b(?:19|20)\d\d\b(?!\.)")


def write_pages(folder: Path) -> list[Path]:
    """Write the table of all methods and one page per family; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / f"{name}.md": text for name, text in render_pages().items()}
    for stray in set(folder.glob("*.md")) - set(pages):
        stray.unlink()
    for path, text in pages.items():
        path.write_text(text)
    return list(pages)


def render_pages() -> dict[str, str]:
    """Return each page's text by its name: README, and the families that have methods."""
    texts = read_yaml(PAGES / "families.yaml")
    families: dict[str, Any] = texts["families"]
    environment = open_templates("tools", html=False)
    environment.filters["default_of"] = default_of
    render = environment.get_template("methods.md.j2").render
    described = [describe_method(registry.describe(name)) for name in registry.names()]
    described.sort(key=lambda method: list(families).index(method["family"]))
    introduction = {each: texts[each] for each in ("overview", "agreement")}
    pages = {"README": render(**introduction, families=families, family=None, methods=described)}
    for name, family in families.items():
        members = [method for method in described if method["family"] == name]
        if members:
            pages[name] = render(overview=None, families=families, family=family, methods=members)
    pages[TABLE] = render(overview=None, families=families, family=None, methods=described, rows=rows(described))
    return {name: f"{text.strip()}\n" for name, text in pages.items()}


def rows(described: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the lines of the table of scores: of each method, what papers report and what was measured here."""
    published, measured = _published(), {suite: _measured(suite) for suite in SUITES}
    found = []
    for method in described:
        name = method["name"]
        year = YEAR.search(method["paper"])
        mean, by = published.get(name, ("", ""))
        own = {suite: scores.get(name, "") for suite, scores in measured.items()}
        found.append({"name": name, "year": year[0] if year else "", "published": mean, "by": by, **own})
    return found


def _published() -> dict[str, tuple[str, str]]:
    """Return the mean that a paper reports of each method on the eight tasks of ViT-B/32, and the paper's table.

    Of several the first one, in the order of the suite's tables; an entry of the method's own name goes first.
    """
    params = load_suite(ROOT, PUBLISHED)
    found: dict[tuple[str, bool], tuple[str, str]] = {}
    for table in figures_of(ROOT, PUBLISHED, params)["tables"]:
        if "mean" not in table["columns"]:
            continue
        place = table["columns"].index("mean")
        for entry, figures in table["rows"].items():
            method = params.methods[entry].method if entry in params.methods else None
            if method and figures[place] is not None:
                mean = f"{figures[place]:.{table['decimals']}f}"
                found.setdefault((method, entry == method), (mean, f"{table['paper']}, {table['table']}"))
    return {name: each for (name, _), each in sorted(found.items(), key=lambda one: one[0][1])}


def _measured(suite: str) -> dict[str, str]:
    """Return each entry's mean score on a suite of real models, over its seeds, with their standard deviation."""
    runs = [read_json(path)["entries"] for path in sorted(EVIDENCE.glob(f"{suite}-[0-9]*.json"))]
    found = {}
    for entry in set[str].intersection(*(set(run) for run in runs)):
        means = [100 * run[entry]["mean"] for run in runs]
        spread = f" ± {stdev(means):.1f}" if len(means) > 1 else ""
        found[entry] = f"{fmean(means):.1f}{spread}"
    return found


if __name__ == "__main__":
    for page in write_pages(PAGES):
        print(page.relative_to(Path.cwd()))
