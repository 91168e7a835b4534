"""What is said of files that DVC cannot read: the line and the cause, as DVC's own command line says them."""

import pytest

from dvcfleet.errors import UserError
from dvcfleet.planning.plan import State
from tests.dvcfleet.toy import Make

STAGE = "stages:\n  a: {cmd: echo a > a, params: [a, p.json: [a], p.toml: [a], p.py: [a]], outs: [a]}\n"
FILES = {"params.yaml": "a: 1\n", "p.json": '{"a": 1}\n', "p.toml": "a = 1\n", "p.py": "a = 1\n"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("params.yaml", "a: 1\nb: {c: 12:30:45}\n", r"params.yaml.*line 2, column 10: found unexpected ':'"),
        ("params.yaml", "a: 1\na: 2\n", r"params.yaml.*line 2, column 1: found duplicate key"),
        ("dvc.yaml", "stages:\n  a: {cmd: echo a > a, outs: [a}\n", r"dvc.yaml.*line 2, column 32: did not find"),
        ("dvc.yaml", "stages:\n  a:\n    cmd: x\n    outs: 3\n", r"dvc.yaml.*line 4, stages.a.outs: expected a list"),
        ("data.dvc", "outs:\n- {path: d\n", r"data.dvc.*line 3, column 1: did not find"),
        ("dvc.lock", "schema: '2.0'\nstages:\n  a: {b: [}\n", r"dvc.lock.*line 3, column 11.*git checkout dvc.lock"),
        ("dvc.lock", "schema: '2.0'\nstages:\n  a: {cmd: 3}\n", r"dvc.lock.*line 3, stages.a.cmd: expected str"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line_and_the_cause(
    toy: Make, name: str, text: str, said: str
) -> None:
    broken = toy(STAGE, FILES)
    broken.write(name, text)
    with pytest.raises(UserError, match=said):
        broken.plan()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.json", '{"a": 1,\n "b" 2}\n', "Expecting ':' delimiter: line 2 column 6"),
        ("p.toml", "a = 1\nb == 2\n", "at line 2 col 3"),
        ("p.py", "a = 1\nb = = 2\n", "invalid syntax (p.py, line 2)"),
    ],
)
def test_a_stage_whose_parameters_cannot_be_read_says_in_which_line(toy: Make, name: str, text: str, said: str) -> None:
    broken = toy(STAGE, FILES)
    broken.write(name, text)
    planned = broken.plan().planned["a"]
    assert planned.state is State.STALE
    assert name in planned.reasons[0]
    assert said in planned.reasons[0]
