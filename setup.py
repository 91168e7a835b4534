"""What a wheel holds beside the packages: the files that `merganser init` puts into a comparison, and the README."""

import re
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = (
    *(".dvc/config", ".dvcignore", ".gitignore", "CHANGELOG.md", "dvc.yaml", "prefect.yaml", "profiles.yaml"),
    *(
        "published",
        "suites",
        "examples/common",
        "examples/minilm",
        "examples/smollm2",
        "examples/suite",
        "examples/texts",
        "examples/vit_s",
    ),
)


class BuildPy(build_py):
    """The packages, and `merganser/shipped`."""

    def run(self) -> None:
        """Build them; an editable installation reads the clone itself."""
        super().run()
        if self.editable_mode:
            return
        for name in _files():
            target = Path(self.build_lib, "merganser/shipped", name)
            self.mkpath(str(target.parent))
            self.copy_file(name, str(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """List what is built."""
        return [
            *super().get_outputs(include_bytecode),
            *(str(Path(self.build_lib, "merganser/shipped", name)) for name in _files()),
        ]


def _files() -> list[str]:
    """List the files, as git or a source distribution has them: not what runs made beside them."""
    if Path(".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z", "--", *SHIPPED], capture_output=True, text=True, check=True)
        return [name for name in listed.stdout.split("\0") if name]
    places = (Path(name) for name in SHIPPED)
    found = (file for place in places for file in (place.rglob("*") if place.is_dir() else [place]))
    return [str(file) for file in found if not file.is_dir()]


def _description() -> str:
    """Return the README for a package index, where pictures of the repository and links into it would be dead."""
    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", re.sub(r"!\[[^]]*\]\([^)]*\)\n*", "", text))


setup(
    cmdclass={"build_py": BuildPy},
    long_description=_description(),
    long_description_content_type="text/markdown",
)
