"""QSGP: quadruply stochastic Gaussian processes, whose steps cost the same for any n and m.

Evans & Nair, "Quadruply stochastic Gaussian processes", 2020. Here f = Φw for m basis functions
(:mod:`skgpstoch.models.features.basis_functions`), w ~ N(0, S⁻¹), and q(w) = N(μ, CCᵀ) with a
chevron C (:mod:`skgpstoch.models.posteriors.chevron`). The evidence lower bound (D1), its
estimators from sampled rows and functions (D2)-(D4), the control variate and the bound for other
likelihoods are those of :mod:`skgpstoch.objectives.quadruply`, ``solver="adagrad"``. Sampling f
adds noise of about k(x, x)‖μ‖²/|I| to them; if y has little noise, that is ten times the variance
of y or more. The other solvers avoid it. ``solver="newton"``
(:mod:`skgpstoch.objectives.blockwise`) stores f at the rows of the minibatch, and takes exact steps
for a block of functions. ``solver="sgd"`` (:mod:`skgpstoch.objectives.proximal`) samples as the
paper does, and predicts that noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from sklearn.utils._param_validation import StrOptions

from ...data.rows import Data
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.parameters import (
    AUTO,
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    TrainingParameters,
)
from ...estimators.regressor import Regressor
from ...likelihoods.base import Likelihood, make_likelihood
from ...likelihoods.heavy_tailed import Laplace
from ...likelihoods.logistic import logistic_likelihood
from ...likelihoods.real import Gaussian
from ...models.posteriors.chevron import ChevronModel
from ...objectives.blockwise import BasisObjective
from ...objectives.proximal import ProximalObjective
from ...objectives.quadruply import StochasticObjective
from ...training.optimizers import SCHEDULES
from ...training.recipes.basis import LEAST_STEPS, BasisRecipe, FourierFunctions, KernelFunctions
from ...training.recipes.kernel_choice import KernelChoice
from ...training.recipes.plan import Plan, Sizes, Start, Training
from ...training.recipes.recipe import Problem
from .parameters import BasisParameters, BasisRegressionParameters

CONTROL = 1024  # rows of the control variate
SAMPLED_ROWS = 1024  # of a step
KRIGED = 2048  # rows of the control variate where it is kriged
PASSES = 4  # over all rows
ADAGRAD_STEPS = 3_000


@dataclass(eq=False, repr=False, kw_only=True)
class QSGPParameters(BasisParameters, TrainingParameters):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    basis : {"fourier", "inducing"}, default="fourier"
        Kind of basis functions. "fourier": random Fourier features, for sums of products of RBF and
        Matérn kernels, regenerated from a seed wherever they are needed. "inducing": k(·, z) at
        random rows z, for any of scikit-learn's kernels that has a torch version here.
    n_components : int or "auto", default="auto"
        Number m of basis functions. "auto" is a quarter of n_samples, between 1,000 and 10,000.
        With basis="inducing" it is all distinct rows, at most 10,000, and there cannot be more
        functions than these.
    n_dense : int or "auto", default="auto"
        Number c of dense columns of the covariance's factor C; the others are diagonal. "auto" is
        all columns if there are at most 1,024, else 100; it is fewer if these would take much
        memory, as with many outputs or classes.
    solver : {"newton", "adagrad", "sgd"}, default="newton"
        "newton": exact steps for a block of basis functions, given the sum of the others at the
        rows of a sweep. "adagrad": AdaGrad's steps with the estimators of [1]_, which sample the
        other functions too and need a hundred times as many steps. Then `max_iter="auto"` makes
        3,000 steps, `batch_size="auto"` is 1,024 rows for each step, `learning_rate_init` is ten
        times AdaGrad's rate, and `learning_rate="auto"` is "one-cycle", from step to step. "sgd":
        the same samples of rows and functions, in proximal steps, with a control variate that is
        kriged. It is as good as "newton" after two to four passes over all rows;
        `max_iter="auto"` makes four, and `batch_size="auto"` is 1,024.
    learning_rate : {"auto", "one-cycle", "constant", "theory"}, default="auto"
        How `learning_rate_init` falls from sweep to sweep, if sweeps have different rows; otherwise
        it stays. "auto" is "theory", t^(−3/4).
    n_control : int or "auto", default="auto"
        Number of rows p of the control variate. For "adagrad" its coefficient is the best one,
        "auto" is 1,024, and 0 is no control variate; with basis="inducing" there is a second one
        for the prior, from 256 points. For "sgd" "auto" is 2,048; take more if functions are rough.
    augment : bool, default=False
        Whether to add a function centred on each row that is predicted, so that predictive
        variances return to the prior's far from the data; for basis="inducing".
    learn_kernel : bool, default=False
        Whether the kernel goes on learning after the start: a step of Adam in each sweep after the
        first quarter of them; for basis="fourier".
    """

    basis: str = "fourier"
    n_components: int | str = "auto"
    n_dense: int | str = "auto"
    solver: str = "newton"
    learning_rate: str = "auto"
    n_control: int | str = "auto"
    augment: bool = False
    learn_kernel: bool = False

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_components",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "basis": [StrOptions({"fourier", "inducing"})],
        "n_components": [POSITIVE_INTEGER, AUTO],
        "n_dense": [NOT_NEGATIVE_INTEGER, AUTO],
        "solver": [StrOptions({"newton", "adagrad", "sgd"})],
        "learning_rate": [StrOptions({"auto", *SCHEDULES})],
        "n_control": [NOT_NEGATIVE_INTEGER, AUTO],
        "augment": ["boolean"],
        "learn_kernel": ["boolean"],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("basis", "n_components", "n_dense")


@dataclass(frozen=True, kw_only=True)
class StochasticRecipe(BasisRecipe):
    """AdaGrad's steps, from sampled rows and sampled basis functions."""

    n_control: int | str = "auto"  # rows of the control variate

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, plan = self.training, super().plan(sizes, start)
        n_groups = math.ceil(plan.n_inducing / self.basis.group_size)
        steps = math.ceil(n_groups / plan.batch_size)
        sweeps = math.ceil(ADAGRAD_STEPS / steps)
        return replace(
            plan,
            solver="adagrad",
            max_iter=sweeps if t.max_iter == "auto" else plan.max_iter,
            schedule=SCHEDULES["one-cycle" if t.learning_rate == "auto" else t.learning_rate],
            patience=t.n_iter_no_change or math.inf,
        )

    def solve(self, model: ChevronModel, problem: Problem) -> BasisObjective:
        asked, controls = self.training.batch_size, self.n_control
        return StochasticObjective(
            model,
            problem.X,
            problem.rows,
            batch_size=SAMPLED_ROWS if asked == "auto" else int(asked),
            n_control=CONTROL if controls == "auto" else int(controls),
            generator=problem.generator,
            **self.learning(model, problem),
        )


@dataclass(frozen=True, kw_only=True)
class ProximalRecipe(BasisRecipe):
    """Proximal steps, from sampled rows and sampled basis functions."""

    n_control: int | str = "auto"  # rows of the control variate

    def check(self, data: Data) -> None:
        super().check(data)
        if self.n_control == 0:
            raise ValueError(
                "n_control must be at least 1 with solver='sgd', which measures its "
                "steps on these rows, got 0. Use solver='adagrad', which needs none."
            )

    @property
    def n_sampled(self) -> int:
        """Return |K|, the rows of a step."""
        asked = self.training.batch_size
        return SAMPLED_ROWS if asked == "auto" else int(asked)

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, plan = self.training, super().plan(sizes, start)
        n = sizes.n_rows - plan.folds.size
        steps = math.ceil(plan.n_inducing / (plan.batch_size * self.basis.group_size))
        sweeps = math.ceil(PASSES * n / min(self.n_sampled, n))
        sweeps = min(sweeps, max(1, LEAST_STEPS // steps))
        return replace(
            plan,
            max_iter=sweeps if t.max_iter == "auto" else plan.max_iter,
            patience=t.n_iter_no_change or math.inf,
        )

    def solve(self, model: ChevronModel, problem: Problem) -> BasisObjective:
        t, controls, n_iter = self.training, self.n_control, problem.plan.max_iter
        schedule = SCHEDULES["theory" if t.learning_rate == "auto" else t.learning_rate]
        return ProximalObjective(
            model,
            problem.X,
            problem.rows,
            batch_size=self.n_sampled,
            n_control=KRIGED if controls == "auto" else int(controls),
            rate=lambda sweep: t.learning_rate_init * schedule(sweep, n_iter),
            **self.learning(model, problem),
        )


SOLVERS: dict[str, type[BasisRecipe]] = {
    "newton": BasisRecipe,
    "adagrad": StochasticRecipe,
    "sgd": ProximalRecipe,
}


def qsgp_recipe(p: QSGPRegressor | QSGPClassifier, likelihood: Likelihood) -> BasisRecipe:
    """Return basis functions of one kind, the solver's steps, and a likelihood."""
    functions = FourierFunctions if p.basis == "fourier" else KernelFunctions
    return SOLVERS[p.solver].of(
        p,
        likelihood=likelihood,
        kernel=KernelChoice.of(p.kernel),
        basis=functions(n_components=p.n_components),
        augments=p.augment,
        learns_kernel=bool(p.learn_kernel),
        training=Training.of(p),
    )


def noise_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood of a regressor.

    Raises
    ------
    ValueError
        If it is neither Gaussian nor Laplace.
    """
    found = make_likelihood(likelihood, ("gaussian", "laplace"))
    if not isinstance(found, Gaussian | Laplace):
        raise ValueError(
            f"likelihood of QSGPRegressor must be 'gaussian' or 'laplace', got {likelihood!r}."
        )
    return found


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSGPRegressor(BasisRegressionParameters, QSGPParameters, Regressor):
    """Gaussian-process regression with up to ten million basis functions.

    Steps use minibatches of rows *and* of basis functions. The time of a step depends neither on
    the number of rows nor, for Fourier features, on the number of basis functions. A fitted model
    with n_dense=0 is a mean, a standard deviation and a seed.

    Parameters
    ----------
    likelihood : {"gaussian", "laplace"} or Likelihood, default="gaussian"
        The noise; also an instance of :class:`~skgpstoch.likelihoods.Gaussian` or
        :class:`~skgpstoch.likelihoods.Laplace`. It is learned after the start. If there are fewer
        than four rows for each diagonal column of C, it can only rise, to what is left of y.

    See Also
    --------
    QSRVMRegressor : A few relevant rows instead of all.
    SVGPRegressor : Inducing points that are learned.

    References
    ----------
    .. [1] T. Evans, P. Nair, "Quadruply stochastic Gaussian processes", 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import QSGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(300)
    >>> model = QSGPRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.0], [1.5]], return_std=True)
    >>> np.round(mean, 1) + 0.0
    array([0., 1.])
    >>> bool((std < 0.15).all())
    True
    """

    likelihood: str | Likelihood = "gaussian"

    _parameter_constraints: ClassVar[dict[str, list]] = {"likelihood": [str, Likelihood]}

    def _recipe(self) -> BasisRecipe:
        return qsgp_recipe(self, noise_likelihood(self.likelihood))


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSGPClassifier(QSGPParameters, Classifier):
    """Gaussian-process classification with up to ten million basis functions.

    Two classes use the logistic likelihood; more classes use one model for each class against the
    others. Steps use minibatches of rows *and* of basis functions. The time of a step depends
    neither on the number of rows nor, for Fourier features, on the number of basis functions.

    See Also
    --------
    QSRVMClassifier : A few relevant rows instead of all.
    SVGPClassifier : Inducing points that are learned.

    References
    ----------
    .. [1] T. Evans, P. Nair, "Quadruply stochastic Gaussian processes", 2020.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import QSGPClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = QSGPClassifier(n_subset=100, max_iter=10, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    >>> bool(model.predict_proba([[0.0, 1.0]])[0, 0] > 0.9)
    True
    """

    def _recipe(self) -> BasisRecipe:
        return qsgp_recipe(self, logistic_likelihood(len(self.classes_)))
