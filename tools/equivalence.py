"""Show which code writes the same bytes as an earlier commit's: `python -m tools.equivalence [--since COMMIT]`.

The golden comparisons run by both, the new code under the classes of the old. What a stage writes from the same inputs
is then compared, and says whether the code that it depends on stays in its class; code that no golden comparison shows
to be equal begins a class of its own. The table of classes is `merganser/code_classes.txt`. `--check` says whether it
has all of today's code.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from merganser.code_digest import CLASSES, CodeTree
from merganser.config.completing import completed
from merganser.config.loading import check_params, load_params
from merganser.config.points import write_points
from merganser.inputs import factors, joints
from merganser.limits import read_yaml
from merganser.tasks.code import modules, recorded_code
from merganser.tasks.code_record import Digest
from merganser.tasks.stages import MERGED
from tools import golden
from tools.golden.run import FOUND

ROOT = Path(__file__).resolve().parents[1]
CODE = "data/code"
NOT_COMPARED = {"code.txt", *(f"{kind}.txt" for kind in golden.LEFT_OUT)}  # what they write says when it was written
# Code of one entry, else of the statistics, else of one task, else of the family: what evaluates shows what it changes.
OF_THEIR_OWN = ("methods/", "statistics.txt", "kinds/", "families/")
FINGERPRINT = "fingerprint"  # of a file that a stage that is started again may keep: no result
# What a stage's fingerprints are of, where that is less than all of its code.
PARTS = {"decompose.txt": factors.CODE, "join.txt": (joints.CODE,)}


@dataclass
class Evidence:
    """The stages that wrote the same bytes by old and new code, and those that wrote others."""

    same: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


def main() -> int:
    """Run the golden comparisons and write the table; return 1 where `--check` finds code that is not in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="the earlier commit (default: HEAD)")
    parser.add_argument("--check", action="store_true", help="say whether the table has all of today's code")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to work, and to leave what was compared")
    given = parser.parse_args()
    here = named(CodeTree(ROOT))
    missing = unknown(here, CodeTree(ROOT))
    if given.check or not missing:
        print(f"not in {CLASSES}: {', '.join(missing)}; python -m tools.equivalence" if missing else "all is known")
        return bool(missing)
    if set(missing) <= NOT_COMPARED:
        write_table(ROOT, CodeTree(ROOT), here, {}, {})
        print(f"{', '.join(missing)}: run again, as after each change")
        return 0
    with tempfile.TemporaryDirectory(prefix="equivalence-") as scratch:
        decide(given.folder or Path(scratch), given.since, here)
    return 0


def named(code: CodeTree) -> dict[str, tuple[str, ...]]:
    """Return the modules behind each line of the table: files of `data/code`, and parts of their code."""
    return {file: (module,) for file, module in modules(code).items()} | {
        f"{file} in part": part for file, part in PARTS.items()
    }


def unknown(names: Mapping[str, tuple[str, ...]], code: CodeTree) -> list[str]:
    """Name what the table does not have the digest of."""
    return [name for name, of in names.items() if code.digest(*of) not in code.classes.get("+".join(of), {})]


def decide(folder: Path, since: str, names: Mapping[str, tuple[str, ...]]) -> None:
    """Run the golden comparisons by the commit `since` and by this tree, and write what stays in its class.

    One that the commit does not have is left out: its code may not know the family or the kind of task.
    """
    code, old, new = CodeTree(ROOT), folder / "old", folder / "new"
    check_out(since, old)
    refuse_unnoted(CodeTree(old), since)
    copy(new)
    pairs = {
        comparison: begin(comparison, folder) for comparison in golden.MAKERS if params_in(old, comparison).is_file()
    }
    first, _ = next(iter(pairs.values()))
    run(old, [first], "--only", "code").wait()
    known = known_of(first, CodeTree(old))
    for place in (new, *(after for _, after in pairs.values())):
        write_table(place, code, names, known, {name: Evidence(same=["assumed"]) for name in names})
    sides = [run(tree, places) for tree, places in zip((old, new), zip(*pairs.values(), strict=True), strict=True)]
    exit_codes = [side.wait() for side in sides]
    if any(exit_codes):
        raise SystemExit(f"a golden comparison did not run: {folder} has its log")
    changed = {name for name, of in names.items() if name in known and known[name].digest != code.digest(*of)}
    found: dict[str, Evidence] = {}
    for before, after in pairs.values():
        gather(found, before, after, changed)
    write_table(ROOT, code, names, known, found)
    for name in filter(changed.__contains__, names):
        print(verdict(name, evidence_of(name, found)))


def refuse_unnoted(code: CodeTree, since: str) -> None:
    """Exit where an earlier commit's own code is not in its table: equal code would begin new classes."""
    unnoted = set(unknown({file: (module,) for file, module in modules(code).items()}, code)) - NOT_COMPARED
    if unnoted:
        raise SystemExit(f"{since}: {CLASSES} lacks its own code; name the last commit that notes all by --since")


def verdict(name: str, found: Evidence) -> str:
    """Say what is shown of code that changed."""
    if found.other:
        return f"{name}: OTHER RESULTS ({', '.join(found.other[:4])}): the changelog has to say so"
    return f"{name}: the same bytes ({len(found.same)} stages)" if found.same else f"{name}: NOT SHOWN, another class"


def evidence_of(name: str, found: Mapping[str, Evidence]) -> Evidence:
    """Return what speaks for a line of the table: of a part, what speaks for its stage."""
    return found.get(name.removesuffix(" in part"), Evidence())


def write_table(
    root: Path,
    code: CodeTree,
    names: Mapping[str, tuple[str, ...]],
    known: Mapping[str, Digest],
    found: Mapping[str, Evidence],
) -> None:
    """Write the table of classes with the digests of today's code; of modules that are gone nothing stays."""
    lines = []
    for name, of in names.items():
        key, digest, before = "+".join(of), code.digest(*of), known.get(name)
        classes: dict[str, list[str]] = {}
        for each, group in code.classes.get(key, {}).items():
            classes.setdefault(group, []).append(each)
        if before:
            add(classes, before.of, before.digest)
        evidence = evidence_of(name, found)
        same = before and (before.digest == digest or (evidence.same and not evidence.other))
        if not any(digest in group for group in classes.values()):
            add(classes, before.of if before and same else digest, digest)
        lines += [" ".join([key, *group]) for group in classes.values()]
    (root / CLASSES).write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")


def add(classes: dict[str, list[str]], of: str, digest: str) -> None:
    """Put a digest into a class, which its own digest begins."""
    group = classes.setdefault(of, [of])
    if digest not in group:
        group.append(digest)


def known_of(ran: Path, code: CodeTree) -> dict[str, Digest]:
    """Return what a comparison that ran says of its code, and of the parts that fingerprints are of."""
    parts = {f"{file} in part": part for file, part in PARTS.items()}
    whole = recorded_code(ran, code)
    return whole | {name: Digest(code.code_class(*part), code.digest(*part)) for name, part in parts.items()}


def check_out(commit: str, folder: Path) -> None:
    """Check a commit out into a folder."""
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", commit], cwd=folder, check=True)


def copy(folder: Path) -> None:
    """Copy this tree as it stands, with what is not committed."""
    check_out("HEAD", folder)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        target.unlink(missing_ok=True)
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def params_in(tree: Path, comparison: str) -> Path:
    """Return where a tree has the params.yaml of a golden comparison."""
    return tree / "tools/golden" / f"{comparison}.yaml"


def begin(comparison: str, folder: Path) -> tuple[Path, Path]:
    """Make a comparison's folders with the old code and the new; return them. Its params.yaml is the old code's."""
    old = folder / "old"
    params, inputs = params_in(old, comparison), folder / "inputs" / comparison
    golden.write(comparison, inputs)
    text, _ = completed(params.read_text(), str(params))
    places = (folder / f"old-{comparison}", folder / f"new-{comparison}")
    for tree, place in zip((old, folder / "new"), places, strict=True):
        shutil.copytree(tree, place, symlinks=True)
        shutil.copytree(inputs, place, dirs_exist_ok=True)
        (place / "params.yaml").write_text(text)
        write_points(load_params(place / "params.yaml"), place)
    return places


def run(tree: Path, folders: Iterable[Path], *options: str) -> "subprocess.Popen[bytes]":
    """Begin to run comparisons by the code of a tree, which each of their folders has."""
    path = os.pathsep.join(map(str, (tree, tree / "packages/dvcfleet")))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(golden.HERE / "run.py"), *map(str, folders), *options]
    with tree.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def gather(found: dict[str, Evidence], old: Path, new: Path, changed: Collection[str]) -> None:
    """Add what two runs of a comparison say: of the stages that read the same, whether they wrote the same.

    Other results speak against the changed methods that a stage used, if there are any, else against the code of
    statistics, else against the changed kinds of task, else against the changed family: these run again by their own
    classes, and what all stages share stays if the others wrote the same.
    """
    before, after = (json.loads((folder / FOUND).read_text()) for folder in (old, new))
    used = used_by(new)
    for name in before.keys() & after.keys():
        one, two = before[name], after[name]
        inputs = [path for path in {*one["deps"], *two["deps"]} if not path.startswith(CODE)]
        outs = {path: varies for path, varies in two["outs"].items() if varies is not True}
        if f"{name.partition('@')[0]}.txt" in NOT_COMPARED:
            continue
        if one["exit_code"] or two["exit_code"]:
            raise SystemExit(f"{new.name}: {name}: exit codes {one['exit_code']} and {two['exit_code']}")
        if all(alike(old / path, new / path) for path in inputs):
            same = all(alike(old / path, new / path, varies) for path, varies in outs.items())
            files = {each for path in two["deps"] for each in code_files(new, path, used)}
            own = [{file for file in files & set(changed) if file.startswith(each)} for each in OF_THEIR_OWN]
            for file in files if same else next(filter(None, own), files):
                evidence = found.setdefault(file, Evidence())
                (evidence.same if same else evidence.other).append(f"{new.name.partition('-')[2]}: {name}")


def code_files(root: Path, path: str, used: set[str]) -> Iterator[str]:
    """List the files of `data/code` that a dependency is; of a folder, those of names that the comparison uses."""
    place = root / path
    if path.startswith(f"{CODE}/") and place.is_file():
        yield place.relative_to(root / CODE).as_posix()
    elif path.startswith(f"{CODE}/"):
        yield from (file.relative_to(root / CODE).as_posix() for file in place.glob("*.txt") if file.stem in used)


def used_by(folder: Path) -> set[str]:
    """Return what a comparison that ran names, and what its merges need at run time, whose names their files have."""
    content = read_yaml(folder / "params.yaml")
    params = check_params(content, folder / "params.yaml")
    kinds = {params.about(name).kind for name in (*params.tasks, *params.unseen)}
    return kinds | {*strings(content)} | {path.stem for path in (folder / MERGED).rglob("*.*")}


def strings(content: Any) -> Iterator[str]:
    """List all keys and values that are text."""
    if isinstance(content, Mapping):
        yield from (key for key in content if isinstance(key, str))
        yield from strings([*content.values()])
    elif isinstance(content, list):
        yield from (text for each in content for text in strings(each))
    elif isinstance(content, str):
        yield content


def alike(one: Path, two: Path, varies: Iterable[str] = ()) -> bool:
    """Tell whether two files or folders are the same but for fingerprints, and for keys that vary from run to run."""
    if one.is_dir() and two.is_dir():
        names = [sorted(path.relative_to(top).as_posix() for path in top.rglob("*")) for top in (one, two)]
        return names[0] == names[1] and all(alike(one / name, two / name) for name in names[0])
    if one.is_dir() or two.is_dir() or not (one.is_file() and two.is_file()):
        return one.is_dir() == two.is_dir() and one.exists() == two.exists()
    if one.read_bytes() == two.read_bytes():
        return True
    if one.suffix == ".json":
        return bool(without(json.loads(one.read_text()), varies) == without(json.loads(two.read_text()), varies))
    return one.suffix == ".safetensors" and tensors(one) == tensors(two)


def without(content: Any, varies: Iterable[str]) -> Any:
    """Return a JSON file's content without fingerprints and what varies."""
    if isinstance(content, Mapping):
        return {key: without(value, ()) for key, value in content.items() if key not in {FINGERPRINT, *varies}}
    return [without(each, ()) for each in content] if isinstance(content, list) else content


def tensors(path: Path) -> Any:
    """Return the tensors' bytes, shapes and dtypes, and the metadata: Merganser's own without fingerprints."""
    with safe_open(path, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    own = without(json.loads(metadata.pop("merganser", "null")), ())
    return (
        metadata,
        own,
        {
            name: (value.dtype, value.shape, value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            for name, value in found.items()
        },
    )


if __name__ == "__main__":
    sys.exit(main())
