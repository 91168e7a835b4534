"""The keys of params.yaml in words and as a JSON Schema."""

import copy
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from merganser.config.describing import json_schema, key_lines, sections_of
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.limits import read_yaml

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "params.yaml", ROOT / "tests/tiny/params.yaml"]
SHORT = {
    "base": {"source": "hub/base"},
    "tasks": {"digits": {"source": "hub/digits", "data": {"source": "datasets/digits", "templates": ["a {}."]}}},
    "methods": {"average": None, "ties": {"density": 0.2}},
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_that_are_taken_fit_the_schema(file: Path) -> None:
    assert list(Draft202012Validator(json_schema()).iter_errors(read_yaml(file))) == []


def test_a_short_file_fits_and_a_misspelt_key_or_a_wrong_value_does_not() -> None:
    validator = Draft202012Validator(json_schema())
    assert list(validator.iter_errors(SHORT)) == []
    for section, wrong in (("evaluation", {"batchsize": 4}), ("decompose", {"rank_fraction": 2}), ("method", {})):
        assert list(validator.iter_errors(copy.deepcopy(SHORT) | {section: wrong})) != []


def test_a_key_is_explained_with_its_type_default_and_example() -> None:
    assert key_lines("evaluation.batch_size")[:3] == [
        "evaluation.batch_size: whole number ≥ 1",
        "  default: `64`",
        "  example: 256",
    ]
    assert key_lines("base.source") == ["base.source: text", "  required, such as `models/base`"]
    assert "a key of its method" in key_lines("methods.ties.density")[0]


def test_every_key_and_section_is_explained() -> None:
    for path, model in sections_of("", Params):
        for key in model.model_fields:
            assert key_lines(f"{path}.{key}" if path else key)[0]
        assert any(key in line for key in model.model_fields for line in key_lines(path)) or not model.model_fields


def test_a_misspelt_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r'evaluation.batch_sise: no such key .*did you mean "batch_size"'):
        key_lines("evaluation.batch_sise")
    with pytest.raises(InputError, match=r"seed\.x: seed has no keys; it is whole number or list of whole number"):
        key_lines("seed.x")
