"""Laplace's approximation of a binary classifier's posterior, with the logistic likelihood.

Rasmussen & Williams, *Gaussian Processes for Machine Learning*, MIT Press, 2006, sections 3.4 and
5.5.1. With labels y in {0, 1} of rows that count wᵢ times, π = σ(f), r = w ∘ (y − π),
W = diag(w ∘ π(1 − π)) and B = I + W^½ K W^½ = LLᵀ, Newton's iterations for the mode f̂ of p(f | y)
are

    b = W f + r,   a = b − W^½ B⁻¹ W^½ K b,   f ← K a                             (Algorithm 3.1)
    log q(y | θ) = −½ aᵀf̂ + Σᵢ wᵢ log σ((2yᵢ − 1) f̂ᵢ) − Σᵢ log Lᵢᵢ                (3.32)

Its gradient (Algorithm 5.1) is a trace against one matrix, as the exact evidence's is: with
R = W^½ B⁻¹ W^½, s₂ = −½ (1 − 2π) ∘ (1 − diag B⁻¹), which is ½ diag(K − CᵀC) ∇³log p(y | f̂), and
u = (I − R K) s₂,

    ∂/∂θ_j = tr(G ∂K/∂θ_j),   G = ½ aaᵀ − ½ R + ½ (u rᵀ + r uᵀ)

For more classes, :class:`~skgpstoch.GaussianProcessClassifier` fits one such classifier for each
class or each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor
from torch.nn.functional import softplus

from ...data.arrays import borrowed, random_numbers
from ...data.devices import map_blocks, prediction_device
from ...estimators.importances import difference_importances, spread_of
from ...kernels.matrices import Covariance, Pull, covariance_of
from ...likelihoods import Bernoulli, OneVsRest
from ...maths.exact_solver import ExactSolver
from ...maths.gaussian import Marginals
from ...maths.linalg import NotPositiveDefiniteError, cholesky_, inverse_, mirror_
from ...persistence.estimator import SavedEstimator
from ...training.exact_search import best_kernel
from ...training.starts import LATENT_VARIANCE

GAIN = 1e-10
"""Nats of log p(y, f): a Newton iteration that gains less is flat."""

LOSS = 1e-3
"""Nats that a step may lose, because of rounding where variances are large."""

MOST_FLAT = 4
"""Flat iterations in a row, after which the search ends."""

MODE_HALVINGS = 20
"""Most halvings of a Newton step."""

LAMBDAS = (0.41, 0.4, 0.37, 0.44, 0.39)
COEFFICIENTS = (-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654)
"""σ(x) ≈ Σ cⱼ (1 + erf(λⱼ x))/2 (Williams & Barber, 1998, appendix A), scikit-learn's numbers."""


class Mode(NamedTuple):
    """Where Newton's iterations ended.

    Parameters
    ----------
    f, pi, W_sr, a : Tensor of shape (N,)
        f̂; and π, W^½ and a of the last iteration.
    L : Tensor of shape (N, N)
        Cholesky factor of B in the last iteration.
    value : float
        log q(y | θ), nats.
    """

    f: Tensor
    pi: Tensor
    W_sr: Tensor
    a: Tensor
    L: Tensor
    value: float


def find_mode(
    K: Tensor, y: Tensor, weight: Tensor, f: Tensor, max_iter: int, B: Tensor
) -> Mode | None:
    """Return the mode for K (N, N), y (N,) in {0, 1}, from f; None if B has no Cholesky factor.

    L takes the memory of B. log p(y | f) − ½ aᵀf is concave, so steps that lower it are halved.
    Iterations end when it gains nothing and the evidence, with the W of the iteration before, does
    not move either.
    """
    sign = 2.0 * y - 1.0

    def log_joint(a: Tensor, f: Tensor) -> Tensor:
        return -0.5 * a @ f - weight @ softplus(-sign * f)

    at_zero = -float(weight.sum()) * math.log(2.0)
    a, height = torch.zeros_like(f), -math.inf if bool(f.any()) else at_zero
    value, n_flat = -math.inf, 0
    for _ in range(max_iter):
        pi = torch.sigmoid(f)
        W = weight * pi * (1.0 - pi)
        W_sr = W.sqrt()
        torch.mul(K, W_sr, out=B).mul_(W_sr[:, None]).diagonal().add_(1.0)
        if not cholesky_(B):
            return None
        b = W * f + weight * (y - pi)
        WKb = W_sr * (K @ b)
        next_a = b - W_sr * torch.cholesky_solve(WKb[:, None], B)[:, 0]
        next_f = K @ next_a
        half = B.diagonal().log().sum()  # of log|B|
        reached, half_log_det = torch.stack([log_joint(next_a, next_f), half]).tolist()
        if height == -math.inf and not reached >= at_zero:  # the start was worse than none
            return find_mode(K, y, weight, torch.zeros_like(f), max_iter, B)
        for _ in range(MODE_HALVINGS):
            if not reached < height - LOSS:
                break
            next_a, next_f = 0.5 * (a + next_a), 0.5 * (f + next_f)
            reached = float(log_joint(next_a, next_f))
        last, value = value, np.float64(reached - half_log_det)
        n_flat = 0 if reached - height >= GAIN else n_flat + 1
        a, f, height = next_a, next_f, reached
        if n_flat == MOST_FLAT or (n_flat and abs(value - last) < GAIN):
            break
    return Mode(f, pi, W_sr, a, B, value)


class LaplaceEvidence:
    """log q(y | θ) as a function of θ, (n_dims,), with its gradient; it needs two (N, N) matrices.

    Parameters
    ----------
    covariance : Covariance
        k of the rows; every call sets its θ.
    y : Tensor of shape (N,)
        Labels, 0 or 1.
    weight : Tensor of shape (N,)
        How many rows each row counts for, positive.
    max_iter : int
        Maximum number of Newton iterations.
    f : Tensor of shape (N,)
        Their start.
    follows : bool
        Whether each search but the first starts from the last mode.
    """

    def __init__(
        self,
        covariance: Covariance,
        y: Tensor,
        weight: Tensor,
        max_iter: int,
        f: Tensor,
        follows: bool,
    ) -> None:
        self.covariance = covariance
        self.y = y
        self.weight = weight
        self.max_iter = max_iter
        self.f = f
        self.follows = follows
        self.K = covariance.empty()
        self.B = covariance.empty()

    def solved(self, theta: np.ndarray, pulls: bool = False) -> tuple[Mode | None, Pull | None]:
        """Return the mode at θ, if there is one, and the gradient of K if `pulls`."""
        self.covariance.set_theta(theta)
        pull = self.covariance.gram_(self.K, pulls)
        mirror_(self.K)
        mode = find_mode(self.K, self.y, self.weight, self.f, self.max_iter, self.B)
        if mode is not None and self.follows and bool(mode.f.isfinite().all()):
            self.f = mode.f
        return mode, pull

    def __call__(self, theta: np.ndarray, eval_gradient: bool = True) -> tuple[float, np.ndarray]:
        """Return nats and the gradient; −inf and 0 where there is no mode."""
        mode, pull = self.solved(theta, eval_gradient)
        if mode is None or not math.isfinite(mode.value):
            return -math.inf, np.zeros(len(theta))
        return mode.value, np.zeros(len(theta)) if pull is None else pull(self.slope_(mode))

    def slope_(self, mode: Mode) -> Tensor:
        """Return G (N, N), in the memory of B."""
        R = mode.L
        inverse_(R)  # B⁻¹, in the lower triangle
        mirror_(R)
        s_2 = -0.5 * (1.0 - 2.0 * mode.pi) * (1.0 - R.diagonal())
        R.mul_(mode.W_sr).mul_(mode.W_sr[:, None])
        u = s_2 - R @ (self.K @ s_2)
        residual = self.weight * (self.y - mode.pi)
        G = R.mul_(-0.5).addr_(mode.a, mode.a, alpha=0.5)
        return G.addr_(u, residual, alpha=0.5).addr_(residual, u, alpha=0.5)


def probability(mean: Tensor, var: Tensor) -> Tensor:
    """Return E σ(f) for f ~ N(mean, var), (N*,), as scikit-learn approximates it."""
    total = torch.full_like(mean, 0.5 * sum(COEFFICIENTS))
    for slope, c in zip(LAMBDAS, COEFFICIENTS, strict=True):
        total += 0.5 * c * torch.erf(slope * mean * (1.0 + 2.0 * slope**2 * var).rsqrt())
    return total.clamp_(0.0, 1.0)


# ---- the classifier ------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class BinaryLaplaceClassifier(SavedEstimator):
    """A binary classifier, with the attributes of scikit-learn's.

    Parameters
    ----------
    kernel, optimizer, n_restarts_optimizer, max_iter_predict, warm_start, random_state, device
        As in :class:`~skgpstoch.GaussianProcessClassifier`, which validates them.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        Class labels.
    X_train_, y_train_, weight_ : ndarrays of shapes (n_samples, n_features) and (n_samples,)
        The training rows, their classes as 0 or 1, and how many rows each row counts for.
    kernel_ : sklearn kernel
        The fitted kernel.
    L_ : ndarray of shape (n_samples, n_samples)
        Cholesky factor of I + W^½ K W^½.
    pi_, W_sr_ : ndarrays of shape (n_samples,)
        Probability of the second class at the mode, and W^½.
    log_marginal_likelihood_value_ : float
        Laplace's approximation of the log marginal likelihood, in nats.
    """

    kernel: sk.Kernel
    optimizer: Any = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    max_iter_predict: int = 100
    warm_start: bool = False
    random_state: Any = None
    device: str | torch.device | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BinaryLaplaceClassifier:
        """Fit to labels of two classes; weights are positive."""
        self.X_train_ = X
        self.weight_ = np.ones(len(y)) if sample_weight is None else sample_weight
        self.classes_, self.y_train_ = np.unique(y, return_inverse=True)
        start = self._start()

        def make(kernel: sk.Kernel) -> LaplaceEvidence:
            return self._evidence(kernel, start)

        search = self.optimizer, self.n_restarts_optimizer, random_numbers(self.random_state)
        self.kernel_ = best_kernel(self.kernel, make, X, LATENT_VARIANCE, search)
        self._set_mode(start)
        return self

    def _start(self) -> np.ndarray:
        """Return the start of Newton's iterations."""
        last = getattr(self, "f_cached", None)
        if self.warm_start and last is not None and last.shape == self.y_train_.shape:
            return last
        return np.zeros(len(self.y_train_))

    def _covariance(self, kernel: sk.Kernel) -> Covariance:
        return covariance_of(kernel, self.X_train_, prediction_device(self.device))

    def _evidence(self, kernel: sk.Kernel, start: np.ndarray) -> LaplaceEvidence:
        """Return log q(y | θ) as a function of θ."""
        k = self._covariance(kernel)
        y, weight, f = (
            torch.tensor(a, dtype=torch.float64, device=k.device)
            for a in (self.y_train_, self.weight_, start)
        )
        return LaplaceEvidence(k, y, weight, self.max_iter_predict, f, bool(self.warm_start))

    def _set_mode(self, start: np.ndarray) -> None:
        mode, _ = self._evidence(self.kernel_, start).solved(self.kernel_.theta)
        if mode is None or not np.isfinite(mode.value):
            raise NotPositiveDefiniteError(
                f"The kernel, {self.kernel_}, gives no posterior, because its covariance of "
                "the training rows is not positive semi-definite, or not finite. Check the "
                "kernel and the scale of X."
            )
        self.f_cached, self.pi_, self.W_sr_, self.L_ = (
            a.cpu().numpy() for a in (mode.f, mode.pi, mode.W_sr, mode.L)
        )
        self.log_marginal_likelihood_value_ = mode.value

    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Return log q(y | θ) in nats, and if asked its gradient; None is the fitted θ."""
        if theta is None:
            if eval_gradient:
                raise ValueError("Gradient can only be evaluated for theta!=None")
            return self.log_marginal_likelihood_value_
        theta = np.asarray(theta, dtype=np.float64)
        if not clone_kernel:
            self.kernel_.theta = theta
        with torch.inference_mode(False), torch.enable_grad():
            value, gradient = self._evidence(self.kernel_, self._start())(theta, eval_gradient)
        return (value, gradient) if eval_gradient else value

    def predict(self, X: Any) -> np.ndarray:
        """Predict the more probable class of each row."""
        mean, _ = self.latent_mean_and_variance(X)
        return np.where(mean > 0.0, self.classes_[1], self.classes_[0])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of both classes, (n, 2)."""
        mean, var = (torch.from_numpy(a) for a in self.latent_mean_and_variance(X))
        p = probability(mean, var).numpy()
        return np.stack([1.0 - p, p], 1)

    def predict_std(self, X: Any) -> np.ndarray:
        """Return the standard deviation of both classes' probabilities, (n, 2)."""
        mean, var = (torch.from_numpy(a)[None, :, None] for a in self.latent_mean_and_variance(X))
        return Bernoulli().probability_std(Marginals(mean, var)).numpy()

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input, (d,)."""

        def mean(X: np.ndarray) -> np.ndarray:
            return self.latent_mean_and_variance(X)[0][:, None]

        return difference_importances(
            mean, spread_of(np.asarray(self.X_train_, dtype=np.float64), self.weight_)
        )

    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the latent function, each (n,), by blocks of rows."""
        k = self._covariance(self.kernel_)
        residual = self.weight_ * (self.y_train_ - self.pi_)
        L, W_sr, residual = (borrowed(a).to(k.device) for a in (self.L_, self.W_sr_, residual))
        of_B = ExactSolver(L, residual[:, None])
        mean, var = np.empty(len(X)), np.empty(len(X))

        def compute(block: slice) -> None:  # Algorithm 3.2
            K_star = k.cross(X[block])
            of_block = of_B.variance(k.diag(X[block]), K_star * W_sr).clamp_min_(0.0)
            mean[block], var[block] = (K_star @ residual).cpu().numpy(), of_block.cpu().numpy()

        map_blocks(compute, len(X), k.block_rows)
        return mean, var


def predict_std_one_vs_rest(binary: Sequence[BinaryLaplaceClassifier], X: Any) -> np.ndarray:
    """Return the standard deviation of each class's share of all probabilities, (n, C)."""
    pairs = [classifier.latent_mean_and_variance(X) for classifier in binary]
    mean, var = (torch.from_numpy(np.stack(columns, 1)) for columns in zip(*pairs, strict=True))
    return OneVsRest(len(binary)).probability_std(Marginals(mean[None], var[None])).numpy()
