"""Direct loss minimisation: sparse GPs trained for the loss of their predictions.

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021:

    Σᵢ −log E_q(fᵢ)[p(yᵢ|fᵢ)] + β KL[q(w) ‖ p(w)]                                               (C1)
    Σᵢ (yᵢ − E[yᵢ])² + β KL[q(w) ‖ p(w)]                                                        (C2)

instead of the evidence lower bound, whose expected log-likelihood is below the logarithm of the
expectation: what the bound loses by a wide q(f), predictions do not. β is chosen by rows held out.

What is trained for is in :mod:`skgpstoch.losses`, and how in :mod:`skgpstoch.variational`; every
estimator of the sparse variational family has `loss` and `beta`. Those here add the choice of β,
and of what is trained.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ..data.arrays import resolve_seed
from ..estimators.base import fitting
from ..estimators.orthogonal import WithOrthogonalGP
from ..estimators.regressor import check_exposure
from ..estimators.sparse import SparseGP
from ..estimators.sparse_docs import documented
from ..estimators.sparse_estimators import SparseGPClassifier, SparseGPRegressor
from ..losses import Loss, Rows
from ..maths.linalg import NotPositiveDefiniteError
from ..objectives.sparse import SparseModel, SparsePosterior
from ..objectives.variational import VariationalObjective

LARGE_BETA = 500.0  # above which candidates are further apart


LEAST_BETA = 0.01


COVARIANCES = {"svgp": None, "solve": "free", "odvgp": "prior"}


def beta_grid(n_rows: int) -> np.ndarray:
    """The paper's candidates: n/2, divided by 4 while above 500 and by 2 below, down to 0.01."""
    betas = [0.5 * n_rows]
    while (last := betas[-1] / (4.0 if betas[-1] > LARGE_BETA else 2.0)) >= LEAST_BETA:
        betas.append(last)
    return np.array(betas)


@dataclass(eq=False, repr=False, kw_only=True)
class DirectLossGP(WithOrthogonalGP):
    """What regressor and classifier share."""

    loss: str | Loss = "log"
    beta: Any = 1.0
    hyperparameters: str = "joint"
    posterior: str = "svgp"
    refit: bool = True
    n_jobs: int | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **SparseGP._parameter_constraints,
        "beta": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"}), "array-like"],
        "hyperparameters": [StrOptions({"joint", "fixed"})],
        "posterior": [StrOptions(set(COVARIANCES))],
        "refit": ["boolean"],
        "n_jobs": [Integral, None],
    }

    def _covariance_there(self) -> str | None:
        return COVARIANCES[self.posterior]

    def _kl_weight(self) -> float:
        return float(self.beta_)

    # ---- hyper-parameters of an ELBO fit -----------------------------------------------------

    def _starts_warm(self) -> bool:
        return hasattr(self, "_elbo_fit") or super()._starts_warm()

    def _start_model(self) -> SparseModel:
        return (
            self._elbo_fit._start_model() if hasattr(self, "_elbo_fit") else super()._start_model()
        )

    def _set_trainable(self, model: SparseModel, n_rows: int) -> None:
        super()._set_trainable(model, n_rows)
        if hasattr(self, "_elbo_fit"):
            model.requires_grad_(False)

    def _build(self, model: SparseModel, n_rows: int) -> VariationalObjective:
        objective = super()._build(model, n_rows)
        if hasattr(self, "_elbo_fit") and not objective.is_closed():
            objective.start_from(cast(SparsePosterior, self._elbo_fit.posterior_))
        return objective

    def _fit_elbo(self, *data: Any) -> DirectLossGP | None:
        """Where kernel, likelihood and points come from, unless they are trained for the loss."""
        if self.hyperparameters == "joint":
            return None
        model = clone(self).set_params(loss="elbo", beta=1.0, hyperparameters="joint")
        return model.fit(*data)

    def _fit_given_beta(self, beta: float, elbo_fit: DirectLossGP | None, *data: Any) -> Any:
        """Fit with this β."""
        self.beta_ = beta
        try:
            if elbo_fit is not None:
                self._elbo_fit, self._x_scaling = elbo_fit, elbo_fit._x_scaling
            super().fit(*data)
        finally:
            self.__dict__.pop("_elbo_fit", None)
        return self

    # ---- β -----------------------------------------------------------------------------------

    @fitting
    def _fit(self, *data: Any) -> Any:
        """Fit with the β that is given, or the one that suits held-out rows best."""
        self._validate_params()
        for name in ("beta_path_", "orthogonal_points_", "_stream"):  # which may not be set anew
            self.__dict__.pop(name, None)
        if isinstance(self.beta, Real):
            return self._fit_both(float(self.beta), *data)
        self._check_data(*data)
        data = (*indexable(*data[:2]), *data[2:])
        train, held_out = self._split(data[1])
        path = self._candidates(len(train))
        train_data, held_out_data = (
            [_rows_of(a, rows) for a in data] for rows in (train, held_out)
        )
        elbo_fit = self._fit_elbo(*train_data)
        if elbo_fit is not None and elbo_fit._was_interrupted:
            return self._take_over(elbo_fit)
        fits, interrupted = self._search(path, elbo_fit, train_data, held_out_data)
        best = min(fits, key=lambda fit: fit.loss)
        if best.model is None:
            raise ValueError(f"Training failed with every beta of {path.tolist()}: {best.error}")
        if self.refit and not interrupted:
            self._fit_both(best.beta, *data, otherwise=best.model)
        else:
            self._take_over(best.model)
        self.beta_path_ = np.array([fit.beta for fit in fits])
        self.validation_scores_ = np.array([fit.loss for fit in fits])
        return self

    def _check_data(self, X: Any, y: Any, exposure: Any = None) -> None:
        """Raise a ValueError for what a fit would refuse, before rows are split."""
        self._validate(X, y, reset=True)
        if exposure is not None:
            check_exposure(exposure, len(y))

    def _fit_both(self, beta: float, *data: Any, otherwise: Any = None) -> Any:
        """The ELBO fit, if there is one, and the fit with this β.

        After Ctrl-C the former, or what there is otherwise.
        """
        elbo_fit = self._fit_elbo(*data)
        if elbo_fit is not None and elbo_fit._was_interrupted:
            return self._take_over(otherwise or elbo_fit)
        return self._fit_given_beta(beta, elbo_fit, *data)

    def _take_over(self, model: DirectLossGP) -> Any:
        """Be fitted as another is."""
        fitted = {k: v for k, v in vars(model).items() if k not in self.get_params()}
        self.__dict__.update(fitted)
        return self

    def _search(
        self, path: np.ndarray, elbo_fit: Any, train: list, held_out: list
    ) -> tuple[list[Candidate], bool]:
        """A fit for each β, or for those before Ctrl-C; and whether that was pressed."""
        jobs = (
            delayed(_fit_candidate)(clone(self), float(beta), elbo_fit, train, held_out)
            for beta in path
        )
        fits: list[Candidate] = []
        try:
            for fit in Parallel(n_jobs=self.n_jobs, return_as="generator")(jobs):
                fits.append(fit)
                if fit.interrupted:
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
                stacklevel=4,
            )
        return fits, interrupted

    def _candidates(self, n_rows: int) -> np.ndarray:
        if isinstance(self.beta, str):
            return beta_grid(n_rows)
        path = np.asarray(self.beta)
        numbers = path.ndim == 1 and len(path) and path.dtype.kind in "fiu"
        if not (numbers and (np.isfinite(path) & (path > 0)).all()):
            raise ValueError(
                f"beta must be 'auto', a positive number or a list of such, got {self.beta!r}."
            )
        return path.astype(np.float64)

    def _split(self, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on, among them one of each class, and rows held out."""
        n = len(y)
        order = np.random.default_rng(resolve_seed(self.random_state)).permutation(n)
        least = 2
        if is_classifier(self):
            _, first = np.unique(np.asarray(y)[order], return_index=True)
            order = np.concatenate([np.delete(order, first), order[first]])
            least = len(first)
        n_held_out = max(1, round(self.validation_fraction * n))
        if n - n_held_out < least:
            raise ValueError(
                f"A choice of beta needs {least} rows to train on, one of each class, and one held "
                f"out, but of n_samples={n} rows validation_fraction={self.validation_fraction} "
                f"holds out {n_held_out}."
            )
        return order[n_held_out:], order[:n_held_out]

    def _mean_loss(self, X: Any, y: Any, exposure: Any = None) -> float:
        """Loss of predictions, per row."""
        rows, targets, posterior = self._labelled(X, y)
        loss = self._make_loss()

        def compute(block: slice) -> tuple[Tensor]:
            likelihood = posterior.likelihood
            if exposure is not None:
                likelihood = self._likelihoods(posterior, exposure, rows)(block)
            q = posterior.marginals(rows[block])
            return (loss.of_predictions(Rows(targets[block], likelihood), q),)

        return float(self._collect(len(rows), compute)[0].mean())

    def _check_streams(self) -> None:
        super()._check_streams()
        if not isinstance(self.beta, Real) or self.hyperparameters == "fixed":
            raise ValueError(
                "partial_fit needs a number for beta and hyperparameters='joint', got "
                f"beta={self.beta!r} and hyperparameters={self.hyperparameters!r}."
            )
        self.beta_ = float(self.beta)


class Candidate(NamedTuple):
    """A fit with one β."""

    beta: float
    loss: float  # of held-out rows, per row; infinity where the fit failed
    model: Any = None
    error: Exception | None = None
    interrupted: bool = False


def _rows_of(a: Any, rows: np.ndarray) -> Any:
    """Of an array; a number is that of all rows."""
    return a if a is None or np.ndim(a) == 0 else _safe_indexing(a, rows)


def _fit_candidate(
    model: DirectLossGP, beta: float, elbo_fit: Any, train: list, held_out: list
) -> Candidate:
    model.set_params(beta=beta)  # as checkpoints know it
    try:
        model._fit_given_beta(beta, elbo_fit, *train)
        loss = model._mean_loss(*held_out)
    except NotPositiveDefiniteError as error:
        warnings.warn(f"beta={beta:g} is left out: {error}", ConvergenceWarning, stacklevel=2)
        return Candidate(beta, math.inf, error=error)
    return Candidate(
        beta, loss if loss == loss else math.inf, model, interrupted=model._was_interrupted
    )


@documented
@dataclass(eq=False, repr=False)
class DLMRegressor(DirectLossGP, SparseGPRegressor):
    """Regression and counts by direct loss minimisation over sparse Gaussian processes.

    The posterior is trained for the loss that predictions are judged by: their negative log
    density, or squared error.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

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
    >>> model = DLMRegressor(beta=[0.1, 1.0], n_inducing=20, random_state=0).fit(X, y)
    >>> np.round(model.predict([[0.0], [1.5]]), 1) + 0.0
    array([0., 1.])
    >>> model.beta_ in model.beta_path_
    True
    """

    def fit(self, X: Any, y: Any, exposure: Any = None) -> Any:
        return self._fit(X, y, exposure)

    fit.__doc__ = SparseGPRegressor.fit.__doc__


@documented
@dataclass(eq=False, repr=False)
class DLMClassifier(DirectLossGP, SparseGPClassifier):
    """Classification by direct loss minimisation over sparse Gaussian processes.

    The posterior is trained for the loss that probabilities are judged by: their negative
    logarithm, or Brier's score.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

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
    >>> model = DLMClassifier(n_inducing=20, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    """

    def fit(self, X: Any, y: Any) -> Any:
        return self._fit(X, y)

    fit.__doc__ = SparseGPClassifier.fit.__doc__
