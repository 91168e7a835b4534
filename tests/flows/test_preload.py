"""What warm processes import before they run stages, and what a run itself imports."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES

from merganser.errors import ExtraError
from merganser.evaluation.kinds.language_model import PRELOAD as LM_EVAL
from merganser.flows.comparison import MERGANSER
from merganser.flows.steps.preloading import PRELOAD, RETRIES, TRANSFORMERS, check_libraries
from tests.tiny import ROOT

# Imports all that stages may run, and prints what that read, listed or started besides code, and how many that were.
WATCHED = """
import os, pkgutil, sys
from importlib import import_module
import merganser
from merganser.flows.steps.preloading import PRELOAD, TRANSFORMERS
for name in (*PRELOAD, *TRANSFORMERS): import_module(name)
home = os.path.dirname(merganser.__file__)
found, listed, watches = set(), set(), True
def watch(event, given):
    place = str(given[0]) if given else ""
    if not watches:
        return
    if event == "open" and place.startswith(os.getcwd()) and ".venv" not in place:
        "__pycache__" in place or place.endswith(".py") or found.add(place)
    if event in ("os.listdir", "os.scandir") and place.startswith(home):
        listed.add(place)
    if event.startswith(("subprocess", "socket", "os.fork", "os.chdir", "os.remove", "shutil", "tempfile")):
        found.add(event)
class Watched(dict):
    def __getitem__(self, name):
        if os.environ.decodekey(name) == "DVC_STAGE": found.add("DVC_STAGE")
        return super().__getitem__(name)
os.environ._data = Watched(os.environ._data)
sys.addaudithook(watch)
for folder in ("tasks", "methods", "evaluation.kinds", "models.families", "statistics.kinds", "at_run_time.additions"):
    package = import_module(f"merganser.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
watches = False
modules = [vars(module) for module in list(sys.modules.values()) if isinstance(module, type(sys))]
places = {place for names in modules for place in names.get("__path__", ())}
found |= {place for place in listed if place not in places and not place.endswith("__pycache__")}
print(*found, len(found))
"""
PARAMS = "base: {{family: {family}}}\ntasks: {{one: {{kind: {kind}}}}}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PARAMS.format(family="open_clip", kind="image_classification"), PRELOAD),
        (PARAMS.format(family="encoder", kind="regression"), (*PRELOAD, *TRANSFORMERS)),
        (PARAMS.format(family="causal", kind="language_model"), (*PRELOAD, *TRANSFORMERS, *LM_EVAL)),
        ("base: none", PRELOAD),
        ("base: [", PRELOAD),
    ],
)
def test_what_language_models_need_is_imported_ahead_only_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert MERGANSER.preload == PRELOAD
    Path("params.yaml").write_text(text)
    assert MERGANSER.preload == expected


def test_a_run_without_a_library_that_stages_need_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.format(family="encoder", kind="language_model"))
    list(check_libraries(path))
    for library, extra in (("transformers", "text"), ("lm_eval", "lm")):
        with monkeypatch.context() as patch:
            patch.setattr(
                "merganser.flows.steps.preloading.find_spec",
                lambda name, lacking=library: None if name == lacking else find_spec(name),
            )
            with pytest.raises(ExtraError, match=rf"needs {library}, .*'merganser\[{extra}\]'"):
                list(check_libraries(path))


def test_a_run_that_compiles_each_library_in_each_stage_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.format(family="encoder", kind="regression"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    assert any("unset it" in line for line in check_libraries(path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not list(check_libraries(path))


def test_stages_wait_half_a_minute_for_mlflows_server_or_as_long_as_the_user_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(RETRIES, raising=False)  # which an audit in this process sets
    for said, tries in ((None, 4), ("0", 0)):
        if said is not None:
            monkeypatch.setenv(RETRIES, said)
        own = MERGANSER.variables("")
        with monkeypatch.context() as patched:
            patched.setenv(RETRIES, own[RETRIES])
            assert MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == tries


def test_the_hooks_of_a_run_load_no_library_that_takes_seconds() -> None:
    code = (
        "import merganser.flows.comparison, sys; print(*{'torch', 'dvc', 'prefect', 'pydantic'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/")
    assert done.stdout.split() == []


@pytest.mark.drill  # imports the modules of each stage twice
def test_importing_a_stages_modules_depends_on_code_alone() -> None:
    """As the engine demands of `packages`: commands of other stages and of other runs take over what was imported."""
    done = subprocess.run([sys.executable, "-c", WATCHED], check=True, capture_output=True, text=True, cwd=ROOT)
    assert MERGANSER.packages == ("merganser",)
    assert done.stdout.split() == ["0"]
