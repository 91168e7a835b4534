"""How well a merge does against the individual models."""

from collections.abc import Mapping


def normalised_accuracy(accuracies: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return the mean over tasks of accuracy over the individual model's (TSV, equation 10), as a fraction."""
    return sum(accuracies[task] / individual[task] for task in individual) / len(individual)


def accuracy_drop_rate(accuracies: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return ADR: how far the mean accuracy lies below the individual models' mean, as a fraction of theirs (DTS)."""
    reference = sum(individual.values())
    return 1 - sum(accuracies[task] for task in individual) / reference
