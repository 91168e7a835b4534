"""What each entry is: its method, its parameters, and where its numbers came from."""

from merganser.report.sections import Section

SECTION = Section()  # the template shows the rows
