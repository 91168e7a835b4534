"""Templates of pages."""

from typing import NoReturn

import pytest
from jinja2 import DictLoader, Environment

from merganser.report.templates import open_templates


def test_a_template_is_compiled_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> str:
        environment = open_templates("merganser.report")
        environment.loader = DictLoader({"once.j2": "{{ number | shown }}"})
        environment.filters["shown"] = "{:.2f}".format
        return environment.get_template("once.j2").render(number=0.5)

    def compiled(*_: object, **_named: object) -> NoReturn:
        raise AssertionError("compiled again")

    assert write() == "0.50"
    monkeypatch.setattr(Environment, "compile", compiled)
    assert write() == "0.50"


def test_values_are_escaped_in_pages_alone() -> None:
    for html, written in ((True, "&lt;"), (False, "<")):
        environment = open_templates("merganser.report", html=html)
        environment.loader = DictLoader({"value.j2": "{{ value }}"})
        assert environment.get_template("value.j2").render(value="<") == written
