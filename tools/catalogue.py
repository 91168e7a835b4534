"""Generate the pages about the methods from the registry: `python -m tools.catalogue` (`make docs`).

One page per family under `docs/methods/`, and a table of all methods. A test holds the pages to the registry.
"""

from pathlib import Path
from typing import Any

from merganser import registry
from merganser.descriptions import default_of, describe_method
from merganser.limits import read_yaml
from merganser.report.templates import open_templates

PAGES = Path(__file__).resolve().parent.parent / "docs/methods"


def write_pages(folder: Path) -> list[Path]:
    """Write the table of all methods and one page per family; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / f"{name}.md": text for name, text in render_pages().items()}
    for stray in set(folder.glob("*.md")) - set(pages):
        stray.unlink()
    for path, text in pages.items():
        path.write_text(text)
    return list(pages)


def render_pages() -> dict[str, str]:
    """Return each page's text by its name: README, and the families that have methods."""
    texts = read_yaml(PAGES / "families.yaml")
    families: dict[str, Any] = texts["families"]
    environment = open_templates("tools", html=False)
    environment.filters["default_of"] = default_of
    render = environment.get_template("methods.md.j2").render
    described = [describe_method(registry.get(name)) for name in registry.names()]
    described.sort(key=lambda method: list(families).index(method["family"]))
    pages = {"README": render(overview=texts["overview"], families=families, family=None, methods=described)}
    for name, family in families.items():
        members = [method for method in described if method["family"] == name]
        if members:
            pages[name] = render(overview=None, families=families, family=family, methods=members)
    return {name: f"{text.strip()}\n" for name, text in pages.items()}


if __name__ == "__main__":
    for page in write_pages(PAGES):
        print(page.relative_to(Path.cwd()))
