"""Jinja templates as all pages use them."""

from functools import cache

from jinja2 import BytecodeCache, ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket


class Compiled(BytecodeCache):
    """What this process has compiled templates to: compiling them takes longer than writing a page of them."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a template what it was compiled to, if it was."""
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what a template was compiled to."""
        self._kept[bucket.key] = bucket.bytecode_to_string()


@cache
def _compiled(*, html: bool) -> Compiled:  # code that escapes values is other code
    return Compiled()


def open_templates(package: str, *folders: str, html: bool = True) -> Environment:
    """Open the templates that lie in a package and in further folders; values are escaped in HTML pages."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), FileSystemLoader(folders)]),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_compiled(html=html),
    )
