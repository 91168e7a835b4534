"""Hooks of the docs' site (`mkdocs.yml`): pages made of the code, files outside `docs/`, and formulas as MathML.

Pages link to files as GitHub shows them, also to files outside `docs/`. On the site such a file is a page under
`repository/`, so that every link is checked and leads somewhere.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from merganser.flows.commands.cli import app
from merganser.report.formats import mathml
from tools.reference import commands_page, functions_page, keys_page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = "repository"
START = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
_NAMED = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)\)")
_FORMULA = re.compile(r"^\$\$ (.+) \$\$$", re.M)
_FENCE = re.compile(r"^( *```.*?^ *```$)", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages made of the code, the files outside `docs/` that a page links to, and those that they link to."""
    files.append(File.generated(config, "commands.md", content=commands_page(app)))
    files.append(File.generated(config, "keys.md", content=keys_page()))
    files.append(File.generated(config, "api.md", content=functions_page()))
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.generated_by is None] + list(
        START
    )
    found = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            files.append(File.generated(config, _page_of(path), content=_text_of(path)))
        for target in _targets(path) - found:
            if (ROOT / target).is_file() and not target.startswith("docs/"):
                found.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages and write formulas as MathML, except in blocks of code."""
    source = _source_of(page.file.src_uri)
    parts = _FENCE.split(markdown)
    return "".join(
        part if place % 2 else _site_text(part, source, page.file.src_uri) for place, part in enumerate(parts)
    )


def _site_text(text: str, source: str, page: str) -> str:
    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        there = posixpath.relpath(_page_of(target), posixpath.dirname(page) or ".")
        return f"{match[1]}{there}{match[3] or ''})"

    def unlinked(match: re.Match[str]) -> str:
        """Leave the words alone where they link to a folder without a README.md, which GitHub lists."""
        folder = ROOT / posixpath.dirname(source) / match[2]
        return match[1] if folder.is_dir() and not (folder / "README.md").is_file() else match[0]

    text = _NAMED.sub(unlinked, text)
    text = _FORMULA.sub(lambda match: f'<div class="formula">{mathml(match[1])}</div>', text)
    return _LINK.sub(link, text)


def _targets(path: str) -> set[str]:
    if not path.endswith(".md"):
        return set()
    text = "".join(_FENCE.split((ROOT / path).read_text())[::2])
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2])) for match in _LINK.finditer(text)}


def _page_of(path: str) -> str:
    """Return where the site has a file of the repository; a folder is read in its README.md."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}" if path.endswith(".md") else f"{OUTSIDE}/{path}.md"


def _source_of(page: str) -> str:
    """Return the file of the repository that a page shows."""
    if not page.startswith(f"{OUTSIDE}/"):
        return f"docs/{page}"
    path = page.removeprefix(f"{OUTSIDE}/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def _text_of(path: str) -> str:
    text = (ROOT / path).read_text()
    language = {".py": "python", ".yaml": "yaml"}.get(Path(path).suffix, "text")
    return text if path.endswith(".md") else f"# {path}\n\n````{language}\n{text}````\n"
