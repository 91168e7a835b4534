"""What warm processes import before they run stages, and what a run itself imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from merganser.evaluation.kinds.language_model import PRELOAD as LM_EVAL
from merganser.flows.comparison import MERGANSER
from merganser.flows.steps.preloading import PRELOAD, TRANSFORMERS

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


def test_the_hooks_of_a_run_load_no_library_that_takes_seconds() -> None:
    code = (
        "import merganser.flows.comparison, sys; print(*{'torch', 'dvc', 'prefect', 'pydantic'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/")
    assert done.stdout.split() == []
