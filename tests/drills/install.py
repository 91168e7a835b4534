"""Build the packages as they are released, and install the library alone beside torch: in time, small, and it merges.

DRILL_TORCH says which torch, as pip takes it; any if it is not set. Torch's builds for GPUs are larger than the limit.
"""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from glob import glob
from pathlib import Path

from tests.small_models import write_models
from tests.tiny import ROOT

LIMIT_S = 120  # of `pip install .`, torch being there
LIMIT_BYTES = 1.5e9  # of the environment with torch's build for CPUs
REST_BYTES = 0.75e9  # without torch
PACKAGES = {"merganser": ".", "dvcfleet": "packages/dvcfleet"}  # and the folder of each
TORCH = ("torch", "functorch", "torchgen", "triton", "nvidia")
API = """
import merganser
state = merganser.merge("tsv_m", "base", {"a": "task0", "b": "task1"}, scaling=1.0)
print(len(state), "ties" in merganser.methods(data="none"))
try:
    merganser.evaluate("base", {"kind": "text_classification", "data": {"source": "none"}}, family="encoder")
except merganser.ExtraError as error:
    print(error)
"""


def drill(folder: Path, sample: bool) -> None:
    """Build the packages and look into them; unless it is a sample, build them in other ways, install and merge."""
    source = copy_of_the_sources(folder / "source")
    built = released(source, folder / "dist")
    for name, place in PACKAGES.items():
        (wheel,) = (folder / "dist").glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as file:
            files = file.namelist()
        assert {each.partition("/")[0] for each in files if ".dist-info/" not in each} == {name}
        assert {f"{name}/{each}" for each in files_of(source / place / name)}.issubset(files)
    if sample:
        return
    assert released(source, folder / "again") == built
    for place in PACKAGES.values():
        wheel = build(source / place, folder / "wheels" / place)
        assert (wheel.name, wheel.read_bytes()) in built.items(), "the source distribution lacks something"
    light(source, folder)
    editable(source, folder / "editable")


def released(source: Path, out: Path) -> dict[str, bytes]:
    """Build wheels and source distributions of a repository's last commit; return their bytes by their names."""
    run(str(source / ".ci/dist"), str(out), cwd=source)
    return {file.name: file.read_bytes() for file in out.iterdir()}


def files_of(package: Path) -> list[str]:
    """List a package's files, also those behind links: modules, templates, tables and the mark that it is typed."""
    found = glob("**", root_dir=package, recursive=True)
    assert "py.typed" in found
    return [each for each in found if (package / each).is_file()]


def copy_of_the_sources(folder: Path) -> Path:
    """Copy what git knows of the repository into a repository with one commit."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    git = ("git", "-c", "user.name=T", "-c", "user.email=t@example.org")
    for words in (["init", "-q"], ["add", "--all", "--force"], ["commit", "-q", "-m", "all"]):
        run(*git, *words, cwd=folder)
    return folder


def build(source: Path, out: Path) -> Path:
    """Build the wheel of a folder as it is, with the setuptools that is here."""
    out.mkdir(parents=True)
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    time_of_commit = run("git", "log", "-1", "--format=%ct", cwd=source).strip()
    run(sys.executable, "-c", code, str(out), cwd=source, SOURCE_DATE_EPOCH=time_of_commit)
    (wheel,) = out.glob("*.whl")
    return wheel


def light(source: Path, folder: Path) -> None:
    """Install the library beside torch; time it, weigh it, merge with it."""
    python = environment(folder / "light")
    began = time.monotonic()
    pip(python, "install", os.environ.get("DRILL_TORCH", "torch"))
    torch_s, began = time.monotonic() - began, time.monotonic()
    pip(python, "install", ".", cwd=source)
    took_s = time.monotonic() - began
    whole, rest = weight(folder / "light", ()), weight(folder / "light", TORCH)
    gpu = "True" in run(python, "-c", "import torch; print(torch.version.cuda is not None)", cwd=folder)
    print(f"torch {torch_s:.0f} s, the library {took_s:.0f} s; {whole / 1e9:.2f} GB, {rest / 1e9:.2f} GB without torch")
    assert took_s < LIMIT_S
    assert rest < REST_BYTES
    assert gpu or whole < LIMIT_BYTES
    models = folder / "models"
    write_models(models, tasks=2)
    command = str(python.parent / "merganser")
    named = ["--base", "base", "--model", "a=task0", "--model", "b=task1"]
    assert "tsv_m" in run(command, "methods", cwd=models)
    for method in ("tsv_m", "ties", "emr"):
        run(command, "merge", method, *named, "--set", "seed=0", "--out", method, cwd=models)
    run(command, "reconstruct", "emr", "--task", "a", "--out", "own.safetensors", cwd=models)
    count, missing = run(python, "-c", API, cwd=models).splitlines()
    assert count.endswith(" True")
    assert "pip install 'merganser[text" in missing
    for place in (models, source):
        assert "which the extra `pipeline` brings" in run(command, "run", cwd=place, exit_code=2)


def editable(source: Path, folder: Path) -> None:
    """Install a clone in place, whose stages and flows can then be imported from anywhere."""
    python = environment(folder)
    pip(python, "install", "--no-deps", *(word for place in PACKAGES.values() for word in ("-e", str(source / place))))
    code = "import importlib.util as util, sys; print(*(util.find_spec(name).origin for name in sys.argv[1:]))"
    places = {name: (source / place / name).resolve() for name, place in PACKAGES.items()}
    places |= {f"merganser.{name}": (source / name).resolve() for name in ("flows", "tasks")}
    found = run(python, "-c", code, *places, cwd=folder).split()
    assert [Path(each).resolve().parent for each in found] == list(places.values())


def environment(folder: Path) -> Path:
    """Make an environment; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin/python"


def pip(python: Path, *args: str, cwd: Path | None = None) -> None:
    """Run pip, quietly."""
    run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *args, cwd=cwd or ROOT)


def run(command: Path | str, *args: str, cwd: Path, exit_code: int = 0, **variables: str) -> str:
    """Run a command without this process's own places to import from; return what it printed, or why it was refused."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    done = subprocess.run(
        [str(command), *args], cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stderr if exit_code else done.stdout


def weight(folder: Path, without: tuple[str, ...]) -> int:
    """Return the bytes of a folder's files on disk, without some packages."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_blocks * 512 for file in files if not set(without) & set(file.relative_to(folder).parts))
