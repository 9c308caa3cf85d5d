"""The papers, and the tables of theirs that are run here."""

from __future__ import annotations

from dataclasses import dataclass

from . import qsgp, scgd
from .tables import Table


@dataclass(frozen=True)
class Paper:
    """A paper: what it is, and its tables by their numbers."""

    citation: str
    tables: dict[str, Table]


PAPERS = {
    "qsgp": Paper("Evans and Nair, *Quadruply Stochastic Gaussian Processes*", qsgp.TABLES),
    "scgd": Paper(
        "Shoham and Avron, *Unbiased Stochastic Optimization for Gaussian Processes on Finite "
        "Dimensional RKHS*",
        scgd.TABLES,
    ),
}
