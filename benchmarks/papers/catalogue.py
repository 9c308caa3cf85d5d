"""The papers, and the tables of theirs that are run here."""

from __future__ import annotations

from dataclasses import dataclass

from . import dlm, gpcv, qsgp, qsrvm, scgd, solvegp
from .tables import Table


@dataclass(frozen=True)
class Paper:
    """A paper, the example of the gallery that draws it, and its tables by their numbers."""

    citation: str
    picture: str
    tables: dict[str, Table]


PAPERS = {
    "qsgp": Paper(
        "Evans and Nair, *Quadruply Stochastic Gaussian Processes*",
        "plot_papers_qsgp",
        qsgp.TABLES | qsrvm.TABLES,
    ),
    "scgd": Paper(
        "Shoham and Avron, *Unbiased Stochastic Optimization for Gaussian Processes on Finite "
        "Dimensional RKHS*",
        "plot_papers_scgd",
        scgd.TABLES,
    ),
    "gpcv": Paper(
        "Xu, Yin, Zhang, Luo and Cui, *A General O(n²) Hyper-Parameter Optimization for Gaussian "
        "Process Regression with Cross-Validation and Non-linearly Constrained ADMM*",
        "plot_papers_gpcv",
        gpcv.TABLES,
    ),
    "solvegp": Paper(
        "Shi, Titsias and Mnih, *Sparse Orthogonal Variational Inference for Gaussian Processes*",
        "plot_papers_solvegp",
        solvegp.TABLES,
    ),
    "dlm": Paper(
        "Wei, Sheth and Khardon, *Direct Loss Minimization for Sparse Gaussian Processes*",
        "plot_papers_dlm",
        dlm.TABLES,
    ),
}
