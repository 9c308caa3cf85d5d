"""The papers, and the tables of theirs that are run here."""

from __future__ import annotations

from dataclasses import dataclass

from . import dlm, gpcv, qsgp, qsrvm, scgd, solvegp
from .tables import Table


@dataclass(frozen=True)
class Paper:
    """A paper: what it is, and its tables by their numbers."""

    citation: str
    tables: dict[str, Table]


PAPERS = {
    "qsgp": Paper(
        "Evans and Nair, *Quadruply Stochastic Gaussian Processes*", qsgp.TABLES | qsrvm.TABLES
    ),
    "scgd": Paper(
        "Shoham and Avron, *Unbiased Stochastic Optimization for Gaussian Processes on Finite "
        "Dimensional RKHS*",
        scgd.TABLES,
    ),
    "gpcv": Paper(
        "Xu, Yin, Zhang, Luo and Cui, *A General O(n²) Hyper-Parameter Optimization for Gaussian "
        "Process Regression with Cross-Validation and Non-linearly Constrained ADMM*",
        gpcv.TABLES,
    ),
    "solvegp": Paper(
        "Shi, Titsias and Mnih, *Sparse Orthogonal Variational Inference for Gaussian Processes*",
        solvegp.TABLES,
    ),
    "dlm": Paper(
        "Wei, Sheth and Khardon, *Direct Loss Minimization for Sparse Gaussian Processes*",
        dlm.TABLES,
    ),
}
