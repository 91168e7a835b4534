"""The container's file names what there is, and takes nothing along that git would not."""

import re

from tests.tiny import CODE, ROOT

LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def said(word: str) -> list[list[str]]:
    return [line.split()[1:] for line in LINES if line.startswith(f"{word} ")]


def test_it_begins_with_an_image_that_any_builder_finds_by_its_name() -> None:
    ((image,),) = said("FROM")
    assert re.fullmatch(r"[a-z]+:[a-z.0-9-]+", image)


def test_the_environment_is_made_of_files_that_are_there() -> None:
    copied = {name for *names, _ in said("COPY")[:-1] for name in names}
    assert all((ROOT / name).exists() for name in copied)
    assert {name for name in CODE if (ROOT / name).is_dir()} <= copied
    # What the stamp of the environment and its installation read; all else is copied once it is made.
    assert {"Makefile", "pyproject.toml", "constraints.txt", "setup.py", "README.md", "LICENSE"} <= copied
    assert LINES.index("RUN make venv") < LINES.index("COPY . .")


def test_what_a_clone_has_besides_is_left_out() -> None:
    left = set((ROOT / ".dockerignore").read_text().split("\n"))
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    written = {line.strip("/") for line in ignored[: ignored.index("")] if line.startswith("/")}
    assert written | {".venv", ".dvc/cache"} <= left
    assert ".git" not in left  # runs note the commit
