"""The names and links that an archive may hold: what is restored stays in its folder, and out of what git and DVC use.

By text alone, so that they are checked before anything is written.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

# Of DVC's folder and the engine's: settings and records. Everything else there is working state of one machine.
_DVC = re.compile(r"\.dvc/(config|\.gitignore|plots/[^/]+\.json)")
_ENGINE = re.compile(
    r"\.dvcfleet/(\.gitignore|ledger\.jsonl|ledgers/[^/]+\.jsonl(\.gz)?"
    r"|environments/[0-9a-f]{64}\.json|changes/[0-9a-f]{64}\.patch)"
)
# What HFS+ ignores in names, so that `.g\u200cit` is `.git` there.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT = re.compile(r"\.git|git~\d+")
_RESERVED = (".dvc", ".dvcfleet")
# SQLite rolls back what the journal beside a database says, which may name files anywhere.
_JOURNAL = re.compile(r".*\.db-(journal|wal|shm|mj.*)")


def why_refused(name: str) -> str:
    """Say why an archive may not hold a file of this path in its folder; empty if it may."""
    if why := why_elsewhere(name):
        return why
    parts = [_IGNORED.sub("", part).casefold().rstrip(". ") for part in name.split("/")]
    if any(_GIT.fullmatch(part) for part in parts):
        return "git's own folder, whose settings run commands"
    if parts[0] == ".dvc" and not _DVC.fullmatch(name):
        return "not one of the files in .dvc that an archive has: config, .gitignore, plots/*.json"
    if parts[0] == ".dvcfleet" and not _ENGINE.fullmatch(name):
        return "not one of the records in .dvcfleet that an archive has"
    if _JOURNAL.fullmatch(parts[-1]):
        return "a database's journal, which SQLite would play back"
    return ""


def why_elsewhere(name: str) -> str:
    """Say why a path is not one inside a folder, written out plainly; empty if it is."""
    parts = PurePosixPath(name).parts
    if not name or name != "/".join(parts) or name.startswith("/") or ".." in parts or "\0" in name or "\n" in name:
        return "a path that leads elsewhere"
    return ""


def is_reserved(name: str) -> bool:
    """Tell whether a path is that of git's, DVC's or the engine's folder, or in one."""
    parts = [_IGNORED.sub("", part).casefold().rstrip(". ") for part in name.split("/")]
    return parts[0] in _RESERVED or any(_GIT.fullmatch(part) for part in parts)


def wrong_links(links: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the links, by their paths and what is wrong with them, that lead out of the folder or to its innards.

    `links`: the target of each by its path. A link may lead to another one, but not through one.
    """
    for path, target in links.items():
        if target.startswith("/") or "\0" in target:
            yield path, "an absolute path"
        elif (reached := _reached(path, target, links)) is None:
            yield path, "out of the folder, to its root, or through another link"
        elif is_reserved(reached):
            yield path, "a folder of git's, DVC's or the engine's"


def _reached(path: str, target: str, links: Mapping[str, str]) -> str | None:
    """Return the path that a link leads to; None if it is not a path in the folder that passes through no link."""
    place = path.split("/")[:-1]
    parts = [part for part in target.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        if part != "..":
            place.append(part)
        elif place:
            place.pop()
        else:
            return None
        if number < len(parts) - 1 and "/".join(place) in links:
            return None
    return "/".join(place) or None
