"""Tamper with a finished comparison in each way, and tell what `lineage verify`, an anchor and signatures find.

`python -m tests.faults.tampering` runs the tiny comparison, tries all, writes docs/tamperings.md and the table of
docs/tampering.md, and prints the counts. REPOSITORY is a finished tiny comparison; `--only NAMES` tries some and writes
nothing. Each is tried in a fork of one process that has imported what verifying takes, in a copy of the repository at
one place.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Any

from dvcfleet.lineage.steps import Finding, FindingKind
from dvcfleet.record.chain import anchor_of, check_chains, parse_anchor
from tests.faults.tamperings import TAMPERINGS
from tests.faults.tamperings.edits import LEDGER_FILE, STATE
from tests.tiny import CODE, ROOT, make_repository, merganser, move_artifacts

PAGE, LIST = ROOT / "docs/tampering.md", ROOT / "docs/tamperings.md"
BEGIN, END = "<!-- tamperings: python -m tests.faults.tampering writes this -->", "<!-- end of tamperings -->"
MISSED_HEAD = ("| edit | found by | why `verify` misses it |", "|---|---|---|")
LIST_HEAD = ("| edit | `verify` reports | anchor | signatures |", "|---|---|---|---|")
LIST_TITLE = """<!-- written by `python -m tests.faults.tampering` -->

# All edits tried

Every edit of [Which edits are found](tampering.md), with the kinds of findings of `merganser lineage verify`."""
WIDTH = 118  # of a line of the page
NOTHING = "**not found**"
UNTOUCHED, MODULES = "untouched", "modules.txt"
_CURVE = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")


@dataclass(frozen=True)
class Found:
    """The kinds of findings of a tampering: those of `verify` by itself, by an anchor alone and by signatures alone."""

    plain: tuple[str, ...]
    anchored: tuple[str, ...]
    signed: tuple[str, ...]
    lines: tuple[str, ...] = ()
    error: tuple[str, ...] = ()  # the traceback of a tampering that failed


def prepare(repository: Path, folder: Path) -> Path:
    """Copy a finished comparison into a folder, sign and anchor it; return the copy."""
    kept = folder / "kept"
    subprocess.run(["cp", "-a", str(repository), str(kept)], check=True)
    private, public = folder / "key.pem", folder / "key.pub"
    subprocess.run(["openssl", "genpkey", *_CURVE, "-out", str(private)], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    move_artifacts(kept)
    assert not os.waitpid(_forked(partial(_sign, kept, private)), 0)[1], "not signed"
    return kept


def _sign(kept: Path, private: Path) -> None:
    from merganser.flows.evidence.keys import PrivateKey
    from merganser.flows.evidence.signing import sign

    os.chdir(kept)
    key = PrivateKey(private)
    sign(kept, key, key)
    _anchor(kept).write_text(str(anchor_of(kept / STATE)))


def _anchor(kept: Path) -> Path:
    return kept.parent / "anchor.txt"


def try_all(kept: Path, names: Sequence[str], workers: int = 1) -> dict[str, Found]:
    """Try tamperings in copies of a signed comparison; return what was found of each.

    Only a process without threads may be forked: each worker is one.
    """
    _import_all(kept)
    processes = [_forked(partial(_work, kept, number, names[number::workers])) for number in range(workers)]
    ends = [os.waitpid(process, 0)[1] for process in processes]
    assert not any(ends), "a worker failed"
    found: dict[str, dict[str, Any]] = {}
    for number in range(workers):
        found |= json.loads(_results(kept, number).read_text())
    return {name: Found(**{part: tuple(values) for part, values in found[name].items()}) for name in names}


def _import_all(kept: Path) -> None:
    """Import what verifying an untouched copy imports: the forks begin with it."""
    _work(kept, 0, [UNTOUCHED])
    for name in (kept.parent / "place-0" / MODULES).read_text().split():
        with suppress(Exception):  # one that its package makes, or removes
            importlib.import_module(name)
    from sqlalchemy.orm import configure_mappers

    configure_mappers()


def _forked(act: Callable[[], None]) -> int:
    """Do something in a fork of this process; return its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _results(kept: Path, number: int) -> Path:
    return kept.parent / f"found-{number}.json"


def _work(kept: Path, number: int, names: Sequence[str]) -> None:
    """Try tamperings one after the other at a place of this worker's."""
    place = kept.parent / f"place-{number}"
    _results(kept, number).write_text(json.dumps({name: _tried(kept, place, name) for name in names}))


def _tried(kept: Path, place: Path, name: str) -> Any:
    subprocess.run(["rm", "-rf", str(place)], check=True)
    place.mkdir()
    subprocess.run(["cp", "-a", "--reflink=auto", str(kept), str(place / "repo")], check=True)
    move_artifacts(place / "repo")
    os.waitpid(_forked(partial(_become, place, name, kept)), 0)
    return json.loads((place / "found.json").read_text())


def _become(place: Path, name: str, kept: Path) -> None:
    """Tamper and verify, and write what was found."""
    said: dict[str, object] = {part: [] for part in ("plain", "anchored", "signed", "lines", "error")}
    try:
        os.environ["DVC_SITE_CACHE_DIR"] = str(place / "site")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        with (place / "output.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(place / "repo")
        if name != UNTOUCHED:
            TAMPERINGS[name].tamper()
        said |= _verified(kept.parent / "key.pub", _anchor(kept).read_text())
    except BaseException:
        said["error"] = traceback.format_exc().splitlines()
    (place / MODULES).write_text("\n".join(sys.modules))
    (place / "found.json").write_text(json.dumps(said))


def _verified(key: Path, anchor: str) -> dict[str, list[str]]:
    """Verify the present folder; a message instead of findings is a finding too."""
    from dvcfleet.errors import UserError
    from dvcfleet.lineage.audit import audit
    from merganser.flows.evidence.keys import PublicKey
    from merganser.flows.evidence.signing import check_signatures

    public = PublicKey(key)
    kinds: dict[str, list[str]] = {"lines": []}
    for part, find in (
        ("plain", lambda: audit(Path()).findings),
        ("anchored", lambda: _by_anchor(anchor)),
        ("signed", lambda: check_signatures(Path(), public, public)[0]),
    ):
        try:
            found = list(find())
            kinds[part] = list(dict.fromkeys(each.kind.value for each in found))
            kinds["lines"] += map(str, found)
        except UserError as refused:
            kinds[part] = ["refused"]
            kinds["lines"].append(f"{part}: {refused}")
    return kinds


def _by_anchor(anchor: str) -> Iterator[Finding]:
    """Find what `verify --anchored` finds of the ledger and `verify` does not."""
    state = STATE.absolute()
    plain, anchored = (
        check_chains(state, given)[state / LEDGER_FILE.name].faults for given in (None, parse_anchor(anchor))
    )
    yield from (Finding(FindingKind.RECORD, str(LEDGER_FILE), fault) for fault in anchored if fault not in plain)


def missed(found: Mapping[str, Found]) -> Iterator[str]:
    """Give the lines of the page's table: the edits that `verify` misses, and how many are found."""
    yield from wrap(counted(found), WIDTH)
    yield ""
    yield from MISSED_HEAD
    for by in ("nothing", "signatures", "anchor", "anchor, signatures"):
        for name, each in found.items():
            if not each.plain and _finders(each) == by:
                yield _row(TAMPERINGS[name].text, by, TAMPERINGS[name].why)


def listed(found: Mapping[str, Found]) -> Iterator[str]:
    """Give the lines of the list of all edits: single ones, and consistent ones of several files."""
    yield LIST_TITLE
    for title, is_consistent in {"One edit": False, "Several files edited consistently": True}.items():
        yield ""
        yield f"## {title}"
        yield ""
        yield from LIST_HEAD
        for name, each in found.items():
            if TAMPERINGS[name].is_consistent is is_consistent:
                others = ("found" if kinds else "" for kinds in (each.anchored, each.signed))
                yield _row(TAMPERINGS[name].text, ", ".join(each.plain[:2]) or NOTHING, *others)


def _finders(found: Found) -> str:
    both = {"anchor": found.anchored, "signatures": found.signed}
    return ", ".join(name for name, kinds in both.items() if kinds) or "nothing"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def counted(found: Mapping[str, Found]) -> str:
    """Say how many tamperings are found, and by what."""
    several = sum(TAMPERINGS[name].is_consistent for name in found)
    lost = [each for each in found.values() if not each.plain]
    anchored, signed = sum(bool(each.anchored) for each in lost), sum(bool(each.signed) for each in lost)
    never = sum(not each.anchored and not each.signed for each in lost)
    return (
        f"`verify` finds {len(found) - len(lost)} of {len(found)} edits. {several} of the {len(found)} change several "
        f"files consistently. It misses {len(lost)}: signatures find {signed} of these and an anchor {anchored}. "
        f"Nothing finds the other {never}."
    )


def mistakes(found: Mapping[str, Found]) -> Iterator[str]:
    """Say which tamperings failed, and which are not found without a word on why."""
    for name, each in found.items():
        if each.error:
            yield "\n".join([f"{name}: not tried", *each.error])
        elif not each.plain and not TAMPERINGS[name].why:
            yield f"{name}: not found, and it has no `why`"


def with_table(page: str, lines: Iterator[str]) -> str:
    """Return the page with these lines between its marks."""
    mark = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    assert mark.search(page), f"{PAGE} has no {BEGIN}"
    text = "\n".join(chain([BEGIN, ""], lines, ["", END]))
    return mark.sub(lambda _: text, page)


def pages(found: Mapping[str, Found]) -> dict[Path, str]:
    """Return the pages about these tamperings as they should be."""
    return {
        PAGE: with_table(PAGE.read_text(encoding="utf-8"), missed(found)),
        LIST: "\n".join(listed(found)) + "\n",
    }


@contextmanager
def finished(repository: Path | None, folder: Path) -> Iterator[Path]:
    """Give a finished tiny comparison: the one that is given, else a new one."""
    if repository:
        yield repository
        return
    made = make_repository(folder / "tiny")
    git = ["git", "-C", str(made), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", *CODE, "params.yaml"], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)
    merganser(made, "run", "--workers", "2")
    yield made


def main() -> int:
    """Try all and write the table, or some; return 1 if an untouched comparison has findings, or a `why` is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", help="names of tamperings: nothing is written")
    parser.add_argument("--check", action="store_true", help="write nothing, and compare with the pages")
    parser.add_argument("--lines", type=Path, help="a file for all that is found, in full")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    names = given.only or list(TAMPERINGS)
    with tempfile.TemporaryDirectory() as scratch, finished(given.repository, Path(scratch)) as repository:
        found = try_all(prepare(repository, Path(scratch)), [UNTOUCHED, *names], given.workers)
    wrong = [f"untouched: {line}" for line in found.pop(UNTOUCHED).lines] + list(mistakes(found))
    if given.lines:
        given.lines.write_text(json.dumps({name: asdict(each) for name, each in found.items()}, indent=1))
    for name in names if given.only else ():
        print(f"{name}:", *found[name].lines, sep="\n    ")
    texts = {} if given.only else pages(found)
    for page, text in texts.items():
        if not given.check:
            page.write_text(text, encoding="utf-8")
        elif text != page.read_text(encoding="utf-8"):
            wrong.append(f"{page.name}: its table differs; `python -m tests.faults.tampering` writes it")
    print(*wrong, counted(found), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
