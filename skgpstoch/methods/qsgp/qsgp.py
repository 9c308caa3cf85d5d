"""QSGP: quadruply stochastic Gaussian processes, whose steps cost the same for any n and m.

Evans & Nair, "Quadruply stochastic Gaussian processes", 2020. f = Φw for m basis functions
(:mod:`skgpstoch.features.basis_functions`), w ~ N(0, S⁻¹), and q(w) = N(μ, CCᵀ) with a chevron C
(:mod:`skgpstoch.posteriors.chevron`). The evidence lower bound (D1), its estimators from sampled
rows and functions (D2)-(D4), the control variate and the bound for other likelihoods are those of
:mod:`skgpstoch.objectives.quadruply`, ``solver="adagrad"``. Their noise is that of sampling f, some
k(x, x)‖μ‖²/|I|: ten times the variance of y and more on data that are not noisy. So
``solver="newton"`` (:mod:`skgpstoch.objectives.blockwise`) keeps f on the minibatch itself, has
none of it, and takes exact steps for a block of functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ... import kernels
from ...data.rows import Data, Rows
from ...estimators.basis import DIAGONAL_ROWS, BasisGP
from ...estimators.basis_estimators import BasisGPClassifier, BasisGPRegressor
from ...estimators.docs import public_estimator
from ...estimators.parameters import AUTO, POSITIVE_INTEGER
from ...estimators.plan import Plan
from ...features.basis_functions import BasisFunctions, FourierBasis, KernelBasis
from ...likelihoods import make_likelihood
from ...likelihoods.base import Likelihood
from ...likelihoods.heavy_tailed import Laplace
from ...likelihoods.real import Gaussian
from ...objectives.blockwise import BasisObjective
from ...objectives.quadruply import StochasticObjective
from ...posteriors.chevron import ChevronModel
from ...training.optimizers import SCHEDULES

MOST_AUTO = 10_000  # basis functions, of "auto"
LEAST_AUTO = 1_000
DENSE = 100  # dense columns of C, of "auto"; all of them where these are few
MOST_DENSE = 1_024
DENSE_NUMBERS = 20_000_000  # that h and C may have together, of "auto"
CONTROL = 1024  # rows of the control variate
ADAGRAD_ROWS = 1024
ADAGRAD_STEPS = 3_000


@dataclass(eq=False, repr=False, kw_only=True)
class QSGP(BasisGP):
    """What the regressor and the classifier share.

    Parameters
    ----------
    basis : {"fourier", "inducing"}, default="fourier"
        Random Fourier features of sums of products of RBF and Matérn kernels, regenerated from a
        seed wherever they are needed; or k(·, z) at random rows z, of any kernel that scikit-learn
        has in torch here.
    n_components : int or "auto", default="auto"
        Basis functions m. "auto" is a quarter of n_samples, between 1,000 and 10,000; or all rows,
        10,000 at most, where basis="inducing".
    n_dense : int or "auto", default="auto"
        Columns c of the covariance's factor C that are dense; the others are diagonal. "auto" is
        all up to 1,024 of a single latent function, and else 100, as far as these take little
        memory.
    solver : {"newton", "adagrad"}, default="newton"
        "newton": exact steps for a block of basis functions, given what the others say of the rows
        of a sweep; "adagrad": AdaGrad's steps from the estimators of [1]_, which sample the other
        functions as well, and want a hundred times as many: `max_iter` "auto" is then 3,000 steps
        long, `batch_size`, the rows of a step, is 1,024, `learning_rate_init` is ten times
        AdaGrad's rate, and `learning_rate`, how that changes from step to step, is "one-cycle".
    n_control : int or "auto", default="auto"
        Rows p of the control variate of "adagrad"; 0 is none, "auto" is 1,024.
    augment : bool, default=False
        Whether predictive variances are those with one more function centred on each row, so that
        they return to the prior's far from the data; for basis="inducing".
    learn_kernel : bool, default=False
        Whether the kernel goes on learning after the start, a step of Adam each sweep after a
        quarter of them; for basis="fourier".
    """

    basis: str = "fourier"
    n_components: int | str = "auto"
    n_dense: int | str = "auto"
    solver: str = "newton"
    n_control: int | str = "auto"
    augment: bool = False
    learn_kernel: bool = False

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "basis": [StrOptions({"fourier", "inducing"})],
        "n_components": [POSITIVE_INTEGER, AUTO],
        "n_dense": [Interval(Integral, 0, None, closed="left"), AUTO],
        "solver": [StrOptions({"newton", "adagrad"})],
        "n_control": [Interval(Integral, 0, None, closed="left"), AUTO],
        "augment": ["boolean"],
        "learn_kernel": ["boolean"],
    }

    def _dtype(self) -> str:
        return "float64" if self.basis == "inducing" else self.dtype  # k(Z, Z) is all but singular

    def _learns_kernel(self) -> bool:
        return self.learn_kernel

    def _check_kernel(self, kernel: kernels.Kernel, n_features: int) -> None:
        if self.basis == "fourier":
            FourierBasis(kernel, n_features, MOST_AUTO, 0)

    def _group_size(self) -> int:
        return FourierBasis.group_size if self.basis == "fourier" else 1

    def _model_options(self) -> dict[str, Any]:
        return {"augments": self.augment}

    def _check_choices(self) -> None:
        """Raise a ValueError where parameters do not agree."""
        if self.augment and self.basis != "inducing":
            raise ValueError(f"augment=True needs basis='inducing', got basis={self.basis!r}.")
        if self.learn_kernel and self.basis != "fourier":
            raise ValueError(
                f"learn_kernel=True needs basis='fourier', whose prior precision is diagonal, got "
                f"basis={self.basis!r}."
            )

    def _plan(self, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        self._check_choices()
        plan = super()._plan(data, n_given, start)
        if self.solver == "newton":
            return plan
        n_groups = math.ceil(plan.n_inducing / self._group_size())
        sweeps = math.ceil(ADAGRAD_STEPS / math.ceil(n_groups / plan.batch_size))
        return replace(
            plan,
            solver="adagrad",
            max_iter=sweeps if self.max_iter == "auto" else plan.max_iter,
            schedule=SCHEDULES["one-cycle" if self.learning_rate == "auto" else self.learning_rate],
            patience=self.n_iter_no_change or math.inf,
        )

    def _build(
        self, model: ChevronModel, X: Tensor, rows: Rows, plan: Plan, generator: torch.Generator
    ) -> BasisObjective:
        if plan.solver == "newton":
            return super()._build(model, X, rows, plan, generator)
        return StochasticObjective(
            model,
            X,
            rows,
            batch_size=ADAGRAD_ROWS if self.batch_size == "auto" else int(self.batch_size),
            n_control=CONTROL if self.n_control == "auto" else int(self.n_control),
            generator=generator,
            **self._learning(model, plan, rows.n_effective),
        )

    def _n_components(self, n_rows: int, start: Any) -> int:
        if self.n_components != "auto":
            return int(self.n_components)
        if start is not None:
            return start.model.basis.n_components
        if self.basis == "inducing":
            return min(n_rows, MOST_AUTO)
        return int(np.clip(n_rows // DIAGONAL_ROWS, LEAST_AUTO, MOST_AUTO))

    def _dense_columns(self, m: int, n_swept: int, n_outputs: int) -> int:
        """c."""
        if self.n_dense != "auto":
            return min(int(self.n_dense), m)
        most = DENSE_NUMBERS // ((m + n_swept) * n_outputs)
        is_single = n_outputs == 1  # of several, each has a matrix of its own
        return m if is_single and m <= min(MOST_DENSE, most) else min(DENSE, most, m)

    def _basis(
        self, kernel: kernels.Kernel, X: Tensor, plan: Plan, generator: torch.Generator
    ) -> BasisFunctions:
        if self.basis == "fourier":
            seed = int(torch.randint(2**31, (), generator=generator, device=X.device))
            return FourierBasis(kernel, X.shape[1], plan.n_inducing, seed)
        if plan.n_inducing > len(X):
            raise ValueError(
                f"n_components={plan.n_inducing} must be at most the number of rows to train on, "
                f"{len(X)}, where basis='inducing'."
            )
        return KernelBasis(kernel, X[: plan.n_inducing].clone())


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSGPRegressor(QSGP, BasisGPRegressor):
    """Gaussian-process regression with up to ten million basis functions.

    Minibatches of rows *and* of basis functions: the time of a step depends neither on the number
    of rows nor, for Fourier features, on that of basis functions. A fitted model with n_dense=0 is
    a mean, a standard deviation and a seed.

    Parameters
    ----------
    likelihood : {"gaussian", "laplace"} or Likelihood, default="gaussian"
        The noise. It is learned after the start, but is only raised to what is left of y where
        there are less than four rows for each diagonal column of C. An instance of
        :class:`~skgpstoch.likelihoods.Gaussian` or :class:`~skgpstoch.likelihoods.Laplace` will do.

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

    def _make_likelihood(self) -> Likelihood:
        likelihood = make_likelihood(self.likelihood, ("gaussian", "laplace"))
        if not isinstance(likelihood, Gaussian | Laplace):
            raise ValueError(
                f"likelihood of {type(self).__name__} must be 'gaussian' or 'laplace', got "
                f"{self.likelihood!r}."
            )
        return likelihood


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSGPClassifier(QSGP, BasisGPClassifier):
    """Gaussian-process classification with up to ten million basis functions.

    Two classes by the logistic likelihood, more by one model for each class against the others.
    Minibatches of rows *and* of basis functions: the time of a step depends neither on the number
    of rows nor, for Fourier features, on that of basis functions.

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
    >>> model = QSGPClassifier(n_subset=100, max_iter=2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    >>> bool(model.predict_proba([[0.0, 1.0]])[0, 0] > 0.9)
    True
    """
