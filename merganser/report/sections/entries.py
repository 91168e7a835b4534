"""What each entry is: its method, its parameters, and where its numbers came from."""

from merganser.report.comparison import Comparison
from merganser.report.sections import Section

SECTION = Section[Comparison]()  # the template shows its rows
