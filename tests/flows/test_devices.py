"""A declared GPU: refused by name before any work where the stages that compute on it are given none."""

from pathlib import Path

import pytest
import yaml

from dvcfleet.errors import UserError
from flows.project import MERGANSER
from tests.tasks.comparison import inside, write_params


def declare(folder: Path, merge: str, evaluation: str) -> None:
    write_params(folder)
    content = yaml.safe_load((folder / "params.yaml").read_text())
    content["merge"] = {"device": merge}
    content["evaluation"]["device"] = evaluation
    (folder / "params.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("merge", "evaluation", "gpus", "said"),
    [
        ("cuda", "cpu", {"merge@ties": 0}, r"merge\.device is cuda, and the stage merge@ties is given no GPU"),
        ("cpu", "cuda", {"evaluate@ties-dark": 0}, r"evaluation\.device is cuda, and the stage evaluate@ties-dark"),
        ("cpu", "cuda", {"study_rank@dark-fractions": 0}, r"stages say study_rank: \{resources: \{gpus: 1\}\}"),
    ],
)
def test_stages_that_compute_on_a_gpu_and_ask_for_none_are_refused(
    tmp_path: Path, merge: str, evaluation: str, gpus: dict[str, int], said: str
) -> None:
    declare(tmp_path, merge, evaluation)
    with inside(tmp_path), pytest.raises(UserError, match=said):
        MERGANSER.check_gpus(gpus)


def test_stages_that_ask_for_a_gpu_or_need_none_may_run(tmp_path: Path) -> None:
    declare(tmp_path, "cuda", "cpu")
    with inside(tmp_path):
        MERGANSER.check_gpus({"merge@ties": 1, "evaluate@ties-dark": 0, "extract@dark": 0})
