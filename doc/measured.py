"""The directive `measured`: a table from a CSV of benchmarks/results (benchmarks/measured.py)."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.parsers.rst.directives.tables import CSVTable
from docutils.statemachine import StringList

from benchmarks.measured import lines


class Measured(CSVTable):
    """A table whose argument is a CSV, and whose lines are columns."""

    required_arguments = 1
    option_spec = dict.fromkeys(("where", "row", "by", "cell"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        found = lines(self.arguments.pop(), self.options, self.content)
        self.content = StringList(list(found), self.content.source(0))
        self.options = {"header-rows": 1, "delim": "|"}
        return super().run()


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
