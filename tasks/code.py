"""Write the digests of the stages' code; every other stage depends on its own digest, by dvc.yaml."""

from importlib.metadata import version
from pathlib import Path

from merganser.code_digest import CodeTree, listing_digest, texts_as_json
from merganser.config import PARAMS, POINTS_FILE
from merganser.errors import InputError
from merganser.limits import read_yaml
from merganser.outputs import fresh_folder, read_json, write_json
from merganser.plugins import FAMILIES, KINDS, constants
from merganser.tasks.code_record import RECORD, Code, Digest, kept_digests, read_record, refuse_other_code
from merganser.tasks.stage import FOUND_BY_NAME, LISTINGS, TEXTS, card_line, class_line, code_tree, end_well
from merganser.tasks.stages import CODE, KEPT

CARDS = "cards"  # of families


def modules(code: CodeTree) -> dict[str, str]:
    """Return the module of each file of digests: a stage's (`<module>.txt`), or a module found by its name.

    The code of a method (`methods/<name>.txt`), a family or a kind is not part of its stages' code: they depend on
    both.
    """
    stages = [name for name in code.names("merganser.tasks") if code.runs_by_itself(f"merganser.tasks.{name}")]
    names_of_modules = {f"{name}.txt": f"merganser.tasks.{name}" for name in stages}
    for folder, package in FOUND_BY_NAME.items():
        names_of_modules |= {f"{folder}/{name}.txt": f"{package}.{name}" for name in code.names(package)}
    return names_of_modules


def listings(code: CodeTree) -> dict[str, str]:
    """Return the text behind each digest: a line with name and digest for each imported module."""
    return {file: code.listing(module) for file, module in modules(code).items()}


def installed_code(code: CodeTree) -> Code:
    """Return the installed code: the class and the digest of each file."""
    return Code(
        version("merganser"),
        {file: Digest(code.code_class(module), code.digest(module)) for file, module in modules(code).items()},
    )


def recorded_code(root: Path, code: CodeTree) -> dict[str, Digest]:
    """Return the classes and digests that the last stage `code` wrote, by file; empty if it never ran.

    Before version 0.2.0 each file was such a listing; its class is that of its digest in the table of `code`.
    """
    folder = root / CODE
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.txt"))}
    written = {file: path.read_text(encoding="utf-8") for file, path in files.items()}
    if (folder / LISTINGS).is_file():
        listed = read_json(folder / LISTINGS)
        return {file: Digest(text.strip(), listing_digest(listed.get(file, text))) for file, text in written.items()}
    named = modules(code)
    recorded = {}
    for file, text in written.items():
        digest = listing_digest(text)
        known = code.classes.get(named.get(file, ""), {})
        recorded[file] = Digest(text.strip() if file.startswith(f"{CARDS}/") else known.get(digest, digest), digest)
    return recorded


def texts(code: CodeTree, recorded: Code | None = None) -> dict[str, str]:
    """Return the text of each file that stages depend on; `recorded`: a comparison's record, which may keep classes.

    Merges depend only on a family's text for model cards (`cards/<name>.txt`).
    """
    kept = {file: f"{digest.of}\n" for file, digest in kept_digests(recorded).items()}
    left_out = {f"kinds/{kind}.txt" for kind in code.names(FOUND_BY_NAME["kinds"]) if not _is_scored(kind)}
    classes = {file: class_line(code, module) for file, module in modules(code).items() if file not in left_out}
    cards = {f"{CARDS}/{name}.txt": card_line(code, name) for name in code.names(FOUND_BY_NAME["families"])}
    said = (f"{file.removesuffix('.txt')} {digest.kept}\n" for file, digest in kept_digests(recorded).items())
    return classes | kept | cards | {KEPT: "".join(sorted(said))}


def _is_scored(kind: str) -> bool:
    """Tell whether the comparison's family can score a kind, as far as the kind's module declares families.

    Stages depend on the folder of all kinds, so a new kind does not rerun stages of families that cannot score it.
    """
    family = read_yaml(PARAMS)["base"].get("family") if PARAMS.is_file() else None
    pipeline = constants(KINDS, kind).get("PIPELINE")
    return pipeline is None or pipeline in constants(FAMILIES, family).get("PIPELINES", {}).values()


def write_code() -> int:
    """Write all classes, and a cache of the modules' parsed texts, so that no other stage has to parse them.

    Returns the number of classes. Raises InputError if the comparison's record is of other code.
    """
    code = code_tree()
    recorded = read_record(Path()) if RECORD.is_file() else None
    if recorded:
        refuse_other_code(recorded, installed_code(code))
    classes = texts(code, recorded)
    with fresh_folder(CODE) as folder:
        for kind in (*FOUND_BY_NAME, CARDS):
            (folder / kind).mkdir()
        for name, text in classes.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / TEXTS).write_text(texts_as_json(code.texts), encoding="utf-8")
        write_json(folder / LISTINGS, listings(code))
    return len(classes)


def main(argv: list[str]) -> None:
    """Write the classes of all code; raise InputError if points.yaml is of another params.yaml.

    Every stage depends on this one, so plain `dvc repro` stops here, and not at a point whose inputs no stage
    writes.
    """
    if argv:
        raise InputError(f"merganser.tasks.code: takes no arguments, got {' '.join(argv)}")
    if POINTS_FILE.is_file():
        from merganser.config.loading import load_params
        from merganser.config.points import check_points

        check_points(load_params())
    print(f"{CODE}: wrote the code versions of {write_code()} stages and of methods and kinds found by name")


if __name__ == "__main__":
    end_well(main)
