"""How examples are drawn: the same in every run, however long each takes, so that no test fails by chance."""

from hypothesis import HealthCheck, settings


def steady(examples: int) -> settings:
    """Return the settings of a test of so many examples."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
