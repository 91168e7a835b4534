"""Jinja templates as all pages use them."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def open_templates(package: str, *, html: bool = True) -> Environment:
    """Open the templates that lie in a package; values are escaped in HTML pages."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
