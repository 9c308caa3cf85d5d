"""QSRVM: relevance vector machines on dictionaries of any size.

Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001; Evans & Nair,
"Quadruply stochastic Gaussian processes", 2020, sec. I.3. The steps are those of
:mod:`skgpstoch.objectives.relevance`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from ...data.arrays import Scaling
from ...data.findings import Finding
from ...data.rows import Data
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.regressor import Regressor
from ...likelihoods.base import Likelihood
from ...likelihoods.logistic import logistic_likelihood
from ...likelihoods.real import Gaussian
from ...models.posteriors.chevron import ChevronModel
from ...objectives.blockwise import BasisObjective, BlockwiseObjective
from ...objectives.relevance import (
    MOST_PRECISION,
    MOST_RELEVANT,
    RELEVANCE_BLOCK,
    RelevanceObjective,
    start_precision,
)
from ...training.optimizers import one_cycle
from ...training.recipes.basis import BasisRecipe, KernelFunctions
from ...training.recipes.findings import RELEVANT
from ...training.recipes.fitted import Fitted
from ...training.recipes.kernel_choice import KernelChoice
from ...training.recipes.plan import Plan, Sizes, Start, Training
from ...training.recipes.recipe import Problem
from .parameters import BasisParameters, BasisRegressionParameters
from .stochastic_rvm import INFINITE, StochasticRelevance

RELEVANCE_SWEEPS = 500  # at most, of "auto"
MOST_RELEVANT_SHARE = 0.25
"""Of the rows, beyond which relevant ones are too many. *Measured* on 30 to 240 rows of eleven
tables: with at most so many, 90 % intervals hold .83 on average; with up to half .64, and with more
.11."""
MOST_OF_CLASS = 0.2
"""The same of a class: of the harmonic mean of its rows and all others. *Measured* on 60 samples of
60 to 300 rows from eleven tables of two classes: seven of 12 with a log loss above .8 have more; of
the other 48 ten do, whose loss is .02 to .4 for their own rows and .2 to .8 for new ones. Three and
more classes without noise may have more and predict well."""
STOCHASTIC_BLOCK = 256  # basis functions of a step of AdaGrad, of "auto"
STOCHASTIC_ROWS = 1024  # of such a step, of "auto", and of the control variate
STOCHASTIC_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class RelevanceRecipe(BasisRecipe):
    """One function for each distinct row, most of which are removed."""

    n_dense: int | str = 0  # while training; the closing posterior has all columns
    learns_precision: bool = True
    block: int = RELEVANCE_BLOCK
    sweeps: int = RELEVANCE_SWEEPS
    patience: float = math.inf

    blockwise: ClassVar[type[BlockwiseObjective]] = RelevanceObjective

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        assert fitted.data is not None
        X, model = fitted.data.X, fitted.posterior.model
        relevance = row_numbers(model.basis.points, X, fitted.x_scaling)
        weights, level = model.columns[..., 0].numpy(), model.shift.double().numpy()
        offset, scale = fitted.y_scaling
        if len(scale) == len(level):  # there is one latent function for each target
            weights, level = weights * scale, level * scale + offset
        single = weights.shape[1] == 1 and fitted.y_shape == ()
        return super().attributes(fitted) | {
            "relevance_": relevance,
            "relevance_vectors_": X[relevance],
            "dual_coef_": weights[:, 0] if single else weights,
            "intercept_": float(level[0]) if single else level,
        }

    def remedy(self, n_functions: int) -> str:
        return "Give a kernel with smaller length-scales, or a larger n_subset to learn them from."

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        n, n_iter, most = fitted.posterior.n_rows, fitted.history.n_iter, fitted.plan.max_iter
        is_auto = self.training.max_iter == "auto"
        sweeps = Finding("sweeps", "max_iter", n_iter, most, category=ConvergenceWarning)
        if is_auto and n_iter == most and self.n_swept(math.ceil(n)) == n:
            sweeps = sweeps._replace(
                severity="problem",
                text=f"The set of relevance vectors did not converge in {n_iter} sweeps.",
                advice="Raise max_iter.",
            )
        yield sweeps
        yield of_relevance(fitted, is_told=self.is_trained(fitted) and sweeps.severity == "fine")


@dataclass(frozen=True, kw_only=True)
class StochasticRelevanceRecipe(RelevanceRecipe):
    """The published steps, from sampled rows and functions, for the precisions too."""

    n_dense: int | str = 10
    block: int = STOCHASTIC_BLOCK

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        plan, t = super().plan(sizes, start), self.training
        steps = math.ceil(plan.n_inducing / plan.batch_size)
        return replace(
            plan,
            solver="adagrad",
            max_iter=math.ceil(STOCHASTIC_STEPS / steps) if t.max_iter == "auto" else plan.max_iter,
            schedule=one_cycle,
            patience=t.n_iter_no_change or math.inf,
        )

    def solve(self, model: ChevronModel, problem: Problem) -> BasisObjective:
        asked, start = self.training.batch_size, start_precision(model, problem.X)
        return StochasticRelevance(
            model,
            problem.X,
            problem.rows,
            start=start,
            limit=INFINITE * start,
            most_whole=MOST_RELEVANT,
            batch_size=STOCHASTIC_ROWS if asked == "auto" else int(asked),
            n_control=STOCHASTIC_ROWS,
            generator=problem.generator,
            **self.learning(model, problem),
        )

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        _, *others = super().training_findings(fitted)
        yield from others  # steps that follow noise have no end of their own


def of_relevance(fitted: Fitted, is_told: bool) -> Finding:
    """Return the share of the rows that are relevance vectors, of the function with the largest.

    Of classes the rows are the harmonic mean of those of the class and of all others, so that rare
    classes have few: they alone say where f is on their side.
    """
    model, n = fitted.posterior.model, fitted.posterior.n_rows
    R = (model.s < MOST_PRECISION).sum(0).numpy()
    rows, limit, doubted = np.full(len(R), n), MOST_RELEVANT_SHARE, "intervals"
    if model.likelihood.for_classes_only:
        limit, doubted, data = MOST_OF_CLASS, "probabilities", cast(Data, fitted.judged)
        labels, n = data.y[:, 0].astype(np.int64), data.row_counts.sum()
        count = np.bincount(labels, data.row_counts, minlength=max(len(R), 2))[-len(R) :]
        rows = 2.0 * count * (n - count) / n
    share = (R / np.maximum(rows, 1.0)).tolist()
    p = int(np.argmax(share))
    found = Finding(RELEVANT, "X", share[p], limit, category=ConvergenceWarning)
    if not is_told or found.value <= found.limit:
        return found
    of_rows = f"{R[p]} of {n:.5g} rows {'are relevance vectors' if R[p] > 1 else 'is a vector'}"
    if doubted == "probabilities":
        of_rows += f" of a class that has {count[p]:.3g}"
    return found._replace(
        severity="problem",
        text=f"{of_rows}, so there are too few rows for this kernel. Do not trust the {doubted}.",
        advice="Use QSGPRegressor or QSGPClassifier, which need fewer rows, or give a kernel with "
        "larger length-scales.",
    )


def row_numbers(points: Tensor, X: np.ndarray, scaling: Scaling) -> np.ndarray:
    """Return the row number in X of each scaled point; of equal rows, the first."""
    seen = scaling.tensor(X, torch.float64, torch.device("cpu")).numpy() + 0.0  # −0 becomes 0
    first: dict[bytes, int] = {}
    for i, row in enumerate(seen):
        first.setdefault(row.tobytes(), i)
    return np.array([first[row.tobytes()] for row in points.numpy() + 0.0])


@dataclass(eq=False, repr=False, kw_only=True)
class QSRVMParameters(BasisParameters):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The kernel, whose hyper-parameters are where training starts: any of scikit-learn's that has
        a torch version here. A top-level WhiteKernel is the noise. None: a constant times an RBF
        kernel with a length-scale for each input, or a single one for more than 64 inputs.
    solver : {"newton", "adagrad"}, default="newton"
        "newton": MacKay's updates after exact steps for a block of functions. "adagrad": stochastic
        gradients of the evidence lower bound, for the precisions too, as in [2]_: 10,000 steps of
        1,024 rows and 256 functions; `learning_rate_init` is relative to AdaGrad's rate. "adagrad"
        serves to check the paper. It keeps three times as many vectors (on sinc, 22 of 100 rows
        instead of 8, and 36 of 200 instead of 12), and takes 40 s instead of 1 s.
    max_iter : int or "auto", default="auto"
        Number of sweeps over the remaining functions ("adagrad": over all functions). "auto" is
        500, but at most as many as make 2,000 steps. With "newton", training stops earlier when one
        block has all remaining functions, no function is removed any more, and no precision moves
        by more than 1 %, or 2 % for a classifier.
    n_iter_no_change : int or None, default=None
        Stop after this many sweeps without an improvement by `tol`. None: never, because the bound
        is worse for a while whenever a function is removed.

    Attributes
    ----------
    relevance_ : ndarray of shape (n_relevance,)
        Row numbers of the relevance vectors in X.
    relevance_vectors_ : ndarray of shape (n_relevance, n_features)
        The relevance vectors: these rows of X.
    dual_coef_ : ndarray of shape (n_relevance,) or (n_relevance, n_outputs)
        Weights of the relevance vectors, in the units of y. The latent mean is `kernel(X,
        relevance_vectors_) @ dual_coef_ + intercept_`, where the kernel is `kernel_` without its
        WhiteKernel.
    intercept_ : float or ndarray of shape (n_outputs,)
        The prior mean.
    """

    solver: str = "newton"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "solver": [StrOptions({"newton", "adagrad"})]
    }


def rvm_recipe(p: QSRVMRegressor | QSRVMClassifier, likelihood: Likelihood) -> RelevanceRecipe:
    """Return a function for each distinct row, and a likelihood."""
    recipe = RelevanceRecipe if p.solver == "newton" else StochasticRelevanceRecipe
    return recipe.of(
        p,
        likelihood=likelihood,
        kernel=KernelChoice.of(p.kernel),
        basis=KernelFunctions(most=math.inf, is_diagonal=True),
        # What is pruned too late is not pruned at all.
        training=Training.of(p, learning_rate="constant"),
    )


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSRVMRegressor(BasisRegressionParameters, QSRVMParameters, Regressor):
    """Relevance vector regression, on dictionaries of any size.

    A sparse model: a Gaussian process whose mean and variance need only a few of the training rows.
    Far from these rows its variance falls back to the noise alone, as in every finite model.

    See Also
    --------
    QSGPRegressor : Without pruning.

    References
    ----------
    .. [1] M. Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001.
    .. [2] T. Evans, P. Nair, "Quadruply stochastic Gaussian processes", 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import QSRVMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-10, 10, (100, 1))
    >>> y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(100)
    >>> model = QSRVMRegressor(random_state=0).fit(X, y)
    >>> len(model.relevance_) < 20
    True
    """

    def _recipe(self) -> RelevanceRecipe:
        return rvm_recipe(self, Gaussian())


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSRVMClassifier(QSRVMParameters, Classifier):
    """Relevance vector classification, on dictionaries of any size.

    Two classes use the logistic likelihood; more classes use one model for each class against the
    others.

    The evidence of few rows is highest where vectors follow single labels. Hence each degree of
    freedom of a latent function costs half a nat here, in the manner of [3]_, so that a vector has
    to be worth more than chance.

    Of few rows with many inputs, probabilities of new rows can be too certain all the same: for 200
    rows of ``make_hastie_10_2``, log losses are .70, 1.05 and .66 in three draws, and .54, .57 and
    .48 for :class:`QSGPClassifier`. A warning says if a class has too many vectors for its rows.

    See Also
    --------
    QSGPClassifier : Without pruning.

    References
    ----------
    .. [1] M. Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001.
    .. [2] T. Evans, P. Nair, "Quadruply stochastic Gaussian processes", 2020.
    .. [3] A. Schmolck, R. Everson, "Smooth relevance vector machine: a smoothness prior extension
       of the RVM", Machine Learning 68, 2007.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import QSRVMClassifier
    >>> X, y = make_moons(100, noise=0.1, random_state=0)
    >>> model = QSRVMClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    >>> len(model.relevance_) < 20
    True
    """

    def _recipe(self) -> RelevanceRecipe:
        return rvm_recipe(self, logistic_likelihood(len(self.classes_)))
