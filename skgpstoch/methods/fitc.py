"""FITC: the fully independent training conditional, a baseline.

Snelson & Ghahramani, "Sparse Gaussian processes using pseudo-inputs", NeurIPS 2006. With the
features P of :mod:`skgpstoch.svgp` and r = diag(K − PPᵀ), y is Gaussian with the covariance

    PPᵀ + diag(r) + σ²I,

the model of independent residuals. Its evidence is that of a linear model whose noise variance is
σ² + rᵢ at row i (:class:`skgpstoch.losses.FullyIndependent`): at the best q(w), Σᵢ E_q[log N(yᵢ |
Pᵢw, σ² + rᵢ)] − KL[q(w) ‖ N(0, I)], whose gradient is in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn.utils._param_validation import StrOptions

from ..estimators.sparse_docs import documented
from ..estimators.sparse_estimators import SparseGPRegressor
from ..likelihoods.base import Likelihood
from ..likelihoods.real import Gaussian
from ..losses import FullyIndependent, Loss


@documented
@dataclass(eq=False, repr=False)
class FITCRegressor(SparseGPRegressor):
    """Sparse Gaussian-process regression with the FITC approximation.

    A baseline: its noise variance is often underestimated, as residuals explain some of the noise.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    See Also
    --------
    SVGPRegressor : A bound on the evidence of the exact model, for any likelihood.
    DLMRegressor : Trained for the predictive density.

    References
    ----------
    .. [1] E. Snelson, Z. Ghahramani, "Sparse Gaussian processes using pseudo-inputs", NeurIPS 2006.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import FITCRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    >>> model = FITCRegressor(n_inducing=20, random_state=0).fit(X, y)
    >>> np.round(model.predict([[0.0], [1.5]]), 1) + 0.0
    array([0., 1.])
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **SparseGPRegressor._parameter_constraints,
        "solver": [StrOptions({"auto", "lbfgs", "natural", "adam"})],
    }

    def _make_likelihood(self) -> Likelihood:
        return Gaussian()

    def _make_loss(self) -> Loss:
        return FullyIndependent()
