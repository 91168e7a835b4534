"""Write the digests of the code that stages and methods run; every other stage depends on its own, by dvc.yaml."""

from collections.abc import Mapping
from pathlib import Path

from merganser.code_digest import CodeTree
from merganser.errors import InputError
from tasks.paths import CODE
from tasks.stage import end_well, fresh_folder


def digests(root: Path) -> Mapping[str, str]:
    """Return a file's text for each stage (`<module>.txt`) and each method (`methods/<name>.txt`): a line a module.

    A method's digest is not part of its stages': they depend on both.
    """
    code = CodeTree(root)
    stages = [name for name in code.names("tasks") if code.runs_by_itself(f"tasks.{name}")]
    methods = code.names("merganser.methods")
    listed = {f"{name}.txt": code.listing(f"tasks.{name}") for name in stages}
    return listed | {f"methods/{name}.txt": code.listing(f"merganser.methods.{name}") for name in methods}


def main(argv: list[str]) -> None:
    """Write all digests."""
    if argv:
        raise InputError(f"tasks.code: takes no arguments, got {' '.join(argv)}")
    found = digests(Path())
    with fresh_folder(CODE) as folder:
        (folder / "methods").mkdir()
        for name, text in found.items():
            (folder / name).write_text(text, encoding="utf-8")
    print(f"{CODE}: digests of the code of {len(found)} stages and methods")


if __name__ == "__main__":
    end_well(main)
