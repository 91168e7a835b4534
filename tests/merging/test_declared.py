"""A method described from the text of its file equals the imported method."""

import subprocess
import sys

import pytest

from merganser import registry
from merganser.descriptions import describe_method
from merganser.errors import InputError
from merganser.merging.declared import listed
from tests.tiny import ROOT, environment

HEAVY = {"torch", "numpy", "scipy", "transformers", "datasets", "pandas", "matplotlib", "prefect", "mlflow"}
SHARED = ("doc", "summary", "trained", "overlay", "one_model", "statistics", "needs")


@pytest.mark.parametrize("name", registry.names())
def test_a_methods_file_says_what_the_imported_method_does(name: str) -> None:
    read, method = listed(name), registry.get(name)
    assert describe_method(read) == describe_method(method)
    assert {each: getattr(read, each) for each in SHARED} == {each: getattr(method, each) for each in SHARED}
    assert read.at_run_time == bool(method.at_run_time)


def test_a_misspelt_method_is_named_without_its_code() -> None:
    with pytest.raises(InputError, match='did you mean "ties"'):
        registry.describe("tise")


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "methods",
        "methods ties --json",
        "methods --for data=none",
        "params evaluation",
        "suites",
        "suites --json",
        "history",
        "merge --help",
    ],
)
def test_commands_that_read_tables_import_no_library_that_takes_seconds(words: str) -> None:
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('imported:', *{HEAVY!r} & sys.modules.keys()))\n"
        "sys.argv = ['merganser', *sys.argv[1:]]\n"
        "from merganser.command_line.start import start\n"
        "start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or words == "history", done.stderr  # whose runs are in a git repository
    assert {*done.stdout.splitlines()[-1].split()} <= {"imported:", *(["numpy"] if words == "history" else [])}
