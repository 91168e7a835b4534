"""What the pages of docs tell the reader to type: blocks that are run, commands that exist, keys that are accepted."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from typer.core import TyperGroup

from merganser.config.completing import additions, filled
from merganser.config.params import Params
from merganser.flows.commands.cli import app
from tests.tiny import ROOT, environment

FOLDERS = (ROOT / "docs", ROOT / "packages")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for folder in FOLDERS for page in folder.rglob("*.md")),
]
# `<!-- test: WHAT -->` before a block has it run, in the order of the page: `python` or `sh`.
BLOCK = re.compile(
    r"(?:^ *<!-- test: (?P<test>\S+) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    language: str
    text: str
    test: str | None


def blocks(page: Path) -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text()):
        yield Block(found["language"], re.sub(rf"^{found['indent']}", "", found["text"], flags=re.M), found["test"])


def commands(page: Path) -> Iterator[list[str]]:
    """Give the arguments of each `merganser` command of a page; what is set apart by two spaces says what it does."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", "").splitlines():
            said = re.match(r"(?:\$ |> )?merganser ((?:\S+ ?)+)", line)
            if block.language in ("", "sh") and said:
                yield shlex.split(said[1], comments=True)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))], ids=name)
def test_every_command_of_a_page_is_one_and_has_these_options(page: Path) -> None:
    for arguments in commands(page):
        command, rest = typer.main.get_command(app), arguments
        while isinstance(command, TyperGroup) and rest:
            assert rest[0] in command.commands, f"merganser {shlex.join(arguments)}"
            command, rest = command.commands[rest[0]], rest[1:]
        if rest and "..." not in rest:  # else it only says what there is
            command.make_context("merganser", rest)


def test_the_picture_of_the_engine_has_the_packages_of_the_import_rules_in_their_order() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (rule["layers"] for rule in rules if rule.get("containers") == ["dvcfleet"])
    texts = [block.text for block in blocks(ROOT / "packages/dvcfleet/docs/engine.md")]
    picture = next(text for text in texts if text.startswith("command_line "))
    assert [line.split()[0] for line in picture.splitlines()] == " | ".join(layers).split(" | ")


def sections(page: Path) -> Iterator[tuple[str, object]]:
    """Give each section of params.yaml that a block of a page holds."""
    for block in blocks(page):
        if block.language == "yaml" and isinstance(said := yaml.safe_load(block.text), dict):
            known = set(said) <= set(Params.model_fields)
            complete = filled(said, additions(said)) if known else {}
            yield from ((key, complete[key]) for key in said if known)


@pytest.mark.parametrize("page", [page for page in PAGES if any(sections(page))], ids=name)
def test_the_keys_and_values_of_params_yaml_in_a_page_are_accepted(page: Path) -> None:
    for section, value in sections(page):
        field = Params.model_fields[section]
        try:
            TypeAdapter(field.rebuild_annotation()).validate_python(value)
        except ValidationError as error:
            mistakes = [each for each in error.errors() if each["type"] != "missing"]  # a page may show a part
            assert mistakes == [], f"{section}: {mistakes}"


@pytest.mark.drill
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.test for block in blocks(page))], ids=name)
def test_the_blocks_of_a_page_do_what_it_says(
    page: Path, tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}  # a reader goes on in one session
    for block in blocks(page):
        if block.test == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.test == "sh":
            script = f'merganser() {{ python -m merganser.flows "$@"; }}\n{block.text}\npwd > {tmp_path}/folder'
            done = subprocess.run(
                ["bash", "-e", "-c", script],
                env=environment() | {"PREFECT_API_URL": prefect_api, "CLONE": str(ROOT)},
                text=True,
                capture_output=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            monkeypatch.chdir((tmp_path / "folder").read_text().strip())  # a reader goes on in one shell
