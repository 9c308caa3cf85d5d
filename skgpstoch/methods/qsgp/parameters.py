"""Parameters that QSGP and QSRVM share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...estimators.parameters import (
    AUTO,
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SHARE,
    StepParameters,
    TargetParameters,
)


@dataclass(eq=False, repr=False, kw_only=True)
class BasisParameters(StepParameters):
    """Very many basis functions.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The kernel, whose hyper-parameters are where training starts; a top-level WhiteKernel is the
        noise. None: a constant times an RBF kernel with a length-scale for each input, or a single
        one for more than 64 inputs.
    batch_size : int or "auto", default="auto"
        Number of rows that a sweep over all basis functions uses; "auto" is 16,384.
    basis_batch_size : int or "auto", default="auto"
        Number of basis functions per step; "auto" is 2,048.
    max_iter : int or "auto", default="auto"
        Number of sweeps. "auto" is 20, or three times that if the kernel learns, but at most as
        many as make 2,000 steps, and at least one. If a sweep uses all rows and the kernel does not
        learn, training stops earlier, after two sweeps that gain less than `tol`.
    learning_rate_init : float, default=1.0
        How far a step goes towards the optimum of a block, at most 1.
    early_stopping : bool, default=False
        Whether to keep the iterate that predicts held-out rows best.
    n_iter_no_change : int or None, default=None
        Stop after this many sweeps without an improvement by `tol`. None: after two if a sweep uses
        all rows, else train to the end.
    tol : float, default=0.0001
        Smallest improvement that counts, in nats per row.
    n_subset : int, default=1000
        Number of rows whose exact Gaussian process finds the hyper-parameters to start from; 0:
        start from the kernel as it is. For a classifier the targets of that process are −1 and 1,
        centred.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Basis functions and q(w), on the CPU: μ and C in the precision of training, the kernel in
        float64. Fourier features are stored as a seed.
    kernel_ : sklearn kernel
        The fitted kernel, without noise.
    likelihood_ : Likelihood
        The fitted likelihood.
    n_components_ : int
        Number of basis functions of the model.
    loss_curve_ : list of float
        Negative evidence lower bound of every sweep, in nats per row, of the scaled y if it is
        scaled; without log|k(Z, Z)| if basis="inducing". For solver="sgd" it is that of the control
        variate's rows. For "adagrad" it is an estimate, and more of it is estimated if the
        likelihood is not Gaussian.
    n_iter_, best_iter_ : int
        Number of sweeps done, and the sweep whose iterate was kept; 0 is the start.
    """

    basis_batch_size: int | str = "auto"
    learning_rate_init: float = 1.0
    early_stopping: bool | str = False
    tol: float = 1e-4
    n_subset: int = 1000

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "learning_rate_init": [SHARE],
        "basis_batch_size": [POSITIVE_INTEGER, AUTO],
        "n_subset": [NOT_NEGATIVE_INTEGER],
    }


@dataclass(eq=False, repr=False, kw_only=True)
class BasisRegressionParameters(TargetParameters):
    """Regression.

    Attributes
    ----------
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y.
    kernel_ : sklearn kernel
        The fitted kernel, plus the noise as a WhiteKernel if `kernel` has one; variances refer to
        the scaled y.
    """
