"""One test of every value of something, where pytest's own part would cost more than the trial."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Test = Callable[..., None]


def each(name: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Give a test each value in turn, as an argument of this name; a failure names the value.

    As `pytest.mark.parametrize` does, but that all is one test: what a test is given besides stays the same.
    """
    listed = list(values)
    assert listed, f"no {name} to try"

    def loops(test: Test) -> Test:
        @wraps(test)
        def tried(**given: Any) -> None:
            for value in listed:
                try:
                    test(**given, **{name: value})
                except BaseException as failure:
                    failure.add_note(f"{name} = {value}")
                    raise

        signature = inspect.signature(test)
        others = [parameter for key, parameter in signature.parameters.items() if key != name]
        tried.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return tried

    return loops
