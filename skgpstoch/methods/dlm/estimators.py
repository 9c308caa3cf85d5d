"""Direct loss minimisation: sparse GPs trained for the loss of their predictions.

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021:

    Σᵢ −log E_q(fᵢ)[p(yᵢ|fᵢ)] + β KL[q(w) ‖ p(w)]                                               (C1)
    Σᵢ (yᵢ − E[yᵢ])² + β KL[q(w) ‖ p(w)]                                                        (C2)

instead of the evidence lower bound. The bound's expected log-likelihood is below the logarithm of
the expectation, so the bound penalises a wide q(f) more than predictions suffer from it. β is
chosen on held-out rows.

The losses are in :mod:`skgpstoch.losses`, their objectives in :mod:`skgpstoch.objectives`. Every
estimator of the sparse variational family has `loss` and `beta`; these two can also choose β, and
what is trained (:mod:`.fits`).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from ...data.rows import Data
from ...estimators import parameters as groups
from ...estimators import variational_parameters as variational
from ...estimators.docs import public_estimator
from ...estimators.variational import VariationalClassifier, VariationalRegressor
from ...likelihoods.base import Likelihood, class_likelihood, regression_likelihood
from ...losses import Loss, make_loss
from ...training.history import History
from ...training.recipes.inducing import InducingPoints
from ...training.recipes.recipe import Recipe
from .fits import fit_direct_loss
from .recipe import DLMRecipe


@dataclass(eq=False, repr=False, kw_only=True)
class DLMParameters(variational.LossParameters, variational.InducingParameters):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    loss : {"elbo", "log", "square"} or Loss, default="log"
        What to minimise: "elbo", the negative evidence lower bound; "log", the negative log
        predictive density; "square", the square loss; or an instance of a class of
        :mod:`skgpstoch.losses`.
    beta : float, array-like or "auto", default=1.0
        Weight of the Kullback-Leibler divergence; a value below 1 trusts the data more. Given
        several values, `fit` uses the one whose fit predicts `validation_fraction` of the rows
        best. "auto" tries the paper's values: n/2, n/8 (n/4 up to 1,000 rows), … down to 0.01. That
        takes 10 to 20 fits.
    hyperparameters : {"joint", "fixed", "fixed-from-prior"}, default="joint"
        "joint": train the kernel, the noise and the points for the loss, together with q. "fixed":
        train them for the evidence lower bound first, then q alone for the loss.
        "fixed-from-prior": the same, but q starts again at the prior, as in the paper.
    calibrate : bool or "auto", default="auto"
        Whether to recalibrate the predictive distribution on held-out rows after training: the
        scale and the tails of deviations and noise. Means do not change. "auto": only if rows are
        held out anyway, to choose among several `beta`. True: for a single `beta` too, which takes
        an additional fit without the held-out rows, unless `refit` is False. It is for additive
        noise, and not for the square loss, which is calibrated in another way.
    refit : bool, default=True
        Whether to fit again on all rows after rows were held out, to choose `beta` or to calibrate.
    n_jobs : int or None, default=None
        Number of processes that fit for several `beta`, as joblib counts them.

    Attributes
    ----------
    beta_ : float
        The weight that was used.
    beta_path_ : ndarray of shape (n_betas,)
        The weights that were tried, if there was a choice; `validation_scores_` then has the
        held-out loss of each, per row. If `beta_` is at an end of the path, other weights may be
        better.
    """

    loss: str | Loss = "log"
    beta: Any = 1.0
    hyperparameters: str = "joint"
    calibrate: bool | str = "auto"
    refit: bool = True
    n_jobs: int | None = None

    _first_parameters: ClassVar[tuple[str, ...]] = ("beta",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "beta": [groups.POSITIVE, StrOptions({"auto"}), "array-like"],
        "hyperparameters": [StrOptions({"joint", "fixed", "fixed-from-prior"})],
        "calibrate": ["boolean", StrOptions({"auto"})],
        "refit": ["boolean"],
        "n_jobs": groups.N_JOBS,
    }


def dlm_recipe(p: DLMParameters, likelihood: Likelihood) -> DLMRecipe:
    """Return inducing points, a loss and β, and a likelihood."""
    return DLMRecipe.of(
        p,
        likelihood=likelihood,
        loss=make_loss(p.loss),
        beta=float(p.beta) if isinstance(p.beta, Real) else 1.0,  # until one is chosen
        betas=p.beta,
        calibrates=p.calibrate,
        features=InducingPoints.of(p),
    )


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DLMRegressor(DLMParameters, variational.InputNoiseParameters, VariationalRegressor):
    """Regression and counts by direct loss minimisation over sparse Gaussian processes.

    The posterior is trained for the loss by which predictions are judged: their negative log
    density, or their squared error.

    See Also
    --------
    SVGPRegressor : Trained for the evidence lower bound, by default.
    FITCRegressor : Another likelihood for the same points.

    Notes
    -----
    The loss of the training rows is less than that of new rows, so predictions from few rows are
    too certain. On eight tables, 95 % intervals cover 88 % of new rows after training on 50 rows,
    and 90 % after 200. With ``calibrate=True`` they cover 88 % and 93 %, in twice the time. With
    Gaussian noise the default kernel has a weak prior, as in :class:`SVGPRegressor`.

    References
    ----------
    .. [1] Y. Wei, R. Sheth, R. Khardon, "Direct loss minimization for sparse Gaussian processes",
       AISTATS 2021.
    .. [2] M. Jankowiak, G. Pleiss, J. Gardner, "Parametric Gaussian process regressors", ICML 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import DLMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    >>> model = DLMRegressor(beta=[0.1, 1.0], n_inducing=10, max_iter=30, random_state=0)
    >>> model = model.fit(X, y)
    >>> np.round(model.predict([[0.0], [1.5]]), 1) + 0.0
    array([0., 1.])
    >>> model.beta_ in model.beta_path_
    True
    """

    def _recipe(self) -> DLMRecipe:
        return dlm_recipe(self, regression_likelihood(self.likelihood))

    def _fit(self, recipe: Recipe, data: Data) -> History:
        return fit_direct_loss(self, self._recipe(), data)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DLMClassifier(DLMParameters, variational.ClassificationParameters, VariationalClassifier):
    """Classification by direct loss minimisation over sparse Gaussian processes.

    The posterior is trained for the loss by which probabilities are judged: their negative
    logarithm, or Brier's score.

    See Also
    --------
    SVGPClassifier : Trained for the evidence lower bound, by default.

    References
    ----------
    .. [1] Y. Wei, R. Sheth, R. Khardon, "Direct loss minimization for sparse Gaussian processes",
       AISTATS 2021.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import DLMClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DLMClassifier(n_inducing=20, max_iter=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    """

    def _recipe(self) -> DLMRecipe:
        return dlm_recipe(self, class_likelihood(self.likelihood, len(self.classes_)))

    def _fit(self, recipe: Recipe, data: Data) -> History:
        return fit_direct_loss(self, self._recipe(), data)
