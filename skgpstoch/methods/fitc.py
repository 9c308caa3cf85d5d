"""FITC: the fully independent training conditional, a baseline.

Snelson & Ghahramani, "Sparse Gaussian processes using pseudo-inputs", NeurIPS 2006. With the
features P of :mod:`skgpstoch.methods.svgp` and r = diag(K − PPᵀ), y is Gaussian with the covariance

    PPᵀ + diag(r) + σ²I,

as if residuals were independent. The evidence is that of a linear model whose noise variance at row
i is σ² + rᵢ (:class:`skgpstoch.losses.FullyIndependent`). At the best q(w) it is
Σᵢ E_q[log N(yᵢ | Pᵢw, σ² + rᵢ)] − KL[q(w) ‖ N(0, I)], whose gradient has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from ..data.arguments import check_names
from ..data.docstrings import documented
from ..data.equal_rows import Merging
from ..data.rows import Data, Rows
from ..estimators import parameters as groups
from ..estimators import variational_parameters as variational
from ..estimators.docs import public_estimator
from ..estimators.regressor import Regressor
from ..estimators.streams import stream
from ..estimators.variational import VariationalRegressor
from ..likelihoods.real import Gaussian
from ..losses import FullyIndependent
from ..training.recipes.inducing import InducingPoints
from ..training.recipes.variational import VariationalRecipe


@dataclass(frozen=True, kw_only=True)
class FITCRecipe(VariationalRecipe):
    """A variational model that never merges equal rows, because each has its own residual."""

    equal_rows: Merging = "keep"

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        check_refused(rows.weight)
        return super().evidence(posterior, X, rows)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class FITCRegressor(
    groups.RestartParameters,
    variational.InducingParameters,
    variational.InputNoiseParameters,
    Regressor,
):
    """Sparse Gaussian-process regression with the FITC approximation.

    A baseline. It often underestimates the noise variance, because residuals explain some of the
    noise. The default kernel has a weak prior, as in :class:`SVGPRegressor`.

    Parameters
    ----------
    n_inducing : int or "auto", default="auto"
        Number M of inducing points, at most the number of rows; "auto" is 512, or 256 up to 1,000
        rows.
    solver : {"auto", "lbfgs", "natural", "adam"}, default="auto"
        "natural": natural-gradient steps. "lbfgs": L-BFGS with all rows at each step. "adam":
        gradient steps for q as for everything else. "auto" is "lbfgs" up to 1,000 rows, else
        "natural"; `solver_` says which.
    normalize_y : bool, default=True
        Whether to standardise the target internally; predictions are in the target's own units.

    Attributes
    ----------
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y, without the known errors `y_std`.
    log_marginal_likelihood_value_ : float
        FITC's own log p(y | X), in nats, summed over all rows, for y in its own units; NaN after
        `partial_fit`.

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
    >>> model = FITCRegressor(n_inducing=10, random_state=0).fit(X, y)
    >>> np.round(model.predict([[0.0], [1.5]]), 1) + 0.0
    array([0., 1.])
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "solver": [StrOptions({"auto", "lbfgs", "natural", "adam"})],
    }

    @documented(VariationalRegressor.fit)
    def fit(  # type: ignore[override]
        self, X: Any, y: Any = None, *, y_std: Any = None, **refused: Any
    ) -> Any:
        """Fit the model.

        Parameters
        ----------
        y_std : float or array-like of the shape of y, default=None
            Known standard error of each target, in the units of y, besides the learned noise.
            None is 0.
        **refused : object
            `sample_weight` and `exposure`, which this estimator refuses.
        """
        check_names(self, VariationalRegressor.fit, refused)
        return self._fit_to(X, y, refused.get("sample_weight"), refused.get("exposure"), y_std)

    @documented(VariationalRegressor.partial_fit)
    def partial_fit(self, X: Any, y: Any, *, y_std: Any = None, **refused: Any) -> Any:
        """Make one pass over more rows, for streams, as :class:`SVGPRegressor` does.

        Parameters
        ----------
        y_std : float or array-like of the shape of y, default=None
            As for `fit`.
        **refused : object
            `sample_weight` and `exposure`, which this estimator refuses.

        Raises
        ------
        ValueError
            If a parameter, X, y or y_std is invalid, or if a parameter that the model is made of
            has changed since the first call.
        """
        check_names(self, VariationalRegressor.partial_fit, refused)
        return stream(self, X, y, refused.get("sample_weight"), refused.get("exposure"), y_std)

    def _given(self, X: Any, y: Any, reset: bool, *of_rows: Any, **options: Any) -> Data:
        check_refused(*of_rows[:2])  # which may be columns of a source
        return super()._given(X, y, reset, *of_rows, **options)

    def _recipe(self) -> FITCRecipe:
        return FITCRecipe.of(
            self,
            likelihood=Gaussian(),
            loss=FullyIndependent(),
            features=InducingPoints.of(self),
        )


def check_refused(sample_weight: Any = None, exposure: Any = None) -> None:
    """Raise an error if rows have weights or exposures.

    Raises
    ------
    ValueError
        If they have.
    """
    if sample_weight is not None:
        raise ValueError(
            "sample_weight must be None with FITCRegressor. Its residuals are independent "
            "between rows, so a row of weight w would count as w observations with "
            "independent errors of variance sigma^2 + r, although they share one value of "
            "f. Use SVGPRegressor."
        )
    if exposure is not None:
        raise ValueError("exposure must be None with FITCRegressor, because only counts have one.")
