"""Digests of the code that a module runs: its own and that of all the project's modules that it imports.

Comments, docstrings and formatting do not count: editing them changes no digest. Modules are parsed, not imported.
Digests of code that was shown to write the same bytes are a class (`CLASSES`, written by `tools.equivalence`): results
depend on the class.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any

from merganser.errors import InputError, refusing
from merganser.plugins import GROUP, OwnMethod, literals, own_methods, parsed

ROOT = Path(__file__).parents[1]
PACKAGES = ("merganser",)  # the project's own; a digest does not cover other packages' versions
# Left out, with what only they import: they decide what is accepted, how it is refused, and where files are. The values
# they read are parameters of the stages, and dvc.yaml holds the paths too. No stage calls the functions for users.
NEUTRAL = ("merganser.api", "merganser.config", "merganser.errors", "merganser.limits", "merganser.tasks.stages")

# A line a class: modules, and the digests that they and all they import had; the first names the class.
CLASSES = Path("merganser/code_classes.txt")

# What this process knows of modules, by their names and the bytes of their files: none is parsed twice.
KNOWN: dict[str, "Text"] = {}

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One module: the digest of its code, and the names of the modules that it may import."""

    name: str
    digest: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """The facts in one module's own text, independent of other modules."""

    digest: str
    imported: tuple[str, ...]
    strings: tuple[str, ...]  # that may name a module


@dataclass
class CodeTree:
    """The code below a folder; each module is parsed once.

    `known`: earlier results, by module name and the bytes of the file, which need no parsing. `texts`: the results
    for the tree's own modules.
    """

    root: Path
    known: dict[str, Text] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)
    _modules: dict[str, Module | None] = field(default_factory=dict)
    _listings: dict[str, str] = field(default_factory=dict)

    def followed(self, name: str) -> list[Module]:
        """List a module and all that it imports, sorted by name; raise InputError if one is missing or not Python."""
        if self._module(name) is None:
            raise InputError(f"{name}: no such module in {self.root}")
        modules: dict[str, Module] = {}
        todo = [name]
        while todo:
            current = todo.pop()
            if current in modules or f"{current}.".startswith(tuple(f"{name}." for name in NEUTRAL)):
                continue
            if module := self._module(current):
                modules[current] = module
                todo += module.needs
        return sorted(modules.values(), key=lambda module: module.name)

    def listing(self, name: str) -> str:
        """Return one line per module that a module imports, with its name and digest."""
        if name not in self._listings:
            self._listings[name] = "".join(f"{module.name} {module.digest}\n" for module in self.followed(name))
        return self._listings[name]

    def code_class(self, *names: str) -> str:
        """Return the class of modules' code: the digest of code that writes the same bytes, or else its own."""
        digest = self.digest(*names)
        return self.classes.get("+".join(names), {}).get(digest, digest)

    def digest(self, *names: str) -> str:
        """Return the digest of modules and of all that they import."""
        return listing_digest("".join(map(self.listing, names)))

    @cached_property
    def classes(self) -> Mapping[str, Mapping[str, str]]:
        """The class of each known digest, by module."""
        path = self.root / CLASSES
        return read_classes(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def names(self, package: str) -> list[str]:
        """List the names of a package's modules, without its sub-packages."""
        folder = self.root.joinpath(*package.split("."))
        own = self._own if package == GROUP else {}
        return sorted({*own, *(file.stem for file in folder.glob("*.py") if file.stem != "__init__")})

    @cached_property
    def _own(self) -> Mapping[str, OwnMethod]:
        """The methods of the comparison in the current folder, and of installed packages."""
        return own_methods()

    def runs_by_itself(self, name: str) -> bool:
        """Tell whether a module has a `main` function, as every stage's module has."""
        return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in self._tree(name).body)

    def constants(self, name: str) -> dict[str, Any]:
        """Return the literal values of a module's names in capitals."""
        return literals(self._tree(name))

    def _tree(self, name: str) -> ast.Module:
        path = self._path(name)
        return parsed(path, path.read_bytes()) if path else ast.Module([], [])

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            path = self._path(name)
            self._modules[name] = self._read(name, path) if path else None
        return self._modules[name]

    def _read(self, name: str, path: Path) -> Module:
        content, own = path.read_bytes(), self._own_method(name)
        importing = own.module if own else name  # where relative imports start
        key = hashlib.sha256(f"{importing} {path.name}\n".encode() + content).hexdigest()
        if key not in self.known:
            self.known[key] = _text(importing, path, content)
        text = self.texts[key] = self.known[key]
        # A string that names a module counts as an import of it; a string that names a package, also of its data files,
        # and with `.*` behind it, of its modules, which are found by their names.
        # Of the whole package they are not data of a module: a wheel has more there than a clone.
        named = [string for string in text.strings if "." in string and self._path(string)]
        packages = [string.removesuffix(".*") for string in text.strings if string.endswith(".*")]
        named += [each for package in packages if self._path(package) for each in self._modules_of(package)]
        files = "".join(
            f"{file.relative_to(self.root)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"
            for package in named
            for file in self._data_files(package)
        )
        digest = hashlib.sha256(f"{text.digest}\n{files}".encode()).hexdigest() if files else text.digest
        # and its parent packages, whose `__init__` runs first
        needs = [
            whole for part in (name, *text.imported, *named) for whole in accumulate(part.split("."), "{}.{}".format)
        ]
        return Module(name, digest, tuple(dict.fromkeys(needs)))

    def _modules_of(self, package: str) -> list[str]:
        """List a package's modules, and the packages in it."""
        inside = self.root.joinpath(*package.split(".")).glob("*/__init__.py")
        return [f"{package}.{name}" for name in (*self.names(package), *sorted(file.parent.name for file in inside))]

    def _data_files(self, package: str) -> list[Path]:
        return sorted(_files_below(self.root.joinpath(*package.split("."))))

    def _path(self, name: str) -> Path | None:
        """Return a module's file as Python would find it from the root; None if it is not the project's."""
        root = self.root if _is_ours(name) else self._roots.get(name.partition(".")[0])
        if root is None:
            return None
        folder = root.joinpath(*name.split("."))
        files = (path for path in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")) if path.is_file())
        own = self._own_method(name)
        return next(files, own.file if own else None)

    def _own_method(self, name: str) -> OwnMethod | None:
        package, _, module = name.rpartition(".")
        return self._own.get(module) if package == GROUP else None

    @cached_property
    def _roots(self) -> Mapping[str, Path]:
        """The folders of installed packages with methods: a method's code is also what it imports of its package."""
        installed = [(own.module.split("."), own.file) for own in self._own.values() if not own.of_comparison]
        places = (
            (parts[0], file.parent if file.name == "__init__.py" else file, len(parts)) for parts, file in installed
        )
        return {package: place.parents[depth - 1] for package, place, depth in places}


@cache
def code_digest(*names: str) -> str:
    """Return the class of the code of these modules together, for a fingerprint."""
    return _own_code().code_class(*names)


@cache
def _own_code() -> CodeTree:
    return CodeTree(ROOT, KNOWN)


def listing_digest(listing: str) -> str:
    """Return the digest of a module's listing, as `CLASSES` has it."""
    return hashlib.sha256(listing.encode()).hexdigest()


def read_classes(text: str) -> dict[str, dict[str, str]]:
    """Read the table of classes: the class of each digest, by module."""
    classes: dict[str, dict[str, str]] = {}
    for name, *digests in map(str.split, text.splitlines()):
        classes.setdefault(name, {}).update(dict.fromkeys(digests, digests[0]))
    return classes


def _files_below(folder: Path) -> Iterator[Path]:
    """List a package's data files, including those in its folders but not in its sub-packages."""
    for path in folder.glob("[!.]*"):
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name != CLASSES.name:
            yield path
        elif path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from _files_below(path)


def texts_as_json(texts: Mapping[str, Text]) -> str:
    """Return parsed modules as `read_texts` reads them."""
    return json.dumps({key: asdict(text) for key, text in sorted(texts.items())}) + "\n"


def read_texts(file: Path) -> dict[str, Text]:
    """Read parsed modules; empty if there is no such file."""
    if not file.is_file():
        return {}
    with refusing(f"{file}: not written by the stage `code`", "run that stage again"):
        known = json.loads(file.read_text(encoding="utf-8"))
        return {
            key: Text(text["digest"], tuple(text["imported"]), tuple(text["strings"])) for key, text in known.items()
        }


def _text(name: str, path: Path, content: bytes) -> Text:
    tree = parsed(path, content)
    _drop_docstrings(tree)
    nodes = list(_run_nodes(tree))
    imported = [module for node in nodes for module in _imported(node, name, path)]
    strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return Text(
        hashlib.sha256(ast.dump(tree).encode()).hexdigest(),
        tuple(module for module in dict.fromkeys(imported) if _is_ours(module, name.partition(".")[0])),
        tuple(string for string in dict.fromkeys(strings) if _is_ours(string.removesuffix(".*"))),
    )


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the bodies of `if TYPE_CHECKING:`."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        children = ast.iter_child_nodes(node)
        skips = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        todo += node.orelse if skips else children  # type: ignore[attr-defined]


def _imported(node: ast.AST, name: str, path: Path) -> list[str]:
    """Name the modules that an import may load: a name imported from a package may be one of its modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        source = resolve_name("." * node.level + (node.module or ""), package)
        return [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return []


def _is_ours(name: str, *packages: str) -> bool:
    return name.partition(".")[0] in (*PACKAGES, *packages) and all(part.isidentifier() for part in name.split("."))
