"""Which licences of a merge's models do not go together, and by which term."""

import pytest

from merganser.checkpoints.companions import ModelOrigin
from merganser.merging.licences import LONGEST, licence_warnings, terms_of


def warned(**licences: str) -> list[str]:
    """The warnings on a merge of models, each by its source's name with its licences."""
    return licence_warnings(
        {f"model {name}": ModelOrigin(name, licences=given.split()) for name, given in licences.items()}
    )


@pytest.mark.parametrize(
    ("licence", "terms"),
    [
        ("mit", set()),
        ("Apache-2.0", set()),
        ("cc-by-4.0", set()),
        ("cc-by-nc-4.0", {"nc"}),
        ("cc-by-nc-nd-3.0", {"nc", "nd"}),
        ("cc-by-nc-sa-4.0", {"nc", "sa"}),
        ("cc-by-sa-2.5", {"sa"}),
        ("gpl-3.0-or-later", {"sa"}),
        ("llama3", None),
        ("other", None),
        ("cc-by-nc-4.0 with more", None),
    ],
)
def test_the_terms_of_a_licence_are_those_of_its_name(licence: str, terms: set[str] | None) -> None:
    assert terms_of(licence) == terms


@pytest.mark.parametrize(
    ("licences", "lines"),
    [
        ({"a": "mit", "b": "apache-2.0"}, []),
        ({"a": "", "b": ""}, []),
        ({"a": "llama3", "b": "llama3"}, []),
        ({"a": "cc-by-nc-4.0", "b": "cc-by-nc-4.0"}, []),
        ({"a": "gpl-3.0-only", "b": "gpl-3.0"}, []),
        (
            {"a": "cc-by-nc-4.0", "b": "mit"},
            ["non-commercial: cc-by-nc-4.0 (a) does not allow commercial use, mit (b) does"],
        ),
        (
            {"a": "cc-by-nd-4.0", "b": "cc-by-nd-4.0"},
            ["no derivatives: cc-by-nd-4.0 (a, b) may not be passed on changed, and a merge is a change"],
        ),
        (
            {"a": "gpl-3.0", "b": "cc-by-sa-4.0", "c": "mit"},
            [
                "share alike: what is made with each of cc-by-sa-4.0 (b), gpl-3.0 (a) is to keep its licence, "
                "and these differ"
            ],
        ),
        (
            {"a": "other", "b": "mit", "c": ""},
            ["other terms, which are not known here: other (a)", "no licence is known of c"],
        ),
        (
            {"a": "cc-by-nc-sa-4.0", "b": "gpl-2.0"},
            [
                "non-commercial: cc-by-nc-sa-4.0 (a) does not allow commercial use, gpl-2.0 (b) does",
                "share alike: what is made with each of cc-by-nc-sa-4.0 (a), gpl-2.0 (b) is to keep its licence, "
                "and these differ",
            ],
        ),
    ],
)
def test_licences_that_do_not_go_together_are_named_with_their_sources_and_the_term(
    licences: dict[str, str], lines: list[str]
) -> None:
    assert warned(**licences) == lines


def test_a_mean_is_no_model_of_its_own() -> None:
    origins = {"(base)": ModelOrigin("the mean of a", "mean"), "a": ModelOrigin("a", licences=["mit"])}
    assert licence_warnings(origins) == []


def test_a_line_on_many_models_is_short() -> None:
    origins = {
        str(number): ModelOrigin("s" * 999 + str(number), licences=["x" * 400 + str(number)]) for number in range(50)
    }
    (line,) = licence_warnings(origins)
    assert line.endswith("and 47 more")
    assert len(line) < 8 * LONGEST
