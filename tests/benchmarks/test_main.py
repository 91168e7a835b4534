import importlib.util
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS, put
from benchmarks.harness import ROOT

MARKED = (
    "# Figures\n\n<!-- engine -->\n\nold\n\n<!-- end of engine -->\n\n<!-- merges -->\n<!-- end of merges -->\nlast\n"
)


def test_what_a_part_prints_takes_its_place_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(MARKED)
    put("engine", "| new |\n", page)
    put("merges", "more", page)
    assert page.read_text().splitlines() == [
        *("# Figures", "", "<!-- engine -->", "", "| new |", "", "<!-- end of engine -->", ""),
        *("<!-- merges -->", "", "more", "", "<!-- end of merges -->", "last"),
    ]


def test_a_part_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(MARKED)
    with pytest.raises(ValueError, match="no place for costs"):
        put("costs", "text", page)


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_a_module_and_has_its_place_in_a_page(name: str) -> None:
    part = PARTS[name]
    assert importlib.util.find_spec(f"benchmarks.{part.words[0]}")
    assert f"<!-- {name} -->\n" in (ROOT / "docs" / part.page).read_text()
