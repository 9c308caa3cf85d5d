"""QSGP: quadruply stochastic Gaussian processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from .. import kernels
from ..data.rows import Rows
from ..estimators.basis import BasisGP, LEAST_AUTO, MOST_AUTO
from ..estimators.classifier import GPClassifier
from ..estimators.docs import public_estimator
from ..estimators.parameters import AUTO, POSITIVE_INTEGER
from ..estimators.plan import Plan, given_number
from ..estimators.regressor import GPRegressor
from ..features.basis_functions import BasisFunctions, FourierBasis, KernelBasis
from ..likelihoods import make_likelihood
from ..likelihoods.base import Likelihood
from ..likelihoods.classes import Bernoulli
from ..likelihoods.one_vs_rest import OneVsRest


@dataclass(eq=False, repr=False, kw_only=True)
class QSGP(BasisGP):
    """What the regressor and the classifier share.

    Parameters
    ----------
    basis : {"fourier", "inducing"}, default="fourier"
        Random Fourier features of sums of products of RBF and Matérn kernels, regenerated from a
        seed wherever they are needed; or k(·, z) of any kernel at random rows z.
    n_components : int or "auto", default="auto"
        Basis functions m. "auto" is n_samples, for Fourier features 1,000 at least, and 10,000 at
        most.
    augment : bool, default=False
        Whether predictive variances are those with one more function centred on each row, so that
        they return to the prior's far from the data; for basis="inducing".
    learn_kernel : bool, default=False
        Whether the kernel goes on learning after the start, a step of Adam each sweep after a
        quarter of them; for basis="fourier".
    """

    basis: str = "fourier"
    n_components: int | str = "auto"
    augment: bool = False
    learn_kernel: bool = False

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "basis": [StrOptions({"fourier", "inducing"})],
        "n_components": [POSITIVE_INTEGER, AUTO],
        "augment": ["boolean"],
        "learn_kernel": ["boolean"],
    }

    def _learns_kernel(self) -> bool:
        return self.learn_kernel

    def _model_options(self) -> dict[str, Any]:
        return {"augments": self.augment}

    def _n_components(self, n_rows: int, start: Any) -> int:
        if self.n_components != "auto":
            return int(self.n_components)
        if start is not None:
            return start.model.basis.n_components
        least = LEAST_AUTO if self.basis == "fourier" else 1
        return int(np.clip(n_rows, least, MOST_AUTO))

    def _basis(
        self, kernel: kernels.Kernel, X: Tensor, plan: Plan, generator: torch.Generator
    ) -> BasisFunctions:
        if self.basis == "fourier":
            seed = int(torch.randint(2**31, (), generator=generator, device=X.device))
            return FourierBasis(kernel, X.shape[1], plan.n_inducing, seed)
        return KernelBasis(kernel, X[: plan.n_inducing].clone())


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSGPRegressor(QSGP, GPRegressor):
    """Reg."""

    likelihood: str | Likelihood = "gaussian"
    normalize_y: bool = True

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "likelihood": [str, Likelihood],
        "normalize_y": ["boolean"],
    }

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit."""
        return self._fit_to(X, y, sample_weight)

    def _make_likelihood(self) -> Likelihood:
        return make_likelihood(self.likelihood, ("gaussian", "laplace"))


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSGPClassifier(QSGP, GPClassifier):
    """Cls."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit."""
        return self._fit_to(X, y, sample_weight)

    def _make_likelihood(self) -> Likelihood:
        n = len(self.classes_)
        return Bernoulli("logit") if n == 2 else OneVsRest(n)

    def _codes(self, rows: Rows) -> Tensor:
        y = rows.y
        if len(self.classes_) > 2:
            y = (y == torch.arange(len(self.classes_), device=y.device)).to(y)
        return 2.0 * y - 1.0
