"""Check the language of docs, messages and docstrings: lengths, and the words that make a text hard to read.

`python -m tools.prose` checks all pages and the code, `python -m tools.prose PAGE ...` some pages, `--figures` prints
the counts. Code blocks and pages that a tool writes are left out.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "packages/**/*.md")
GENERATED = ("<!-- written by", "# Results on the embedded suite")  # how a page that a tool writes begins
MOST_WORDS, MOST_LINES, LINE, CELL, PARAGRAPH = 40_000, 250, 120, 160, 120
# Of what, which, that and whose, in 1,000 words: of all pages, of a page, and the words from which a page counts.
CLAUSES, PAGE_CLAUSES, FEW = 16, 24, 200
DOCSTRING_CLAUSES = 30
CODE = ("merganser", "tasks", "flows", "packages/dvcfleet/dvcfleet")  # whose strings of some words are messages
SOME = 4
# Their texts stand in results, which an audit compares with those of earlier versions.
RECORDED = {"merganser/merging/cards.py", "merganser/merging/licences.py", "tasks/recorded.py"}
CLAUSE = re.compile(r"\b(?:what|which|that|whose)\b", re.IGNORECASE)
WORD = re.compile(r"[^\W_](?:[\w'’.,:/=+-]*\w)?")
OWN = r"\bof (?:its|their|his|one's) own\b"
INSTEAD = {
    r"\banew\b": "again, or from scratch",
    r"\bbeside\b": "next to, or with",
    r"\bin place of\b": "instead of",
    r"\ball else\b": "everything else",
    OWN: "its own, or separate",
    r"(?:^|[.:;] )Where (?!to\b|from\b|it is|they are)": "if, or when",
    r"(?:^|[.] )Of (?!course)": "a subject to begin with",
    r"\bamid\b": "during, or in the middle of",
    r"\bhence\b": "so",
    r"\bthereof\b|\bwherein\b|\bwhereof\b": "plain words",
}


@dataclass(frozen=True)
class Text:
    """A paragraph, heading or cell as a reader sees it, and the line where it begins."""

    line: int
    text: str
    cell: bool = False


def pages() -> list[Path]:
    """Return the pages that people write, sorted."""
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(path for path in found if not path.read_text().startswith(GENERATED))


def texts(source: str) -> Iterator[Text]:
    """Give the texts of a page in order, without code blocks, HTML and the targets of links."""
    line, cell = 1, False
    for token in MarkdownIt("commonmark").enable("table").parse(source):
        line = token.map[0] + 1 if token.map else line
        if token.type in ("td_open", "th_open"):
            cell = True
        elif token.type in ("td_close", "th_close"):
            cell = False
        elif token.type == "inline" and token.children:
            yield Text(line, _seen(token.children), cell)


def _seen(children: list[Token]) -> str:
    breaks = {"softbreak": " ", "hardbreak": " "}
    return "".join(
        breaks.get(each.type, each.content) for each in children if each.type not in ("html_inline", "image")
    )


def words(source: str) -> list[str]:
    """Return the words that a reader meets."""
    return [word for text in texts(source) for word in WORD.findall(text.text)]


def clauses(source: str) -> float:
    """Return how many of 1,000 words are what, which, that or whose."""
    said = words(source)
    return 1000 * sum(bool(CLAUSE.fullmatch(word)) for word in said) / max(len(said), 1)


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Give each line at fault and what to do about it."""
    lines = source.splitlines()
    if len(lines) > MOST_LINES:
        yield 1, f"{len(lines)} lines: at most {MOST_LINES}; make two pages of it"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE and not line.lstrip().startswith(("|", "http")) and " " in line.strip()[:LINE]:
            yield number, f"{len(line)} characters: at most {LINE} a line"
    for text in texts(source):
        said = WORD.findall(text.text)
        if text.cell and len(text.text) > CELL:
            yield text.line, f"a cell of {len(text.text)} characters: at most {CELL}; link to a section"
        if not text.cell and len(said) > PARAGRAPH:
            yield text.line, f"a paragraph of {len(said)} words: at most {PARAGRAPH}"
        for pattern, instead in INSTEAD.items():
            if used := re.search(pattern, text.text):
                yield text.line, f'"{used[0].strip()}": say {instead}'
    if len(words(source)) >= FEW and (rate := clauses(source)) > PAGE_CLAUSES:
        yield 1, f"{rate:.0f} of 1,000 words are what, which, that, whose: at most {PAGE_CLAUSES}; name things"


def messages(source: str) -> Iterator[Text]:
    """Yield a module's texts of some words, without docstrings; X stands for a formatted value."""
    tree = ast.parse(source)
    skipped = {id(node) for node in _docstring_nodes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(node)} - {id(node)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text.split()) >= SOME:
            yield Text(node.lineno, text)


def docstrings(source: str) -> Iterator[Text]:
    """Yield a module's docstrings, without examples and quoted code."""
    for node in _docstring_nodes(ast.parse(source)):
        prose = re.sub(r"`[^`]*`", "X", inspect.cleandoc(str(node.value)).partition("\n>>>")[0])
        yield Text(node.lineno, " ".join(prose.split()))


def _docstring_nodes(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def code_faults(what: str, texts_in: Callable[[str], Iterator[Text]], most: int, allowed: str = "") -> Iterator[str]:
    """Yield each text of the code with a word not to use, and whether all together have too many clauses.

    `allowed`: the word in INSTEAD that these texts may have.
    """
    said = []
    for path in sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py")):
        # `merganser/flows` is a link to `flows`
        if path.resolve() != path or path.relative_to(ROOT).as_posix() in RECORDED:
            continue
        for text in texts_in(path.read_text()):
            said += WORD.findall(text.text)
            for pattern, instead in INSTEAD.items():
                if pattern != allowed and (used := re.search(pattern, text.text)):
                    yield f'{path.relative_to(ROOT)}:{text.line}: "{used[0].strip()}": say {instead}'
    rate = 1000 * sum(bool(CLAUSE.fullmatch(word)) for word in said) / len(said)
    print(f"{len(said):,} words in {what}, {rate:.1f} of 1,000 are what, which, that, whose", file=sys.stderr)
    if rate > most:
        yield f"{rate:.1f} of 1,000 words in {what} are what, which, that, whose: at most {most}"


def main(arguments: list[str]) -> int:
    """Print the faults of the pages named, or of all; return 1 if there are any."""
    named = [Path(each).resolve() for each in arguments if not each.startswith("-")]
    sources = {path: path.read_text() for path in named or pages()}
    if "--figures" in arguments:
        for path, source in sources.items():
            print(f"{len(words(source)):6} words, {clauses(source):3.0f} clauses  {path.relative_to(ROOT)}")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}" for path, source in sources.items() for line, text in faults(source)
    ]
    whole = "\n\n".join(sources.values())
    count, rate = len(words(whole)), clauses(whole)
    print(f"{count:,} words, {rate:.1f} of 1,000 are what, which, that, whose", file=sys.stderr)
    if not named and count > MOST_WORDS:
        found.append(f"{count:,} words in all: at most {MOST_WORDS:,}")
    if not named and rate > CLAUSES:
        found.append(f"{rate:.1f} of 1,000 words are what, which, that, whose: at most {CLAUSES}")
    if not named:
        found += code_faults("messages", messages, CLAUSES)
        found += code_faults("docstrings", docstrings, DOCSTRING_CLAUSES, allowed=OWN)
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
