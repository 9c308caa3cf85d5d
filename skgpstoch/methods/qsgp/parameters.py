"""Parameters that QSGP and QSRVM share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...estimators.parameters import (
    AUTO,
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SHARE,
    TransformedTargetParameters,
)


@dataclass(eq=False, repr=False, kw_only=True)
class BasisParameters:
    """Very many basis functions.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Where its hyper-parameters start; a top-level WhiteKernel is the noise. None: a constant
        times an RBF kernel with a length-scale for each input, up to 64 of these.
    batch_size : int or "auto", default="auto"
        Rows of a sweep over all basis functions; "auto" is 16,384.
    basis_batch_size : int or "auto", default="auto"
        Basis functions of a step; "auto" is 2,048.
    max_iter : int or "auto", default="auto"
        Sweeps; "auto" is 20, three times that where the kernel learns, or fewer that make 2,000
        steps, one at least. Where a sweep has all rows and the kernel does not learn, training ends
        earlier after two sweeps that gain less than `tol`.
    learning_rate_init : float, default=1.0
        How far a step goes towards the optimum of a block, at most 1.
    early_stopping : bool, default=False
        Keep the iterate that predicts held-out rows best.
    n_iter_no_change : int or None, default=None
        Stop after this many sweeps without an improvement by `tol`; None: two, where a sweep has
        all rows, and else train to the end.
    tol : float, default=0.0001
        Improvement that counts, in nats per row.
    n_subset : int, default=1000
        Rows whose exact Gaussian process finds the kernel to start from; 0: the kernel as it is.
        A classifier's has −1 and 1, centred, for targets.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Basis functions and q(w), on the CPU: μ and C in the type of training, the kernel in
        float64. Fourier features are a seed.
    kernel_ : sklearn kernel
        The kernel, without noise.
    likelihood_ : Likelihood
        The fitted likelihood.
    n_components_ : int
        Number of basis functions of the model.
    loss_curve_ : list of float
        Minus the evidence lower bound of every sweep, nats per row, of the scaled y where it is
        scaled; without log|k(Z, Z)| where basis="inducing". For solver="sgd" that of the control
        variate's rows; for "adagrad" an estimate, of more where the likelihood is not Gaussian.
    n_iter_, best_iter_ : int
        Sweeps done, and the one whose iterate was kept; 0 is the start.
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
class BasisRegressionParameters(TransformedTargetParameters):
    """Regression.

    Parameters
    ----------
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units.

    Attributes
    ----------
    likelihood_ : Likelihood
        The fitted likelihood, in the units of y.
    kernel_ : sklearn kernel
        The kernel, and the noise as a WhiteKernel where `kernel` has one; variances refer to the
        scaled y.
    """

    normalize_y: bool = True

    _parameter_constraints: ClassVar[dict[str, list]] = {"normalize_y": ["boolean"]}
