"""Direct loss minimisation: sparse GPs trained for the loss of their predictions.

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021:

    Σᵢ −log E_q(fᵢ)[p(yᵢ|fᵢ)] + β KL[q(w) ‖ p(w)]                                               (C1)
    Σᵢ (yᵢ − E[yᵢ])² + β KL[q(w) ‖ p(w)]                                                        (C2)

instead of the evidence lower bound, whose expected log-likelihood is below the logarithm of the
expectation: what the bound loses by a wide q(f), predictions do not. β is chosen by rows held out.

What is trained for is in :mod:`skgpstoch.losses`, and how in :mod:`skgpstoch.objectives`; every
estimator of the sparse variational family has `loss` and `beta`. Those here add the choice of β,
and of what is trained.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ..calibration.held_out import Calibration, HeldOut, recalibrated
from ..data.arrays import resolve_seed
from ..data.rows import Data
from ..estimators.callbacks import with_callbacks
from ..estimators.docs import public_estimator
from ..estimators.finite_direct import WithFiniteFeatures
from ..estimators.network_kernel import NetworkKernel
from ..estimators.orthogonal import COVARIANCES, WithOrthogonalPoints
from ..estimators.parameters import N_JOBS
from ..estimators.plan import EXACTLY, MOST_JUDGES, Plan
from ..estimators.sparse import LossChoice, SparseGP, Start
from ..estimators.sparse_estimators import SparseGPClassifier, SparseGPRegressor
from ..likelihoods.real import AdditiveNoise
from ..losses import Loss
from ..maths.linalg import NotPositiveDefiniteError
from ..objectives.optimal_q import evidence_bound
from ..posteriors.blocks import moments_of
from ..training.loop import History

LARGE_BETA = 500.0  # above which candidates are further apart
LEAST_BETA = 0.01
VALIDATED = ("n_features_in_", "feature_names_in_", "classes_", "_y_shape", "_fitted_with_exposure")


# ---- the choice of β ---------------------------------------------------------------------------


def beta_grid(n_rows: float) -> np.ndarray:
    """The paper's candidates: n/2, divided by 4 while above 500 and by 2 below, down to 0.01."""
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
    """A fit for each β, or for those before Ctrl-C; and whether that was pressed."""
    fits: list[Candidate] = []
    try:
        jobs: Iterator = (delayed(fit)(float(beta)) for beta in path)
        for candidate in Parallel(n_jobs=n_jobs, return_as="generator")(jobs):
            fits.append(candidate)
            if candidate.interrupted:
                break
    except KeyboardInterrupt:
        if not fits:
            raise
    interrupted = len(fits) < len(path) or fits[-1].interrupted
    if interrupted:
        warnings.warn(
            f"The choice of beta was interrupted after {len(fits)} of {len(path)} fits; the "
            "model is the best of these, without a fit on all rows.",
            ConvergenceWarning,
            stacklevel=7,
        )
    return fits, interrupted


class FitCandidate(NamedTuple):
    """Fits a model with a β to some rows, and judges it by others."""

    model: DirectLossGP  # unfitted
    start: Any  # a fit of the evidence lower bound, or None
    train: Data
    held_out: Data

    def judged(self, beta: float) -> Candidate:
        """The fit with this β."""
        model = self.model._unfitted(beta=beta)  # as checkpoints know it
        try:
            fit = with_callbacks(type(model)._fit_given_beta)  # which then end, too
            history = fit(model, beta, self.start, self.train)
            loss = model._mean_loss(self.held_out)
        except NotPositiveDefiniteError as error:
            warnings.warn(f"beta={beta:g} is left out: {error}", ConvergenceWarning, stacklevel=2)
            return Candidate(beta, math.inf, error=error)
        interrupted = history.status == "interrupted"
        return Candidate(beta, loss if loss == loss else math.inf, model, None, interrupted)


def split_rows(
    data: Data, fraction: float, seed: int, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, of classes one of each among them, and rows held out.

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
            f"A choice of beta needs {least} rows to train on, one of each class, and one held "
            f"out, but of n_samples={n} rows validation_fraction={fraction} holds out "
            f"{n_held_out}."
        )
    return order[n_held_out:], order[:n_held_out]


# ---- estimators --------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, kw_only=True)
class DirectLossGP(LossChoice, WithFiniteFeatures, WithOrthogonalPoints, NetworkKernel):
    """What regressor and classifier share.

    Parameters
    ----------
    loss : {"elbo", "log", "square"} or Loss, default="log"
        What is minimised: the negative evidence lower bound, the negative log predictive density
        or the square loss; or an instance of a class of :mod:`skgpstoch.losses`.
    beta : float, array-like or "auto", default=1.0
        Weight of the Kullback-Leibler divergence; less than 1 trusts the data more. Of several, the
        one whose fit predicts `validation_fraction` of the rows best; "auto": of n/2, n/8, … down
        to 0.01, as the paper has them, some 10 to 20 fits.
    hyperparameters : {"joint", "fixed"}, default="joint"
        Whether kernel, noise and points are trained for the loss, or for the evidence lower bound
        beforehand, and q alone for the loss.
    posterior : {"svgp", "solve", "odvgp", "finite"}, default="svgp"
        The family of q: with inducing points of one kind, or orthogonal ones beside them, with a
        covariance of q's own there or the prior's (`n_orthogonal` and `orthogonal_points` are for
        these two); or of the weights of finite features: those of networks with the inputs and a
        constant beside them, random Fourier features of a `kernel`, or with
        hidden_layer_sizes=() the inputs alone.
    calibrate : bool or "auto", default="auto"
        Whether deviations and noise, with their tails, are changed at the end to what suits rows
        best that the fit has not seen, as it predicts those that it has seen too well. "auto":
        where rows are held out in any case, for several `beta` or by an ensemble; True: also for
        one `beta`, by a fit before. Means stay as they are. Not for the square loss, which has
        another way, and counts; with inducing points not for classes.
    refit : bool, default=True
        Whether the best of several `beta` is fitted again, on all rows.
    n_jobs : int or None, default=None
        Processes that fit for several `beta`, as joblib counts them.

    Attributes
    ----------
    beta_ : float
        The weight that was used.
    beta_path_ : ndarray of shape (n_betas,)
        Where there was a choice, the weights that were tried; `validation_scores_` then has the
        held-out loss of each, per row. Others may be better where `beta_` is at the end.
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_features)
        In the units of X; with posterior="solve" or "odvgp".
    """

    loss: str | Loss = "log"
    beta: Any = 1.0
    hyperparameters: str = "joint"
    posterior: str = "svgp"
    calibrate: bool | str = "auto"
    refit: bool = True
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "beta": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"}), "array-like"],
        "hyperparameters": [StrOptions({"joint", "fixed"})],
        "posterior": [StrOptions({*COVARIANCES, "finite"})],
        "calibrate": ["boolean", StrOptions({"auto"})],
        "refit": ["boolean"],
        "n_jobs": N_JOBS,
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        *SparseGP._shape_parameters,
        "n_orthogonal",
        "orthogonal_points",
        "posterior",
        "whiten",
    )

    def _covariance_there(self) -> str | None:
        return COVARIANCES.get(self.posterior)

    def _kl_weight(self) -> float:
        return float(self.beta) if isinstance(self.beta, Real) else 1.0  # until one is chosen

    def _set_fitted(self: Any, plan: Plan) -> None:
        super()._set_fitted(plan)  # type: ignore[misc]
        self.beta_ = plan.beta

    def _check_streams(self: Any) -> None:
        super()._check_streams()
        if self._holds_out() or self.hyperparameters == "fixed":
            raise ValueError(
                "partial_fit needs a number for beta, calibrate='auto' or False, and "
                f"hyperparameters='joint', got beta={self.beta!r}, calibrate={self.calibrate!r} "
                f"and hyperparameters={self.hyperparameters!r}."
            )

    # ---- fit with a choice of β ----------------------------------------------------------------

    def _holds_out(self) -> bool:
        """Whether there is a fit to some rows before that to all."""
        is_alone = isinstance(self.beta, Real)
        return not is_alone or (self.calibrate is True and not self._is_finite)

    def _fit(self: Any, data: Data, start: Any = None, **planned: Any) -> History:
        """Fit with the β that is given, or the one that suits held-out rows best."""
        for name in ("beta_path_", "_stream"):  # which may not be set anew
            self.__dict__.pop(name, None)
        if not self._holds_out():
            return self._fit_both(float(self.beta), data)
        distinct = self._distinct(data)
        seed, fraction = resolve_seed(self.random_state), self.validation_fraction
        train, held_out = split_rows(distinct, fraction, seed, hasattr(self, "classes_"))
        train, held_out = distinct[train], distinct[held_out]
        path = self._candidates(train.n_effective)
        elbo, history = self._fit_elbo(train)
        if history is not None and history.status == "interrupted":
            return self._take_over(elbo, history)
        fit = FitCandidate(self._unfitted(), elbo, train, held_out)
        fits, interrupted = choose_beta(fit.judged, path, self.n_jobs)
        best = min(fits, key=lambda fit: fit.loss)
        if best.model is None:
            raise ValueError(f"Training failed with every beta of {path.tolist()}: {best.error}")
        changes = best.model._suitable_changes(held_out)
        if self.refit and not interrupted:
            fitted, history = data, self._fit_both(best.beta, data, otherwise=best.model)
        else:
            fitted, history = train, self._take_over(best.model, History(status="chosen"))
        self.beta_path_ = np.array([fit.beta for fit in fits])
        self.validation_scores_ = np.array([fit.loss for fit in fits])
        if changes is not None:
            self._recalibrate(changes, fitted)
        return history

    def _fit_both(self, beta: float, data: Data, otherwise: Any = None) -> History:
        """The ELBO fit, if there is one, and the fit with this β.

        After Ctrl-C the former, or what there is otherwise.
        """
        elbo, history = self._fit_elbo(data)
        if history is not None and history.status == "interrupted":
            return self._take_over(otherwise or elbo, history)
        return self._fit_given_beta(beta, elbo, data)

    def _fit_elbo(self: Any, data: Data) -> tuple[Any, History | None]:
        """Where kernel, likelihood and points come from, unless they are trained for the loss."""
        if self.hyperparameters == "joint":
            return None, None
        if self._is_finite:
            raise ValueError(
                "hyperparameters must be 'joint' with posterior='finite', got "
                f"{self.hyperparameters!r}."
            )
        joint = {"loss": "elbo", "beta": 1.0, "hyperparameters": "joint", "calibrate": False}
        model = self._unfitted(**joint)
        return model, with_callbacks(type(model)._fit)(model, data)

    def _fit_given_beta(self: Any, beta: float, elbo: Any, data: Data) -> History:
        """Fit with this β, from a fit of the evidence lower bound if there is one."""
        if elbo is None:
            return super()._fit(data, beta=beta)  # type: ignore[misc]
        self._x_scaling = elbo._x_scaling
        return super()._fit(data, Start(elbo.posterior_, is_fixed=True), beta=beta)  # type: ignore[misc]

    def _unfitted(self: Any, **params: Any) -> Any:
        """Another one, with other parameters, that knows what is valid."""
        other = clone(self).set_params(**params)
        vars(other).update({k: v for k, v in vars(self).items() if k in VALIDATED})
        return other

    def _take_over(self: Any, model: DirectLossGP, history: History) -> History:
        """Be fitted as another is."""
        fitted = {k: v for k, v in vars(model).items() if k not in self.get_params()}
        vars(self).update(fitted)
        return history

    def _candidates(self, n_rows: float) -> np.ndarray:
        if isinstance(self.beta, str):
            return beta_grid(n_rows)
        path = np.asarray([self.beta] if isinstance(self.beta, Real) else self.beta)
        numbers = path.ndim == 1 and len(path) and path.dtype.kind in "fiu"
        if not (numbers and (np.isfinite(path) & (path > 0)).all()):
            raise ValueError(
                f"beta must be 'auto', a positive number or a list of such, got {self.beta!r}."
            )
        return path.astype(np.float64)

    def _suitable_changes(self: Any, data: Data) -> Calibration | None:
        """What suits these rows best, which were not trained on; None where nothing can change."""
        X, rows, posterior = self._labelled(data[:MOST_JUDGES])
        is_done = self._is_finite or posterior.model.covariance == "prior"
        if is_done or not (self.calibrate and isinstance(posterior.likelihood, AdditiveNoise)):
            return None
        q, likelihood = posterior.predictive(X, rows)
        return HeldOut(rows, q, likelihood, self._learns_noise()).best()

    def _recalibrate(self, changes: Calibration, data: Data) -> None:
        """Change the fit to these data."""
        fitted: Any = self
        X, rows, posterior = fitted._labelled(data)
        posterior = recalibrated(posterior, changes, self._learns_noise())
        bound = evidence_bound(posterior.model, X, rows, moments_of(posterior.weights))
        posterior.elbo.copy_(bound)
        fitted.posterior_ = posterior.cpu().requires_grad_(False)
        self._set_fitted(replace(EXACTLY, solver=fitted.solver_, beta=self.beta_))

    def _mean_loss(self: Any, data: Data) -> float:
        """Loss of predictions, per row."""
        X, rows, posterior = self._labelled(data)
        loss = self._make_loss()

        def compute(block: slice) -> tuple[Tensor]:
            of_block = rows[block]
            q, likelihood = posterior.predictive(X[block], of_block)
            return (of_block.weighted(loss.of_predictions(of_block.y, likelihood, q)),)

        return float(self._collect(len(X), compute)[0].sum()) / rows.n_effective


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DLMRegressor(DirectLossGP, SparseGPRegressor):
    """Regression and counts by direct loss minimisation over sparse Gaussian processes.

    The posterior is trained for the loss that predictions are judged by: their negative log
    density, or squared error.

    See Also
    --------
    SVGPRegressor : Trained for the evidence lower bound, by default.
    FITCRegressor : Another likelihood for the same points.

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


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class DLMClassifier(DirectLossGP, SparseGPClassifier):
    """Classification by direct loss minimisation over sparse Gaussian processes.

    The posterior is trained for the loss that probabilities are judged by: their negative
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
