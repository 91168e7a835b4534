"""What the pages of docs tell the reader to type: blocks that are run, commands that exist, keys that are accepted."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from typer.core import TyperGroup

from merganser.config.completing import additions, filled
from merganser.config.params import Params
from merganser.flows.commands.cli import app
from tests.dvcfleet.test_slurm import write_commands
from tests.hub import serve
from tests.support import copy_repository, wait_until
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


# A page that goes on with the folders and in the folder in which another one ends.
AFTER = re.compile(r"^<!-- test: after (\S+) -->$", re.M)
FIRST = {(page.parent / found[1]).resolve() for page in PAGES if (found := AFTER.search(page.read_text()))}
HUB = "models/our-lab/feeling"
LONG_S = 900.0
REDIRECTIONS = ("|", ">", "&", "&&")
READER = {f"GIT_{who}_{what}": "reader@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# Pages about a server or a hub of the reader's, by the variables that would name another one.
ALONE = {"docs/tutorials/scheduled-lab.md": ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "HF_HUB_OFFLINE")}


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
                yield list(takewhile(lambda each: each not in REDIRECTIONS, shlex.split(said[1], comments=True)))


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


class Shell:
    """The shell in which a reader types the blocks of a page, one after the other."""

    def __init__(self, folder: Path, begin: Path, variables: dict[str, str]) -> None:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        command = folder / "bin/merganser"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m merganser.flows "$@"\n')
        command.chmod(0o755)
        path = f"{command.parent}{os.pathsep}{variables['PATH']}"
        self.folder, self.log = folder, folder / "log"
        with self.log.open("w") as log:
            self._bash = subprocess.Popen(
                ["bash", "-e"],
                cwd=begin,
                env=variables | {"PATH": path},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def run(self, text: str) -> Path:
        """Run a block; return the folder in which it leaves the reader, and fail if one of its commands did."""
        block, where = self.folder / "block", self.folder / "where"
        where.unlink(missing_ok=True)
        block.write_text(text)
        assert self._bash.stdin
        self._bash.stdin.write(f". {block} < /dev/null\npwd > {where}.new; mv {where}.new {where}\n")
        self._bash.stdin.flush()
        wait_until(lambda: where.exists() or self._bash.poll() is not None, LONG_S)
        assert where.exists(), self.log.read_text()
        return Path(where.read_text().strip())

    def end(self) -> None:
        """End the shell, and with it a command that the page left in the background."""
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.wait(LONG_S)


class Pages:
    """Pages whose blocks were run, for the pages that go on where another ends: `<!-- test: after PAGE -->`.

    All begin at the same path, because a comparison's files name paths.
    """

    def __init__(self, folder: Path, prefect_api: str) -> None:
        self.folder, self.server = folder, {"PREFECT_API_URL": prefect_api}
        self._kept: dict[Path, tuple[Path, Path]] = {}  # by page: a copy of the folder, and where the reader is in it

    def run(self, page: Path) -> None:
        """Run the blocks of a page in order, in one shell and one session of Python, unless another page had it run."""
        if page in self._kept:
            return
        begin = self._start_of(page)
        variables = environment() | READER | self.server | {"CLONE": str(ROOT)}
        for name in ALONE.get(str(page.relative_to(ROOT)), ()):
            variables.pop(name, None)
        if page.stem == "slurm":
            commands, jobs = write_commands(self.folder.parent / "slurm")
            variables |= {"PATH": f"{commands}{os.pathsep}{variables['PATH']}", "SLURM_STAND_IN": str(jobs)}
            variables |= {"DASK_JOBQUEUE__SLURM__INTERFACE": "lo", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        with pytest.MonkeyPatch.context() as patch, serve({HUB: self.folder / "mine/feeling"}) as hub:
            folder, names = self.folder.parent / page.stem, {"__name__": "__main__"}
            shell = Shell(folder, begin, variables | {"HF_ENDPOINT": hub.url})
            patch.chdir(begin)
            try:
                for block in blocks(page):
                    if block.test == "python":
                        exec(compile(block.text, str(page), "exec"), names)
                    elif block.test == "sh":
                        patch.chdir(shell.run(block.text))
                shell.run('[ -z "$(jobs -r)" ]')
                self._keep(page, Path.cwd())
            finally:
                shell.end()

    def _start_of(self, page: Path) -> Path:
        after = AFTER.search(page.read_text())
        self._clear()
        if after is None:
            self.folder.mkdir()
            return self.folder
        earlier = (page.parent / after[1]).resolve()
        if earlier not in self._kept:
            self.run(earlier)
            self._clear()
        copy, where = self._kept[earlier]
        copy_repository(copy, self.folder)
        return where

    def _clear(self) -> None:
        """Remove what the page before has left; DVC's queue may write there a little longer."""

        def gone() -> bool:
            shutil.rmtree(self.folder, ignore_errors=True)
            return not self.folder.exists()

        wait_until(gone)

    def _keep(self, page: Path, where: Path) -> None:
        if page in FIRST:
            copy = self.folder.with_name(f"after-{page.stem}")
            self._kept[page] = copy_repository(self.folder, copy), where


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Pages:
    return Pages(tmp_path_factory.mktemp("pages") / "reader", prefect_api)


@pytest.mark.drill
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.test for block in blocks(page))], ids=name)
def test_the_blocks_of_a_page_do_what_it_says(page: Path, pages: Pages) -> None:
    pages.run(page)
