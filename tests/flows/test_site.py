"""The docs' site: it needs no network, and its build refuses dead links."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import merganser
from tests.support import python
from tools.site import ROOT

TAGS = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"' >]+)")
PAGE = """# Start

[page](gone.md), [part](other.md#gone), ![picture](gone.svg), [file](../gone.py), [good](../README.md#words)
"""


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [*python(), "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    return subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = {page: TAGS.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(pages) > 40
    assert all(pages.values())
    assert not [(page.name, url) for page, urls in pages.items() for url in urls if re.match(r"(https?:)?//", url)]
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style


def test_formulas_are_written_without_scripts(site: Path) -> None:
    page = (site / "methods/spectral.html").read_text()
    assert page.count("<math ") == page.count("</math>") > 5
    assert "$$" not in page


def test_all_commands_and_keys_are_on_pages_made_of_the_code(site: Path) -> None:
    commands, keys = ((site / page).read_text() for page in ("commands.html", "keys.html"))
    for name in ("run", "merge", "lineage verify", "node init"):
        assert f">merganser {name}<" in commands
    assert "--max-shard-size SIZE" in commands
    for name in ("tasks.NAME.data", "evaluation", "studies.tasks.methods.NAME", "learned.NAME, adamerging"):
        assert f">{name}<" in keys
    assert "number &gt; 0 ≤ 1" in keys


def test_the_functions_of_the_package_are_on_a_page_made_of_the_code(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "api.html").read_text())
    for name in merganser.__all__:
        assert f"merganser.{name}" in page
    assert "models: Mapping[str, str | os.PathLike[str]]," in page
    assert "Merge fine-tuned models onto their base" in page


def test_a_file_outside_of_docs_that_a_page_links_to_is_a_page(site: Path) -> None:
    assert "../params.yaml" not in (site / "results.html").read_text()
    assert 'href="repository/params.yaml.html"' in (site / "results.html").read_text()
    assert "task_arithmetic" in (site / "repository/params.yaml.html").read_text()


def test_every_dead_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/site.py", tmp_path / "tools")
    config = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - Start")[0]
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs/README.md").write_text(PAGE)
    (tmp_path / "docs/other.md").write_text("# Other\n")
    for name in ("params", "python"):
        (tmp_path / f"docs/{name}.md").write_text(f"# {name}\n")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).write_text(f"# {name}\n\n[dead](docs/dead-{name})\n\n## Words\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    warned = set(re.findall(r"contains a link '([^']+)'", done.stderr))
    assert warned == {
        "gone.md",
        "other.md#gone",
        "gone.svg",
        "repository/gone.py.md",
        "../dead-README.md",
        "../dead-CONTRIBUTING.md",
        "../dead-CHANGELOG.md",
    }
