"""What may fall and not rise: `python -m tools.ratchet`, in `make check`, holds the code to `tools/ratchet.txt`.

Each line there is a number and what it counts. `--write` lowers the numbers that have fallen; `--write --because WHY`
also raises those that have risen, and writes the reason behind them.
"""

import argparse
import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePath

import grimp

Table = Mapping[str, tuple[int, str]]  # by what is counted: the number, and why it rose
ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tools/ratchet.txt"
ENGINE = "packages/dvcfleet/dvcfleet"
PACKAGES = ("merganser", "tasks", "flows", ENGINE)
# Rooms whose modules all have the names of one protocol.
PLUGINS = (
    *(
        f"merganser/{room}"
        for room in (
            *("evaluation/kinds", "statistics/kinds", "models/families", "at_run_time/additions", "methods"),
            "report/sections",
        )
    ),
    *(f"{ENGINE}/runners{runner}" for runner in ("", "/dask", "/ray", "/slurm")),
)
VAGUE = ("found", "each")
# By commands, the modules that they begin with.
COMMANDS = {
    "`merganser run`": ("dvcfleet.run", "merganser.flows.comparison"),
    "`merganser lineage verify`": ("dvcfleet.lineage.audit", "merganser.flows.evidence.lineage_hooks"),
    "the stage `merge`": ("merganser.tasks.merge",),
}


def main() -> int:
    """Compare the code with the table; return 1 where a number has risen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the numbers that have fallen")
    parser.add_argument("--because", default="", metavar="WHY", help="write also those that have risen, and why")
    given = parser.parse_args()
    table, now = read_table(TABLE.read_text(encoding="utf-8")), measured()
    if given.write:
        table = updated(table, now, given.because)
        TABLE.write_text(table_text(table), encoding="utf-8")
    found = risen(table, now)
    for what in found:
        print(f"{what}: {now[what]}, and tools/ratchet.txt allows {table[what][0] if what in table else 0}")
    if found:
        print('make it fewer, or say why: python -m tools.ratchet --write --because "WHY"', file=sys.stderr)
    return int(bool(found))


def risen(table: Table, now: Mapping[str, int]) -> list[str]:
    """List what there is more of than a table allows; what the table lacks is one of these."""
    return [what for what, count in now.items() if what not in table or count > table[what][0]]


def updated(table: Table, now: Mapping[str, int], because: str = "") -> dict[str, tuple[int, str]]:
    """Return a table with the numbers that have fallen, and, where there is a reason, those that have risen."""
    new = {}
    for what, count in now.items():
        if what not in risen(table, now):
            new[what] = count, table[what][1]
        elif because:
            new[what] = count, because
        elif what in table:
            new[what] = table[what]
    return new


def measured() -> dict[str, int]:
    """Count what the table has."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in _files()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    rooms = Counter[str]()
    for name, count in lines.items():
        rooms[room_of(name)] += count
    return {
        "public functions and classes that several modules define": len(defined_twice(trees)),
        "imports of another module's private names": sum(map(private_imports, trees.values())),
        "variables that are called found or each": sum(map(vague_names, trees.values())),
        "lines of the longest module": max(lines.values()),
        **{f"modules that {command} reaches": count for command, count in _reached().items()},
        **{f"lines in {room}": count for room, count in sorted(rooms.items())},
        "lines in all": sum(lines.values()),
    }


def room_of(name: str) -> str:
    """Return the package of a module, below the package at the top.

    >>> room_of("merganser/models/families/clip.py"), room_of("tasks/merge.py")
    ('merganser/models', 'tasks')
    """
    top = next(package for package in PACKAGES if name.startswith(f"{package}/"))
    inside = PurePath(name).relative_to(top).parts
    return f"{top}/{inside[0]}" if len(inside) > 1 else top


def defined_twice(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the modules that define the same public name, without plugins, commands and `main`."""
    places = defaultdict[str, list[str]](list)
    for name, tree in trees.items():
        if str(PurePath(name).parent) in PLUGINS and PurePath(name).name != "__init__.py":
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not _is_command(node):
                places[node.name].append(name)
    return {name: found for name, found in places.items() if len(found) > 1 and name != "main" and name[0] != "_"}


def private_imports(tree: ast.Module) -> int:
    """Count the names with an underscore before them that a module imports."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return sum(name.name.startswith("_") for node in imports for name in node.names)


def vague_names(tree: ast.Module) -> int:
    """Count what is assigned to a variable whose name does not say what it holds, outside comprehensions.

    >>> vague_names(ast.parse("found = [each for each in range(3)]"))
    1
    """
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.comprehension)]
    inside = (name for loop in loops for name in ast.walk(loop.target))
    return sum(map(_is_vague, ast.walk(tree))) - sum(map(_is_vague, inside))


def _is_vague(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE


def _is_command(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any("command" in ast.unparse(each) or "callback" in ast.unparse(each) for each in node.decorator_list)


def _reached() -> dict[str, int]:
    graph = grimp.build_graph("merganser", "dvcfleet", cache_dir=None)
    return {
        command: len(set().union(*({module} | graph.find_upstream_modules(module) for module in modules)))
        for command, modules in COMMANDS.items()
    }


def _files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if name.endswith(".py") and not (ROOT / name).is_symlink()]


def read_table(text: str) -> dict[str, tuple[int, str]]:
    """Read lines such as `30 what it counts  # why it rose`."""
    table = {}
    for line in text.splitlines():
        counted, _, why = line.partition("  # ")
        count, _, what = counted.strip().partition(" ")
        table[what] = int(count), why
    return table


def table_text(table: Table) -> str:
    """Write what `read_table` reads."""
    return "".join(f"{count:>6} {what}{f'  # {why}' if why else ''}\n" for what, (count, why) in table.items())


if __name__ == "__main__":
    sys.exit(main())
