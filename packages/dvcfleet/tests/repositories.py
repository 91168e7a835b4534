"""Random DVC repositories of small shell commands, and random changes to them, for the differential drill."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dvc.utils.serialize import load_yaml
from hypothesis import strategies as st

from tests.dvcfleet.twins import SAY

Draw = Callable[[st.SearchStrategy[Any]], Any]

SOURCES = {"source": "one\n", "given/a": "a\n", "given/deep/b": "b\n", "sub/own": "own\n"}
FOLDERS = ("given", "given/deep")
# Where outputs go, besides the folder of their dvc.yaml; a stage may read all of it.
ALL = "all"
PARAMS = {
    "params.yaml": yaml.safe_dump({"rate": 0.1, "model": {"size": 3, "name": "big"}, "parts": {"x": 1, "y": 2}}),
    "other.json": json.dumps({"n": 1, "list": [1, 2], "deep": {"flag": True}}),
    "conf.toml": 'text = "t"\n[deep]\nnumber = 2\n',
}
KEYS = {
    "params.yaml": ("rate", "model.size", "model", "parts"),
    "other.json": ("n", "deep.flag", "list"),
    "conf.toml": ("text", "deep.number"),
}
MADE = "made.yaml"  # parameters that a stage writes
ADDED = "data"
FLAGS = (None, None, None, None, None, None, "frozen", "always_changed", "desc", "meta")
FOLDER, FILE = "folder", "file"


@dataclass
class Out:
    """An output: its path from the root, whether it is a file or a folder, and its options in dvc.yaml.

    `in_run_cache`: whether DVC's run cache may hold its stage; `is_beside_uncached`: whether another output of the
    stage is in no cache, so that DVC cannot restore it.
    """

    path: str
    kind: str
    section: str = "outs"
    options: dict[str, Any] = field(default_factory=dict)
    in_run_cache: bool = True
    is_beside_uncached: bool = False


@dataclass
class Repository:
    """The files of a repository, which of them are added to DVC, and what its stages write."""

    files: dict[str, str]
    added: tuple[str, ...]
    outs: list[Out]

    def described(self) -> str:
        """Return the dvc.yaml files."""
        return "\n".join(f"# {name}\n{text}" for name, text in self.files.items() if name.endswith("dvc.yaml"))


@dataclass
class _Drawn:
    """What a repository's stages may read and where they may write, as it is drawn."""

    mark: str
    may_fail: bool
    readable: list[str]
    places: list[str] = field(default_factory=lambda: [ALL])
    params: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(KEYS))


@st.composite
def repositories(draw: Draw, mark: str, may_fail: bool) -> Repository:
    """Draw a repository of two to six stages, some of which may fail.

    `mark` stands in its commands: DVC's run cache is one for all that are folders of a repository.
    """
    added = (ADDED,) if draw(st.booleans()) else ()
    files = {**SOURCES, **PARAMS, **dict.fromkeys(added, "added\n")}
    drawn = _Drawn(mark, may_fail, [*SOURCES, *FOLDERS, *added])
    content: dict[str, dict[str, Any]] = {".": {}, "sub": {}}
    outs: list[Out] = []
    for number in range(draw(st.integers(2, 6))):
        place = draw(st.sampled_from([".", ".", ".", "sub"]))
        name, stage, wrote = _stage(draw, number, place, drawn)
        content[place][name] = stage
        wrote = [out for out in wrote if "$" not in out.path]
        outs += wrote
        drawn.readable += [out.path for out in wrote]
        drawn.readable += [f"{out.path}/one" for out in wrote if out.kind == FOLDER]
        if ALL in drawn.places and any(out.path.startswith(f"{ALL}/") for out in wrote):
            drawn.readable.append(ALL)
    for place, stages in content.items():
        if stages or place == ".":
            tops: dict[str, Any] = {"vars": [{"word": "hello"}] if place == "." else ["../params.yaml"]}
            files[os.path.normpath(f"{place}/dvc.yaml")] = yaml.safe_dump({**tops, "stages": stages}, sort_keys=False)
    return Repository(files, added, outs)


def _stage(draw: Draw, number: int, place: str, drawn: _Drawn) -> tuple[str, dict[str, Any], list[Out]]:
    """Draw a stage: its name, what dvc.yaml says, and its outputs."""
    name = f"s{number}"
    wdir = draw(st.sampled_from([".", ".", ".", "../given" if place == "sub" else "sub"]))
    here = os.path.normpath(f"{place}/{wdir}")
    template = draw(st.sampled_from([None, None, None, None, "foreach", "map", "matrix"]))
    item = {None: "", "foreach": "-${item}", "map": "-${key}", "matrix": "-${item.x}-${item.y}"}[template]
    deps = draw(st.lists(st.sampled_from(drawn.readable), max_size=3, unique=True))
    if ALL in deps:  # nothing may be written where it was read
        drawn.places = [path for path in drawn.places if path != ALL]
    places = [place, *drawn.places]
    outs = [_out(draw, f"{name}-{each}{item}", places) for each in range(draw(st.sampled_from([0, 1, 1, 1, 2])))]
    stage: dict[str, Any] = {"cmd": ""}
    if wdir != ".":
        stage["wdir"] = wdir
    if deps:
        stage["deps"] = [os.path.relpath(dep, here) for dep in deps]
    if draw(st.integers(0, 3)) == 0:
        stage["params"] = _params(draw, here, drawn.params)
    if MADE not in drawn.params and template is None and draw(st.integers(0, 5)) == 0:
        drawn.params[MADE] = ("made", "more.deep")
        outs.append(Out(MADE, FILE))
    stage["cmd"] = _command(draw, deps, outs, here, drawn)
    for out in outs:
        out.in_run_cache = bool(deps or "params" in stage) and not any("persist" in each.options for each in outs)
        others = [each for each in outs if each is not out and each.section == "outs"]
        out.is_beside_uncached = any("cache" in each.options for each in others)
        path = os.path.relpath(out.path, here)
        stage.setdefault(out.section, []).append({path: out.options} if out.options else path)
    flags = draw(st.sampled_from(FLAGS))
    if flags:
        stage[flags] = {"desc": "What it does", "meta": {"owner": "me", "n": [1, 2]}}.get(flags, True)
    return name, _template(template, stage), outs


def _template(template: str | None, stage: dict[str, Any]) -> dict[str, Any]:
    if template is None:
        return stage
    if template == "matrix":
        return {"matrix": {"x": [1, 2], "y": ["p"]}, **stage}
    return {"foreach": ["a", "b"] if template == "foreach" else "${parts}", "do": stage}


def _out(draw: Draw, name: str, places: list[str]) -> Out:
    kind = draw(st.sampled_from([FILE, FILE, FOLDER]))
    section = draw(st.sampled_from(["outs", "outs", "outs", "metrics", "plots"])) if kind == FILE else "outs"
    options = draw(st.sampled_from([{}, {}, {}, {"cache": False}, {"persist": True}]))
    suffix = {"metrics": ".json", "plots": ".csv"}.get(section, "")
    path = os.path.normpath(f"{draw(st.sampled_from(places))}/{name}{suffix}")
    return Out(path, kind, section, dict(options))


def _command(draw: Draw, deps: list[str], outs: list[Out], here: str, drawn: _Drawn) -> str | list[str]:
    """Draw a command whose outputs follow from the dependencies, each with a content of its own.

    Where two outputs are the same bytes, one lost object of the cache is missed or not by the order of their stages.
    """
    read = " ".join(os.path.relpath(dep, here) for dep in deps)
    found = f"; find {read} -type f -not -name .gitignore | LC_ALL=C sort | xargs cat" if read else ""
    lines = [f": {drawn.mark}", SAY]
    for out in outs:
        path, own = os.path.relpath(out.path, here), f"{drawn.mark}/{out.path}"
        text = f"(echo {own}{found})"
        lines.append(f"mkdir -p {os.path.dirname(path) or '.'}")
        if out.kind == FOLDER:
            lines.append(f"mkdir -p {path}/deep && {text} > {path}/one && echo two > {path}/deep/two")
        elif out.path == MADE:
            lines.append(f'(echo "made: $({text} | wc -c)"; echo "more: {{deep: {own}}}") > {path}')
        elif out.section == "metrics":
            lines.append(f'echo "{{\\"{own}\\": $({text} | wc -c)}}" > {path}')
        else:
            lines.append(f"{text} {'>>' if out.options.get('persist') else '>'} {path}")
    if drawn.may_fail and draw(st.integers(0, 7)) == 0:
        lines.append("exit 3")
    joined = draw(st.sampled_from(["list", "; ", " && ", "\n"]))
    return lines if joined == "list" else joined.join(lines)


def _params(draw: Draw, here: str, known: dict[str, tuple[str, ...]]) -> list[Any]:
    found: list[Any] = []
    for file in draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=2, unique=True)):
        keys = draw(st.lists(st.sampled_from(known[file]), min_size=1, max_size=2, unique=True))
        path = os.path.relpath(file, here)
        found += keys if path == "params.yaml" else [{path: keys}]
    return found


@dataclass(frozen=True)
class Change:
    """A change of both twins, and its name with what it is made to."""

    kind: str
    what: str


@st.composite
def changes(draw: Draw, repository: Repository) -> Change:
    """Draw a change of a repository."""
    # Not missing sources, nor missing outputs that the run cache may not hold: docs/engine.md says what differs then.
    kinds = ["nothing", "edit a source", "edit a parameter", "touch", "change a command", "freeze", "lose dvc.lock"]
    edited = [out for out in repository.outs if not out.is_beside_uncached]
    deleted = [out for out in edited if out.in_run_cache]
    if edited:
        kinds += ["edit an output"] * 2
    if repository.outs:
        kinds += ["lose an object"] * 2 + ["delete an output and its object"]
    if deleted:
        kinds += ["delete an output"] * 2
    kind = draw(st.sampled_from(kinds))
    if kind in ("delete an output", "edit an output"):
        return Change(kind, draw(st.sampled_from(deleted if kind == "delete an output" else edited)).path)
    if "source" in kind or kind == "touch":
        return Change(kind, draw(st.sampled_from([*SOURCES, *repository.added])))
    if kind == "edit a parameter":
        return Change(kind, draw(st.sampled_from(sorted(PARAMS))))
    if "output" in kind or "object" in kind:
        return Change(kind, draw(st.sampled_from(repository.outs)).path)
    names = [
        f"{file}:{name}"
        for file, text in repository.files.items()
        if file.endswith("dvc.yaml")
        for name in yaml.safe_load(text)["stages"]
    ]
    return Change(kind, draw(st.sampled_from(names)))


def make(change: Change, root: Path) -> None:
    """Make a change in the repository whose files are in a folder, which may be one of several of a DVC repository."""
    kind, path = change.kind, root / change.what
    if kind in ("edit a source", "edit an output"):
        path = next((each for each in sorted(path.rglob("*")) if each.is_file()), path) if path.is_dir() else path
        if path.exists():
            text = path.read_text()
            path.unlink()
            path.write_text(f"{text}edited\n")
    elif kind == "edit a parameter":
        path.write_text(path.read_text().replace("1", "5").replace("true", "false").replace("2", "7"))
    elif kind == "touch":
        os.utime(path, (1, 1))
    elif kind == "nothing":
        pass
    elif kind == "lose dvc.lock":
        for lock in root.rglob("dvc.lock"):
            lock.unlink()
    elif kind in ("change a command", "freeze"):
        _edit_stage(root, change)
    else:
        if kind in ("lose an object", "delete an output and its object"):
            _lose_object(root, change.what)
        if kind != "lose an object":
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _edit_stage(root: Path, change: Change) -> None:
    file, name = change.what.split(":")
    content = yaml.safe_load((root / file).read_text())
    stage = content["stages"][name]
    stage = stage.get("do", stage)
    if change.kind == "freeze":
        stage["frozen"] = not stage.get("frozen", False)
    elif isinstance(stage["cmd"], list):
        stage["cmd"].append("true")
    else:
        stage["cmd"] += "; true"
    (root / file).write_text(yaml.safe_dump(content, sort_keys=False))


def _lose_object(root: Path, path: str) -> None:
    """Remove an output's object from the cache, as dvc.lock names it."""
    for lock in root.rglob("dvc.lock"):
        for stage in load_yaml(str(lock)).get("stages", {}).values():
            for out in stage.get("outs", []):
                if os.path.basename(out["path"]) == os.path.basename(path):
                    cache = next(each for each in root.parents if (each / ".dvc").is_dir()) / ".dvc/cache/files/md5"
                    (cache / out["md5"][:2] / out["md5"][2:]).unlink(missing_ok=True)
