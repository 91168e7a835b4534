"""The pages about the methods say what the registry says."""

import re
from functools import cache
from pathlib import Path

from merganser import registry
from tests.support import each
from tools.catalogue import PAGES, render_pages, write_pages

rendered = cache(render_pages)

SURVEY = {  # its table 1, but for whether a method stores something beside the model
    ("NDI", "High"): ["average", "nan", "della"],
    ("NDI", "Medium"): ["emr", "byom_fft", "byom_lora"],
    ("VDI", "High"): ["regmean", "task_arithmetic", "ties", "dare", "breadcrumbs", "consensus", "surgery"],
    ("VDI", "Medium"): [
        *("fisher", "gradient_matching", "pcb", "tsv_m", "iso_c", "iso_cts", "cart", "star", "knots"),
        *("smile", "free", "twin", "wemoe"),
    ],
    ("VDI", "Low"): ["localize_stitch"],
    ("TTA", "High"): ["adarank"],
    ("TTA", "Low"): ["adamerging", "concrete"],
}
OTHERWISE = {  # what the page of methods says of these
    "regmean": ("VDI", "Medium"),
    "adarank": ("TTA", "Low"),
    "smile": ("NDI", "Medium"),
    "surgery": ("TTA", "High"),
    "wemoe": ("TTA", "Medium"),
}


def test_the_pages_in_docs_are_those_the_registry_gives() -> None:
    found = {page.stem: page.read_text() for page in PAGES.glob("*.md")}
    assert found == rendered(), "run `make docs`"


@each("name", registry.names())
def test_each_method_stands_in_the_table_and_on_its_familys_page(name: str) -> None:
    pages, method = rendered(), registry.get(name)
    assert len(re.findall(rf"^\| \[`{name}`\]\({method.family}\.md#{name}\) ", pages["README"], re.M)) == 1
    (section,) = re.findall(rf"^## {name}$(.*?)(?=^## |\Z)", pages[method.family], re.M | re.S)
    assert method.formula in section
    assert method.paper in section
    for parameter in method.parameters.model_fields:
        assert f"| `{parameter}` |" in section


def test_defaults_of_our_own_are_marked(tmp_path: Path) -> None:
    write_pages(tmp_path)
    page = (tmp_path / "compressed.md").read_text()
    assert "| `k` | integer | 16 (ours) |" in page
    assert "| `rank_fraction` | number or adaptive | 0.3 |" in page  # the paper's, of dts_t


def test_a_page_without_methods_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "forgotten.md").write_text("# none left\n")
    write_pages(tmp_path)
    assert not (tmp_path / "forgotten.md").exists()


@each("name", registry.names())
def test_what_is_ours_is_a_parameter(name: str) -> None:
    method = registry.get(name)
    assert set(method.ours) <= set(method.parameters.model_fields)


def test_methods_are_classed_as_the_survey_does_but_for_the_five_that_the_page_names() -> None:
    printed = {name: classes for classes, names in SURVEY.items() for name in names}
    ours = {name: (registry.get(name).involvement, registry.get(name).efficiency) for name in printed}
    assert {name: classes for name, classes in ours.items() if classes != printed[name]} == OTHERWISE
    assert "They differ from its entries for five methods" in " ".join(rendered()["README"].split())
