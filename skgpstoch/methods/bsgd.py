"""BSGD: the marginal likelihood of the minibatch alone, the biased baseline.

Chen, Zheng, Al Kontar & Raskutti, "Stochastic gradient descent in correlated settings: a study on
Gaussian processes", NeurIPS 2020; Shoham & Avron, sec. 4.2. On a finite kernel this is SCGD with
F̃ = Z_SᵀZ_S + λI, without the factor n/b. It needs no features, only the kernel matrix of the
minibatch, so it can also learn a kernel that has no finite features.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from .. import kernels
from ..data.rows import Data, Rows
from ..estimators.docs import public_estimator
from ..estimators.parameters import AUTO, POSITIVE_INTEGER, FiniteParameters
from ..estimators.streams import StreamingRegressor
from ..kernels import check_length_scales
from ..likelihoods.real import Gaussian
from ..maths.exact_solver import ExactSolver
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import log_det
from ..models.features.fourier import has_features
from ..models.features.network import OneMember
from ..models.posteriors.exact import ExactPosterior, noisy, repetition
from ..models.posteriors.iterative import IterativePosterior
from ..objectives.base import Objective, surrogate
from ..objectives.evidence import AsMean, FiniteObjective, ridged
from ..training.recipes.evidence import EvidenceRecipe, ExactRecipe
from ..training.recipes.kernel_choice import KernelChoice
from ..training.recipes.networks import build_network
from ..training.recipes.plan import Start, load_fitted
from ..training.recipes.recipe import Problem, check_shared_noise

MAX_EXACT_ROWS = 10_000
"""Up to which a kernel without finite features has a factor of its matrix, of O(n²) memory."""
STEPS_OF_KERNELS = 1500, 1500, 8000
"""Numbers of steps for "auto", as :class:`EvidenceRecipe` describes them.

*Measured* on 150 rows with a WhiteKernel(), whose noise starts at 1: 450 steps leave deviations 2.6
times those of the exact process, 1,500 1.3 times.
"""
EXACT_EVALUATION_ROWS = 2_000  # of training, for a held-out score whose posterior costs O(n³)

OfAllRows = ExactPosterior | IterativePosterior


class BSGDObjective(FiniteObjective):
    """BSGD: the NLML of the minibatch alone, by its b×b matrix C = ZZᵀ + λI.

    2·NLML_S = (λ/σ²)·yᵀC⁻¹y + log|C| + b·log(σ²/λ) + b·log 2π in O(b³ + b²D) time and O(b² + bD)
    memory. Rows that a member does not see are zero, and log|C| is corrected for them. A row of
    weight w counts w times, and its squares are multiplied by w.
    """

    sums_rows = False  # C is that of all pairs of rows

    def loss(self, Z: Tensor, Y: Tensor, b: Tensor, as_mean: AsMean, unseen: Tensor) -> Tensor:
        noise, ridge = self.noise_variance, self.ridge
        with torch.no_grad():
            Zd = Z.double()
            L = self.factor(ridged(Zd @ Zd.mT, ridge))  # (K, P, b, b)
            C_inv = torch.cholesky_inverse(L)
            alpha = (C_inv @ Y.double().mT[..., None])[..., 0].mT  # C⁻¹y, (K, b, P)
            fit = (Y * alpha).sum(1) * ridge / noise  # (K, P)
            counted = (Z.shape[1] - unseen) / b  # about 1: what the batch counts for, (K, 1)
            log_det_C = log_det(L) - unseen * ridge.log()  # an unseen row has λ on the diagonal
            log_scale = (noise / ridge).log()
            nlml = (fit + log_det_C) / b + counted * log_scale + counted * LOG_2PI  # 2·NLML / b
            value = 0.5 * nlml.sum(1).mean()

            dC = C_inv.sum(1) - (alpha * (ridge / noise)) @ alpha.mT  # 2·∂NLML/∂C, (K, b, b)
            gradients = [(Z, (dC @ Zd / b[..., None]).to(Z))]  # paper, A.3
            if self.noise == "learned":  # λ = σ²
                trace = C_inv.diagonal(dim1=-2, dim2=-1).sum(-1) - unseen / ridge
                d_log_noise = 0.5 * (trace - alpha.square().sum(1)) * noise / b
                gradients.append((self.log_noise, d_log_noise.mean(0)))
        return surrogate(value, *gradients)


class KernelBSGDObjective(Objective):
    """NLML of the minibatch under any kernel on a network's outputs, with noise σ² for each output.

    Parameters
    ----------
    kernel, network
        Those of :class:`~skgpstoch.models.posteriors.exact.ExactPosterior`.
    n_outputs : int
        P.
    noise_variance, noise_bounds, weight_decay
        Those of :class:`~skgpstoch.objectives.evidence.FiniteObjective`; equal bounds fix σ².
    mean_weight : float, default=1.0
        Weight of a row in the mean.
    """

    def __init__(
        self,
        kernel: kernels.Kernel,
        network: nn.Module,
        n_outputs: int,
        *,
        noise_variance: float,
        noise_bounds: tuple[float, float],
        weight_decay: float,
        mean_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.mean_weight = mean_weight
        self.kernel = kernel
        self.network = network
        self.noise_bounds = noise_bounds
        self.weight_decay = weight_decay
        noise = torch.full((n_outputs,), noise_variance, dtype=torch.float64, device="cpu")
        self.likelihood = Gaussian(noise)
        self.likelihood.requires_grad_(noise_bounds[0] < noise_bounds[1])

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        K = self.kernel(self.network(X).double())  # (b, b)
        y, n = rows.y.double(), len(X) * self.mean_weight
        noise = self.likelihood.noise_variance  # (P,)
        with torch.no_grad():
            Y = y.mT[..., None]  # (P, b, 1)
            solver = ExactSolver.of(noisy(K, noise, rows), Y, "kernel matrix of a minibatch")
            value = (0.5 * repetition(noise, rows) - solver.log_density(Y)).sum() / n
            dC = -solver.slope() / n  # (P, b, b)
            of_rows = dC.diagonal(dim1=-2, dim2=-1)
            if rows.weight is not None:
                of_rows = of_rows / rows.weight.double()
            d_log_noise = of_rows.sum(-1) * noise + 0.5 * (rows.n_effective - len(X)) / n
        return surrogate(value, (K, dC.sum(0)), (self.likelihood.log_noise, d_log_noise))

    def step_end(self) -> None:
        self.kernel.clamp_()
        low, high = map(math.log, self.noise_bounds)
        self.likelihood.log_noise.data.clamp_(low, high)

    @torch.no_grad()
    def evaluate(self, X: Tensor, rows: Rows) -> float:
        """Held-out NLPD, or NLML without validation rows, from a subset of the training rows."""
        n_held_out = rows.n_held_out
        some = slice(n_held_out, n_held_out + EXACT_EVALUATION_ROWS)
        posterior = self.exact(X[some], rows[some])
        if not n_held_out:
            return -float(posterior.log_evidence().sum()) / posterior.n_rows
        held_out = rows[:n_held_out]
        q = posterior.marginals(X[:n_held_out].double())
        losses = -posterior.likelihood.log_predictive(held_out.y, q)
        return float(held_out.weighted(losses).sum()) / held_out.n_effective

    def exact(self, X: Tensor, rows: Rows) -> ExactPosterior:
        """Return the exact posterior of these rows, from a factor of their matrix."""
        fitted = copy.deepcopy(self).double().eval()
        X, rows = X.double(), rows.to(torch.float64)
        return ExactPosterior(fitted.kernel, fitted.network, fitted.likelihood, X, rows)

    def solution(self, X: Tensor, rows: Rows) -> OfAllRows:
        if len(X) <= MAX_EXACT_ROWS:
            return self.exact(X, rows)
        if rows.weight is not None:  # the noise σ²/0 of a row that is none is no number
            X, rows = X[rows.weight > 0], rows[rows.weight > 0]
        fitted = copy.deepcopy(self).double().eval()
        X, rows = X.double(), rows.to(torch.float64)
        return IterativePosterior(fitted.kernel, fitted.likelihood, X, rows, fitted.network)


# ---- a kernel that is taken as it is -------------------------------------------------------------


def is_taken_as_it_is(kernel: KernelChoice, n_components: int | str | None) -> bool:
    """Return whether a kernel is used as it is, and not through features."""
    if kernel.expression is None:
        return False
    return n_components is None or not has_features(kernels.from_sklearn(kernel.expression))


@dataclass(frozen=True, kw_only=True)
class KernelBSGDRecipe(ExactRecipe):
    """A kernel without finite features, learned from its matrices of minibatches."""

    steps: tuple[int, int, int] = STEPS_OF_KERNELS

    def n_members(self, n_rows: int, start: Start | None) -> int:
        if self.n_estimators not in ("auto", 1):
            raise ValueError(
                f"n_estimators must be 1 for this kernel, got {self.n_estimators}, "
                "because the kernel is used without finite features."
            )
        return 1

    def check(self, data: Data) -> None:
        super().check(data)
        if data.size > MAX_EXACT_ROWS and data.y.shape[1] > 1:
            raise ValueError(
                f"y must have one column for more than {MAX_EXACT_ROWS} rows of a kernel "
                f"without finite features, got {data.y.shape[1]} columns and {data.size} "
                "rows: conjugate gradients solve for one noise variance only. Fit one "
                "model for each column."
            )

    def objective(self, problem: Problem) -> KernelBSGDObjective:
        rows = problem.rows
        network, width = build_network(self.network, problem.X, problem.generator)
        is_ours = self.network is not None and self.network.module is None
        kernel = kernels.from_sklearn(self.kernel.expression)
        check_length_scales(kernel, width, network)
        objective = KernelBSGDObjective(
            kernel,
            nn.Sequential(network, OneMember()) if is_ours else network,
            rows.y.shape[1],
            noise_variance=self.kernel.start_noise,
            noise_bounds=self.kernel.noise_bounds,
            weight_decay=self.weight_decay(rows),
            mean_weight=rows.after(rows.n_held_out).mean_weight,
        )
        objective.has_user_module = self.has_user_module
        if (start := problem.start) is not None:
            for part in ("kernel", "network", "likelihood"):
                fitted = getattr(start.posterior, part, nn.Identity())  # features have no kernel
                load_fitted(getattr(objective, part), fitted, start)
        return objective

    def check_streams(self) -> None:
        raise ValueError(
            "partial_fit needs a kernel with finite or random Fourier features, got "
            f"kernel={self.kernel.expression}. Use another kernel, or n_components=None, "
            "which supports any kernel."
        )

    def evidence(self, posterior: Any, X: Tensor, rows: Rows) -> float:
        check_shared_noise(posterior, rows)
        p = posterior  # of either kind: who asks for this has memory for the factor
        exact = ExactPosterior(p.kernel, p.network, p.likelihood, X, rows)
        return float(exact.log_evidence().sum())

    def fitted_kernel(self, posterior: OfAllRows) -> sk.Kernel:
        noise = float(posterior.likelihood.noise_variance.detach().mean())
        fitted = kernels.to_sklearn(posterior.kernel)
        return kernels.join_white_noise(fitted, noise, self.kernel.white)


# ---- the estimator -------------------------------------------------------------------------------


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class BSGDGaussianProcessRegressor(FiniteParameters, StreamingRegressor):
    """Gaussian-process regression by biased stochastic gradients of the minibatch likelihood.

    With a kernel that has finite or random Fourier features, the model is that of
    :class:`SCGDGaussianProcessRegressor`. Any other sklearn kernel, or any kernel at all with
    ``n_components=None``, is learned from minibatches directly, without features, in at least 1,500
    steps unless `max_iter` says how many. Its predictions are exact. Above 10,000 rows they come
    from conjugate gradients, in O(n) memory, quickly for means and slowly for standard deviations;
    `log_marginal_likelihood_value_` is then NaN, but `log_marginal_likelihood` computes it, in
    O(n²) memory.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the features. None: their inner product, with the inputs and a constant added to
        the features if there are at most 2,000 inputs. A DotProduct is linear in the features
        alone. RBF and Matern (nu = 0.5, 1.5, 2.5 or inf), their products with one another and with
        constants, and sums of all these use random Fourier features. Other sums, products and
        powers, RationalQuadratic and ExpSineSquared are used directly; ExpSineSquared is a
        covariance of a single column only, so it takes hidden_layer_sizes=(). A top-level
        WhiteKernel is the noise. Hyper-parameters refer to the scaled y.
    n_components : int, "auto" or None, default="auto"
        Number of random Fourier features; "auto" is 5 for each row, between 100 and 1,000. None:
        use the kernel directly, whatever it is.
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined. Each is validated on a fold of its own. "auto"
        is 10,000/n_samples, at least 1 and at most 5, if `kernel` and `feature_map` are None and
        `early_stopping` is True. A kernel that is used directly has one network.
    noise : {"auto", "validation", "profiled", "learned"}, default="auto"
        How to find the noise variance: "validation", from held-out rows; "profiled", from the
        running marginal likelihood; "learned", by gradient steps. "auto" is "validation" for
        networks with early stopping, else "profiled"; both also choose the signal variance (the
        scale of the kernel). The noise of a fixed WhiteKernel stays as it is. If the kernel is used
        directly, the noise is learned.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The features and the posterior of their weights, or the kernel and the rows, in float64 on
        the CPU.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units; NaN if the kernel is used
        directly and there are more than 10,000 rows.

    See Also
    --------
    SCGDGaussianProcessRegressor : The same model without the bias.

    References
    ----------
    .. [1] H. Chen, L. Zheng, R. Al Kontar, G. Raskutti, "Stochastic gradient descent in correlated
       settings: A study on Gaussian processes", NeurIPS 2020.
    .. [2] N. Shoham, H. Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite
       Dimensional RKHS", sec. 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import ExpSineSquared, WhiteKernel
    >>> from skgpstoch import BSGDGaussianProcessRegressor
    >>> X = np.linspace(0, 6, 300)[:, None]
    >>> model = BSGDGaussianProcessRegressor(
    ...     ExpSineSquared(1.0, 2.0) + WhiteKernel(0.1),
    ...     hidden_layer_sizes=(),
    ...     max_iter=20,
    ...     random_state=0,
    ... ).fit(X, np.sin(np.pi * X[:, 0]))
    >>> bool(abs(model.predict([[8.5]])[0] - 1.0) < 0.1)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_components": [POSITIVE_INTEGER, AUTO, None]
    }

    def _recipe(self) -> ExactRecipe:
        if is_taken_as_it_is(KernelChoice.of(self.kernel), self.n_components):
            return KernelBSGDRecipe.of(self)
        return EvidenceRecipe.of(self, method=BSGDObjective)
