"""Direct loss minimisation: sparse GPs trained for the loss of their predictions.

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021:

    Σᵢ −log E_q(fᵢ)[p(yᵢ|fᵢ)] + β KL[q(w) ‖ p(w)]                                               (C1)
    Σᵢ (yᵢ − E[yᵢ])² + β KL[q(w) ‖ p(w)]                                                        (C2)

instead of the evidence lower bound. The bound's expected log-likelihood is below the logarithm of
the expectation, so the bound penalises a wide q(f) more than predictions suffer from it. β is
chosen on held-out rows.

The losses are in :mod:`skgpstoch.losses`, their objectives in :mod:`skgpstoch.objectives`. Every
estimator of the sparse variational family has `loss` and `beta`; the estimators of this module can
also choose β, and what is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from ..data.arrays import possibly_ragged, resolve_seed
from ..data.equal_rows import merged, observations
from ..data.findings import Finding
from ..data.messages import warn
from ..data.rows import Data
from ..estimators import parameters as groups
from ..estimators import variational_parameters as variational
from ..estimators.callbacks import with_callbacks
from ..estimators.docs import public_estimator
from ..estimators.opening import FOUND
from ..estimators.variational import VariationalClassifier, VariationalRegressor
from ..estimators.warm_starts import going_on
from ..likelihoods.base import Likelihood, class_likelihood, regression_likelihood
from ..likelihoods.real import AdditiveNoise
from ..losses import LogLoss, Loss, make_loss
from ..maths.linalg import NotPositiveDefiniteError
from ..models.calibration.held_out import Calibration, HeldOut, recalibrated
from ..models.posteriors.blocks import moments_of
from ..objectives.optimal_q import evidence_bound
from ..training.history import History
from ..training.interrupts import keeps_best, tell, was_interrupted
from ..training.recipes.fitted import Fitted
from ..training.recipes.inducing import InducingPoints
from ..training.recipes.kernel_choice import KernelChoice
from ..training.recipes.plan import Plan, Start
from ..training.recipes.recipe import Recipe
from ..training.recipes.variational import VariationalRecipe

LARGE_BETA = 500.0  # above which candidates are further apart
LEAST_BETA = 0.01
MOST_JUDGES = 10_000  # held-out rows that the predictive distribution is recalibrated on
VALIDATED = (*FOUND, "classes_")

UNJUDGED = Finding(
    "calibration",
    "calibrate",
    0.0,
    math.inf,
    severity="note",
    text="Kernel, noise and function were trained for the density of the same rows, and no rows "
    "were held out to judge it: intervals are probably too narrow.",
    advice="Set calibrate=True (which takes no more time with refit=False), give several beta, or "
    "set hyperparameters='fixed'.",
)


# ---- the recipe --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DLMRecipe(VariationalRecipe):
    """A variational model, with the choice of β and of what is trained.

    Parameters
    ----------
    betas : object
        The parameter beta: a number, several, or "auto".
    hyperparameters : {"joint", "fixed", "fixed-from-prior"}
        What is trained for the loss, and where q starts.
    calibrates : bool or "auto"
        Whether the predictive distribution is recalibrated on held-out rows.
    """

    betas: Any
    hyperparameters: str
    calibrates: bool | str

    @property
    def holds_out(self) -> bool:
        """Whether a fit to some of the rows comes before the fit to all."""
        return not isinstance(self.betas, Real) or self.calibrates is True

    def sums_rows(self, plan: Plan) -> bool:
        is_one_fit = not self.holds_out and self.hyperparameters == "joint"
        return is_one_fit and super().sums_rows(plan)

    def check_streams(self) -> None:
        super().check_streams()
        if self.holds_out or self.hyperparameters != "joint":
            raise ValueError(
                "partial_fit needs a number for beta, calibrate='auto' or False, and "
                f"hyperparameters='joint', got beta={self.betas!r}, calibrate={self.calibrates!r} "
                f"and hyperparameters={self.hyperparameters!r}."
            )

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        return super().attributes(fitted) | {"beta_": fitted.plan.beta}

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        yield from super().training_findings(fitted)
        is_joint = self.hyperparameters == "joint" and isinstance(self.loss, LogLoss)
        if is_joint and isinstance(self.likelihood, AdditiveNoise) and not self.holds_out:
            yield UNJUDGED


# ---- the choice of β ---------------------------------------------------------------------------


def candidates(beta: Any, n_rows: float) -> np.ndarray:
    """Return the β to try.

    Raises
    ------
    ValueError
        If the parameter is not "auto", a positive number, or a list of such.
    """
    if isinstance(beta, str):
        return beta_grid(n_rows)
    path = possibly_ragged([beta] if isinstance(beta, Real) else beta)
    numbers = path.ndim == 1 and len(path) and path.dtype.kind in "fiu"
    if not (numbers and (np.isfinite(path) & (path > 0)).all()):
        raise ValueError(
            f"beta must be 'auto', a positive number or a list of positive numbers, got {beta!r}."
        )
    return path.astype(np.float64)


def beta_grid(n_rows: float) -> np.ndarray:
    """Return the paper's candidates: n/2, divided by 4 above 500 and by 2 below, down to 0.01."""
    betas = [0.5 * n_rows]
    while (last := betas[-1] / (4.0 if betas[-1] > LARGE_BETA else 2.0)) >= LEAST_BETA:
        betas.append(last)
    return np.array(betas)


class Candidate(NamedTuple):
    """A fit with one β."""

    beta: float
    loss: float  # of held-out rows, per row; infinity where the fit failed
    model: Any = None
    error: Exception | None = None
    interrupted: bool = False


def choose_beta(
    fit: Callable[[float], Candidate], path: np.ndarray, n_jobs: int | None
) -> tuple[list[Candidate], bool]:
    """Fit with each β until Ctrl-C; return the fits, and whether Ctrl-C was pressed."""
    fits: list[Candidate] = []
    try:
        jobs: Iterator = (delayed(fit)(float(beta)) for beta in path)
        for candidate in Parallel(n_jobs=n_jobs, return_as="generator")(jobs):
            fits.append(candidate)
            if candidate.interrupted or was_interrupted():
                break
    except KeyboardInterrupt:
        if not (fits and keeps_best()):
            raise
    interrupted = len(fits) < len(path) or was_interrupted() or fits[-1].interrupted
    if interrupted:
        tell(
            f"The search for beta was interrupted after {len(fits)} of {len(path)} fits; "
            "the best of these is kept, without a final fit on all rows."
        )
    return fits, interrupted


class FitCandidate(NamedTuple):
    """Fit a model with a β to some rows, and judge it on others."""

    model: Any  # an unfitted estimator
    elbo: Any  # an estimator fitted with the evidence lower bound, or None
    train: Data
    held_out: Data

    def judged(self, beta: float) -> Candidate:
        """Return the fit with this β."""
        model = unfitted(self.model, beta=beta)  # as checkpoints know it
        try:
            fit = with_callbacks(fit_given_beta)  # which then end, too
            history = fit(model, beta, self.elbo, self.train)
            loss = mean_loss(model, self.held_out)
        except NotPositiveDefiniteError as error:
            warn(f"beta={beta:g} is skipped, because training failed: {error}", ConvergenceWarning)
            return Candidate(beta, math.inf, error=error)
        interrupted = history.status == "interrupted"
        return Candidate(beta, loss if loss == loss else math.inf, model, None, interrupted)


def split_rows(
    data: Data, fraction: float, seed: int, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on, with at least one of each class, and the held-out rows.

    Raises
    ------
    ValueError
        If there are too few.
    """
    n, least = len(data), 2
    order = np.random.default_rng(seed).permutation(n)
    if classes:
        _, first = np.unique(data.y[order, 0], return_index=True)
        order = np.concatenate([np.delete(order, first), order[first]])
        least = len(first)
    n_held_out = max(1, round(fraction * n))
    if n - n_held_out < least:
        raise ValueError(
            f"Choosing beta needs {least} rows to train on, one of each class, and at least "
            f"one held-out row, but validation_fraction={fraction} holds out {n_held_out} "
            f"of n_samples={n} rows. Change validation_fraction, or give a number for beta."
        )
    return order[n_held_out:], order[:n_held_out]


# ---- fits ----------------------------------------------------------------------------------------


def fit_direct_loss(model: Any, recipe: DLMRecipe, data: Data) -> History:
    """Fit with the given β, or with the one that predicts held-out rows best."""
    for name in ("beta_path_", "_stream"):  # which may not be set anew
        vars(model).pop(name, None)
    if not recipe.holds_out:
        return fit_both(model, recipe.beta, data)
    observed, _ = observations(data.counted())
    seed, fraction = resolve_seed(model.random_state), model.validation_fraction
    parts = split_rows(observed, fraction, seed, hasattr(model, "classes_"))
    train, held_out = (observed[rows] for rows in parts)
    path = candidates(recipe.betas, train.n_effective)
    elbo, history = fit_elbo(model, train)
    if history is not None and history.status == "interrupted":
        return take_over(model, elbo, history)
    fit = FitCandidate(unfitted(model), elbo, train, held_out)
    fits, interrupted = choose_beta(fit.judged, path, model.n_jobs)
    best = min(fits, key=lambda fit: fit.loss)
    if best.model is None:
        raise ValueError(f"Training failed with every beta of {path.tolist()}: {best.error}")
    changes = suitable_changes(best.model, held_out)
    if model.refit and not interrupted:
        fitted = data
        history = fit_both(model, best.beta, data, otherwise=best.model)
    else:
        fitted = train
        history = take_over(model, best.model, History(status="chosen"))
    model.beta_path_ = np.array([fit.beta for fit in fits])
    model.validation_scores_ = np.array([fit.loss for fit in fits])
    if changes is not None:
        recalibrate(model, changes, fitted)
    return history


def fit_both(model: Any, beta: float, data: Data, otherwise: Any = None) -> History:
    """Fit with the evidence lower bound, if asked for, and then with this β.

    After Ctrl-C in the first of these fits, it becomes `otherwise`, or that fit if there is none.
    """
    elbo, history = fit_elbo(model, data)
    if history is not None and history.status == "interrupted":
        return take_over(model, otherwise or elbo, history)
    return fit_given_beta(model, beta, elbo, data)


def fit_elbo(model: Any, data: Data) -> tuple[Any, History | None]:
    """Fit kernel, likelihood and points by the bound, unless they are trained for the loss."""
    if model.hyperparameters == "joint":
        return None, None
    joint = {"loss": "elbo", "beta": 1.0, "hyperparameters": "joint", "calibrate": False}
    elbo = unfitted(model, **joint)
    return elbo, with_callbacks(fit_direct_loss)(elbo, elbo._recipe(), data)


def fit_given_beta(model: Any, beta: float, elbo: Any, data: Data) -> History:
    """Fit with this β, from a fit of the evidence lower bound if there is one."""
    recipe = replace(model._recipe(), beta=beta)
    if elbo is None:
        return model._train_recipe(recipe, data, going_on(model, data))
    model._x_scaling, model._x_spread = elbo._x_scaling, elbo._x_spread
    keeps_q = recipe.hyperparameters == "fixed"
    return model._train_recipe(recipe, data, Start(elbo.posterior_, is_fixed=True, keeps_q=keeps_q))


def unfitted(model: Any, **params: Any) -> Any:
    """Return another estimator with other parameters, which have been validated."""
    other = clone(model).set_params(**params)
    vars(other).update({k: v for k, v in vars(model).items() if k in VALIDATED})
    return other


def take_over(model: Any, other: Any, history: History) -> History:
    """Give an estimator the fitted state of another one."""
    fitted = {k: v for k, v in vars(other).items() if k not in model.get_params()}
    vars(model).update(fitted)
    return history


def mean_loss(model: Any, data: Data) -> float:
    """Return the loss of predictions, per row."""
    X, rows, posterior = model._labelled(data)
    loss = make_loss(model.loss)

    def compute(block: slice) -> tuple[Tensor]:
        of_block = rows[block]
        q, likelihood = posterior.predictive(X[block], of_block)
        return (of_block.weighted(loss.of_predictions(of_block.y, likelihood, q)),)

    return float(model._collect(len(X), compute)[0].sum()) / rows.n_effective


# ---- recalibration -------------------------------------------------------------------------------


def suitable_changes(model: Any, data: Data) -> Calibration | None:
    """Return the calibration for these held-out rows; None if nothing can change."""
    X, rows, posterior = model._labelled(data[:MOST_JUDGES])
    is_done = posterior.model.covariance == "prior"
    if is_done or not (model.calibrate and isinstance(posterior.likelihood, AdditiveNoise)):
        return None
    q, likelihood = posterior.predictive(X, rows)
    return HeldOut(rows, q, likelihood, KernelChoice.of(model.kernel).learns_noise).best()


def recalibrate(model: Any, changes: Calibration, data: Data) -> None:
    """Recalibrate the predictive distribution of a model that was fitted to these data."""
    X, rows, posterior = model._labelled(merged(data.counted())[0])
    learns_noise = KernelChoice.of(model.kernel).learns_noise
    posterior = recalibrated(posterior, changes, learns_noise)
    bound = evidence_bound(posterior.model, X, rows, moments_of(posterior.weights))
    posterior.elbo.copy_(bound)
    plan = Plan(model.solver_, "float64", max_iter=1, batch_size=1, beta=model.beta_)
    model._set_posterior(posterior)
    model._set_attributes(model._recipe(), model._fitted(plan, History()))


# ---- estimators --------------------------------------------------------------------------------


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
    too certain. On eight tables, 95 % intervals cover 84 % of new rows after training on 50 rows,
    and 88 % after 200. With ``calibrate=True`` they cover 90 % and 92 %, in twice the time.

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
