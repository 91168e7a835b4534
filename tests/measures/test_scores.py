import pytest

from merganser.measures.scores import normalised_score, score_drop_rate

INDIVIDUAL = {"digits": 0.8, "street": 0.5}


def test_normalised_score_is_the_mean_of_the_ratios() -> None:
    assert normalised_score({"digits": 0.4, "street": 0.5}, INDIVIDUAL) == pytest.approx((0.5 + 1.0) / 2)


def test_score_drop_rate_compares_the_two_means() -> None:
    assert score_drop_rate({"digits": 0.4, "street": 0.5}, INDIVIDUAL) == pytest.approx(1 - 0.45 / 0.65)


def test_the_individual_models_have_normalised_score_one_and_no_drop() -> None:
    assert normalised_score(INDIVIDUAL, INDIVIDUAL) == 1
    assert score_drop_rate(INDIVIDUAL, INDIVIDUAL) == 0
