"""Every method is said in one sentence, and its formula is drawn."""

import re
from html.parser import HTMLParser

import pytest
from markupsafe import escape

from merganser import registry
from merganser.report.formats import clauses, mathml


class Elements(HTMLParser):
    """Collect a formula's elements, and see that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("name", registry.names())
def test_a_method_has_one_sentence_and_a_formula_of_which_nothing_is_left_as_latex(name: str) -> None:
    method = registry.get(name)
    assert re.fullmatch("[A-Z].+[.]", method.summary)
    assert not re.search(r"\w[.] [A-Z]", method.summary)
    found = Elements()
    found.feed(mathml(method.formula))
    assert found.open == []
    assert "\\" not in "".join(found.texts)
    assert "xmlns" not in mathml(method.formula)


def test_clauses_are_the_formula_but_for_their_spaces() -> None:
    formula = registry.get("della").formula
    assert len(clauses(formula)) == 4
    assert re.sub(r"\s|\\quad", "", " ".join(clauses(formula))) == re.sub(r"\s|\\quad", "", formula)
    assert len(clauses(registry.get("wemoe").formula)) == 1  # its space stands in one of its cases


@pytest.mark.parametrize("formula", ["", r"\left( x < 1", "x^"])
def test_a_formula_that_cannot_be_drawn_is_shown_as_it_was_written(formula: str) -> None:
    assert mathml(formula) == f"<code>{escape(formula)}</code>"
