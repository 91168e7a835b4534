"""Each entry's method, parameters, and the origin of its numbers."""

from merganser.report.comparison import Comparison
from merganser.report.sections import Section

SECTION = Section[Comparison]()  # the template shows its rows
