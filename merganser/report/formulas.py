"""Formulas in LaTeX as MathML, which browsers draw by themselves."""

import re
from functools import cache

from latex2mathml.converter import convert
from markupsafe import Markup, escape

NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # HTML needs none, and the page has no addresses
# browsers have no double-struck digits but the characters themselves
INDICATOR = re.compile(r'<mn mathvariant="double-struck">1</mn>')


@cache
def mathml(latex: str) -> Markup:
    """Convert a formula into MathML, one element a clause, so that a long formula breaks between its clauses.

    The first element's `alttext` is the formula as it was given.

    >>> mathml("x < 1, \\\\quad y").count("<math ")
    2
    """
    drawn = [INDICATOR.sub("<mn>\U0001d7d9</mn>", _drawn(clause)) for clause in clauses(latex)]
    first = drawn[0].replace("<math ", f'<math alttext="{escape(latex)}" ', 1)
    return Markup("".join([first, *drawn[1:]]))


def clauses(latex: str) -> list[str]:
    """Split a formula after the commas before a wide space, outside of braces.

    >>> clauses("a, \\\\quad b_{c, \\\\quad d}")
    ['a,', 'b_{c, \\\\quad d}']
    """
    parts, depth = [""], 0
    for piece in re.split(r"(,\s*\\quad\s|\\begin\{|\\end\{|\\[{}]|[{}])", latex):
        depth += {"{": 1, "}": -1, "\\begin{": 2, "\\end{": 0}.get(piece, 0)
        if piece.startswith(",") and piece.rstrip().endswith("quad") and not depth:
            parts[-1] += ","
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def _drawn(latex: str) -> str:
    return convert(latex, display="block").replace(NAMESPACE, "", 1)
