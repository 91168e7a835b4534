"""Jinja templates of all pages."""

from functools import cache

from jinja2 import BytecodeCache, ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket


class Compiled(BytecodeCache):
    """Templates that this process has compiled: that takes longer than writing a page."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a template its compiled code, if there is any."""
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a template's compiled code."""
        self._kept[bucket.key] = bucket.bytecode_to_string()


@cache
def _compiled(*, html: bool) -> Compiled:  # code that escapes values is other code
    return Compiled()


def open_templates(package: str, *folders: str, html: bool = True) -> Environment:
    """Open the templates in a package and in further folders; HTML pages escape values."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), FileSystemLoader(folders)]),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_compiled(html=html),
    )
