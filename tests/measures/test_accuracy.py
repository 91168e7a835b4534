import pytest

from merganser.measures.accuracy import accuracy_drop_rate, normalised_accuracy

INDIVIDUAL = {"digits": 0.8, "street": 0.5}


def test_normalised_accuracy_is_the_mean_of_the_ratios() -> None:
    assert normalised_accuracy({"digits": 0.4, "street": 0.5}, INDIVIDUAL) == pytest.approx((0.5 + 1.0) / 2)


def test_accuracy_drop_rate_compares_the_two_means() -> None:
    assert accuracy_drop_rate({"digits": 0.4, "street": 0.5}, INDIVIDUAL) == pytest.approx(1 - 0.45 / 0.65)


def test_the_individual_models_have_normalised_accuracy_one_and_no_drop() -> None:
    assert normalised_accuracy(INDIVIDUAL, INDIVIDUAL) == 1
    assert accuracy_drop_rate(INDIVIDUAL, INDIVIDUAL) == 0
