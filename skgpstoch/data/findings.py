"""Findings about a fit, which `fit` warns of and `diagnose` tabulates."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .messages import warn

SEVERITIES = ("problem", "note", "fine")
HEADINGS = ("finding", "where", "value", "limit", "severity")
SHOWN = ("finding", "where", "value", "problem if", "severity")
"""Headings of a printed table, whose limits say on which side a problem begins."""
LONGEST_CELL = 200  # letters of a cell of a printed table, all of whose lines are as long


class Finding(NamedTuple):
    """One check of a fit.

    Parameters
    ----------
    name : str
        Name of the check.
    where : str
        The parameter, the input or the part of the model that was checked.
    value, limit : float
        The value that was found, and the limit where a problem begins; infinite if there is none.
    severity : {"problem", "note", "fine"}, default="fine"
        "problem": `fit` warns. "note": there may be a reason to act. "fine": there is none.
    text : str, default=""
        What happened, and why.
    advice : str, default=""
        What to do.
    category : type of Warning, default=UserWarning
        Category of the warning.
    """

    name: str
    where: str
    value: float
    limit: float
    severity: str = "fine"
    text: str = ""
    advice: str = ""
    category: type[Warning] = UserWarning

    @property
    def message(self) -> str:
        """What happened, why, and what to do."""
        return f"{self.text} {self.advice}".strip()

    def noted(self) -> Finding:
        """Return the finding as a note, of which `fit` does not warn."""
        return self if self.severity == "fine" else self._replace(severity="note")

    def line(self) -> dict[str, Any]:
        """Return a line of the table."""
        cells = (self.name, self.where, self.value, self.limit, self.severity)
        return {**dict(zip(HEADINGS, cells, strict=True)), "message": self.message}


class Diagnosis(tuple[Finding, ...]):
    """Findings about a fit, the worst first: a tuple that prints as a table.

    Parameters
    ----------
    findings : iterable of Finding
        The findings, in any order.
    """

    __slots__ = ()

    def __new__(cls, findings: Iterable[Finding] = ()) -> Diagnosis:
        """Sort by severity; refuse what is no finding, as a file that was altered may have it."""
        every = list(findings)
        if not all(isinstance(each, Finding) for each in every):
            raise ValueError("a diagnosis must consist of findings")
        return super().__new__(cls, sorted(every, key=lambda f: SEVERITIES.index(f.severity)))

    @classmethod
    def of_parts(cls, models: Mapping[str, Any]) -> Diagnosis:
        """Return the findings on models, by their names, of those that have `diagnose`."""
        found = (m.diagnose().within(name) for name, m in models.items() if hasattr(m, "diagnose"))
        return cls(itertools.chain.from_iterable(found))

    def __getnewargs__(self) -> tuple[tuple[Finding, ...]]:
        return (tuple(self),)

    @property
    def problems(self) -> list[Finding]:
        """Findings that `fit` warns of."""
        return [finding for finding in self if finding.severity == "problem"]

    def warn(self) -> None:
        """Warn of each problem once; in a search, once for all of its fits."""
        said = {finding.message: finding for finding in self.problems}
        for message, finding in said.items():
            warn(message, finding.category, about=(finding.name, finding.where))

    def within(self, part: str) -> Diagnosis:
        """Return the findings with the part of the model that they are about; "" for the whole."""
        if not part:
            return self
        return Diagnosis(f._replace(where=f"{part}: {f.where}") for f in self)

    def to_frame(self) -> Any:
        """Return the table as a pandas frame, a line for each finding."""
        import pandas as pd  # not needed otherwise

        return pd.DataFrame([f.line() for f in self], columns=[*HEADINGS, "message"])

    def __repr__(self) -> str:
        table = [SHOWN, *(tuple(c[:LONGEST_CELL] for c in cells(finding)) for finding in self)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        said = [f"{f.name} ({f.where}): {f.message}" for f in self if f.message]
        return "\n".join([*lines, *([""] if said else []), *said])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        head = "".join(f"<th>{name}</th>" for name in (*SHOWN, "message"))
        rows = [
            "".join(f"<td>{html.escape(cell)}</td>" for cell in (*cells(f), f.message))
            for f in self
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cells(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a finding's line, without its message."""
    value, limit = (f"{number:.3g}" for number in (finding.value, finding.limit))
    is_above = finding.value > finding.limit
    side = ">" if is_above == (finding.severity != "fine") else "<"  # where problems are
    limit = f"{side}{limit}" if math.isfinite(finding.limit) else "none"
    return finding.name, finding.where, value, limit, finding.severity
