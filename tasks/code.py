"""Write the digests of the code that stages run; every other stage depends on its own, by dvc.yaml."""

from collections.abc import Mapping
from pathlib import Path

from merganser.code_digest import CodeTree, texts_as_json
from merganser.errors import InputError
from merganser.outputs import fresh_folder
from merganser.tasks.code_record import refuse_other_code
from merganser.tasks.stage import FOUND_BY_NAME, TEXTS, card_line, code_tree, end_well
from merganser.tasks.stages import CODE

CARDS = "cards"  # of families


def digests(code: CodeTree) -> Mapping[str, str]:
    """Return a file's text for each stage (`<module>.txt`) and each module found by its name: a line a module.

    The digest of a method (`methods/<name>.txt`), a family or a kind is not part of its stages': they depend on both.
    Of a family, merges depend on what it says of its models in cards alone (`cards/<name>.txt`).
    """
    stages = [name for name in code.names("merganser.tasks") if code.runs_by_itself(f"merganser.tasks.{name}")]
    listed = {f"{name}.txt": code.listing(f"merganser.tasks.{name}") for name in stages}
    for folder, package in FOUND_BY_NAME.items():
        listed |= {f"{folder}/{name}.txt": code.listing(f"{package}.{name}") for name in code.names(package)}
    return listed | {f"{CARDS}/{name}.txt": card_line(code, name) for name in code.names(FOUND_BY_NAME["families"])}


def main(argv: list[str]) -> None:
    """Write all digests, and what the modules' own texts say, by their bytes: no other stage has to parse them."""
    if argv:
        raise InputError(f"merganser.tasks.code: takes no arguments, got {' '.join(argv)}")
    code = code_tree()
    found = digests(code)
    refuse_other_code(Path(), found)
    with fresh_folder(CODE) as folder:
        for kind in (*FOUND_BY_NAME, CARDS):
            (folder / kind).mkdir()
        for name, text in found.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / TEXTS).write_text(texts_as_json(code.texts), encoding="utf-8")
    print(f"{CODE}: digests of the code of {len(found)} stages and of what is found by its name")


if __name__ == "__main__":
    end_well(main)
