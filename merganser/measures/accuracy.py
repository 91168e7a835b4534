"""How well a merge does against the individual models."""

from collections.abc import Mapping


def normalised_accuracy(accuracies: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return the mean over tasks of accuracy over the individual model's (TSV, equation 10), as a fraction.

    >>> normalised_accuracy({"a": 0.4, "b": 0.9}, {"a": 0.8, "b": 0.9})
    0.75
    """
    return sum(accuracies[task] / individual[task] for task in individual) / len(individual)


def accuracy_drop_rate(accuracies: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return ADR: how far the mean accuracy lies below the individual models' mean, as a fraction of theirs (DTS).

    >>> accuracy_drop_rate({"a": 0.25, "b": 0.5}, {"a": 0.5, "b": 0.5})
    0.25
    """
    reference = sum(individual.values())
    return 1 - sum(accuracies[task] for task in individual) / reference
