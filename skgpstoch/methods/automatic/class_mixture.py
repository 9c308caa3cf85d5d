"""Predictions of a mixture of fitted classifiers, and how uncertain their probabilities are.

Softmax depends on functions f (C,), each with the prior k, only by contrasts g (C − 1,),
f = Bg + a constant. The columns of B are orthonormal and sum to 0, so the prior of each contrast is
k, too. With f = Fu at the rows, the precision of u, (R(C − 1),), under Laplace's approximation is
(Rasmussen & Williams, section 3.5)

    H = I + Σ_n w_n (BᵀW_nB) ⊗ F_nF_nᵀ,   W_n = diag π_n − π_nπ_nᵀ

and g at x has the covariance (k(x, x) − ‖φ‖²)·I + (I ⊗ φ)ᵀH⁻¹(I ⊗ φ).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax, logsumexp
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array
from torch import Tensor

from ...data.arguments import FITS_AGAIN, NO_FUNCTION, MissingMethod
from ...data.array_inputs import given_labels
from ...data.docstrings import documented
from ...estimators.classifier import Classifier, codes_of
from ...likelihoods.logistic import Bernoulli
from ...likelihoods.probabilities import BLOCK_FLOATS, PREDICTIVE_POINTS, moments_at_nodes
from ...maths.gaussian import Marginals
from ...maths.linalg import add_diagonal, cholesky, inverse_, mirror_, tri_solve
from ...persistence.estimator import SavedEstimator
from .class_modes import contrast_basis

MOST_UNKNOWNS = 3200  # R(C − 1), up to which H is factorised: 800 points and 5 classes
MOST_KEPT = 2**24  # numbers of factors of all classes; more are made for each block of rows


class ClassParts(NamedTuple):
    """The parts of a mixture.

    Parameters
    ----------
    weights : ndarray of shape (K,)
        Weights, which sum to 1.
    models : list
        Models of the same classes.
    confidence : float, default=1.0
        τ: probabilities are proportional to (Σ_k w_k p_k)^τ.
    """

    weights: np.ndarray
    models: list[Any]
    confidence: float = 1.0


class MixtureClassifier(ClassifierMixin, SavedEstimator):
    """Classes, their probabilities, and how certain these are, of a mixture."""

    classes_: np.ndarray

    partial_fit = MissingMethod(FITS_AGAIN, "SVGPClassifier has it.")
    latent_mean_and_variance = MissingMethod(
        NO_FUNCTION, "Use predict_std for the uncertainty of the probabilities."
    )

    @abstractmethod
    def _parts(self, X: Any) -> tuple[ClassParts, Any]:
        """Return the parts of the mixture, and X as they see it; raise if it is not fitted."""

    @documented(Classifier.predict_log_proba)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class."""
        (weights, models, confidence), X = self._parts(X)
        log_p = np.stack([model.predict_log_proba(X) for model in models])
        return log_p[0] if len(models) == 1 else log_mixture(log_p, weights, confidence)

    @documented(Classifier.predict_proba)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class."""
        p = np.exp(self.predict_log_proba(X))
        return np.asarray(p / p.sum(1, keepdims=True))

    @documented(Classifier.predict_std)
    def predict_std(self, X: Any) -> np.ndarray:
        """Return the standard deviation of each class's probability under the posterior.

        It includes the deviations under the models' posteriors and the differences between models,
        all about the probabilities p of `predict_proba`, so it is at most √(p(1 − p)). If p is at
        the mode of a posterior, or more confident than the mixture's mean, log odds are shifted and
        scaled until their mean probability is p. To first order, deviations are then p(1 − p) times
        those of the log odds. Laplace's posterior of more than 3,200 unknowns (800 rows and more
        than five classes) takes functions as independent, and its deviations are too large by a
        tenth or two.

        Returns
        -------
        std : ndarray of shape (n_samples, n_classes)
            Deviations in the order of `classes_`. Those of two classes are the same.
        """
        (weights, models, confidence), X = self._parts(X)
        stds = np.stack([model.predict_std(X) for model in models])
        if len(models) == 1:
            return stds[0]
        log_p = np.stack([model.predict_log_proba(X) for model in models])
        p = np.exp(log_p)
        mean = np.average(p, axis=0, weights=weights)
        std = np.sqrt(np.average(stds**2 + (p - mean) ** 2, axis=0, weights=weights))
        if confidence == 1.0:
            return std
        reported = np.exp(log_mixture(log_p, weights, confidence))
        return deviation_about(reported, mean, std, confidence)

    predict = Classifier.predict

    @documented(Classifier.log_predictive_density)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log probability of each row's class."""
        log_p = self.predict_log_proba(X)
        y = check_array(given_labels(y), dtype=None, ensure_2d=False, input_name="y")
        if y.shape != (len(log_p),):
            raise ValueError(
                f"y must have the shape ({len(log_p)},), one label for each row, got {y.shape}."
            )
        return log_p[np.arange(len(y)), codes_of(y, self.classes_)]


def log_mixture(log_p: np.ndarray, weights: np.ndarray, confidence: float) -> np.ndarray:
    """Return normalised τ log Σ_k w_k p_k, (N, C), from log p (K, N, C)."""
    mixed = logsumexp(log_p, axis=0, b=weights[:, None, None])
    return np.asarray(log_softmax(confidence * mixed, axis=1))


# ---- deviations of probabilities -----------------------------------------------------------------


class Contrasts:
    """Covariances of f at new rows, as factors A: f is its mean plus Az, for normal numbers z.

    With more than `MOST_UNKNOWNS` unknowns, functions are taken as independent given y, as if W
    were diag π(1 − π). Deviations are then too large, *measured* by a tenth or two for three
    classes.

    Parameters
    ----------
    F, pi : Tensor of shape (N, R) and (N, C)
        φ of the rows, and their probabilities at the mode.
    weight : Tensor of shape (N,)
    """

    def __init__(self, F: Tensor, pi: Tensor, weight: Tensor) -> None:
        n_classes, (n_rows, R) = pi.shape[1], F.shape
        P = n_classes - 1
        self.is_joint = R * P <= MOST_UNKNOWNS and P * P * max(n_rows, P) <= BLOCK_FLOATS
        self.block_rows = BLOCK_FLOATS // n_classes ** (1 + self.is_joint)
        self.B = contrast_basis(n_classes, pi)
        if self.is_joint:
            pi_B = pi @ self.B  # (N, C − 1)
            W = torch.einsum("ca,nc,cb->abn", self.B, pi, self.B) - torch.einsum(
                "na,nb->abn", pi_B, pi_B
            )
            self.inverse = blocks_of_inverse(F, weight * W)
        else:
            self.F, self.W = F, weight[:, None] * pi * (1.0 - pi)
            self.kept = [*self.factors()] if n_classes * R * R <= MOST_KEPT else None

    def factors(self) -> Iterator[Tensor]:
        """Yield the factor of the precision of each class."""
        yield from (precision_factor(self.F, w) for w in self.W.T)

    def factor(self, phi: Tensor, rest: Tensor) -> Tensor:
        """Return A, (N*, C, C − 1), from φ (N*, R) and k(x, x) − ‖φ‖² (N*,).

        Of independent functions only the diagonal, (N*, C).
        """
        if self.is_joint:
            rows = [torch.stack([((phi @ G) * phi).sum(1) for G in row], 1) for row in self.inverse]
            cov = add_diagonal(torch.stack(rows, 1), rest)  # (N*, C − 1, C − 1)
            return self.B @ cholesky(cov, "covariance of contrasts")
        factors = self.factors() if self.kept is None else self.kept
        var = [rest + tri_solve(L, phi.mT).square().sum(0) for L in factors]
        return torch.stack(var, 1).sqrt()


def precision_factor(F: Tensor, w: Tensor) -> Tensor:
    """Return the Cholesky factor of I + Fᵀdiag(w)F, (R, R)."""
    return cholesky(add_diagonal((F.mT * w) @ F, 1.0))


def blocks_of_inverse(F: Tensor, W: Tensor) -> Tensor:
    """Return H⁻¹ for W (P, P, N) of P contrasts, by its blocks, (P, P, R, R)."""
    n_contrasts, R = len(W), F.shape[1]
    H = F.new_empty(n_contrasts, R, n_contrasts, R)
    for a in range(n_contrasts):
        for b in range(a + 1):
            H[a, :, b] = (F.mT * W[a, b]) @ F
            H[b, :, a] = H[a, :, b]
    L = cholesky(add_diagonal(H.view(n_contrasts * R, -1), 1.0))
    inverse_(L)
    mirror_(L)
    return L.view(n_contrasts, R, n_contrasts, R).transpose(1, 2)


def probability_moments(mean: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of softmax(f), each (N, C).

    f has this mean (N, C) and factor A (N, C, K), or deviations A (N, C).
    """
    if mean.shape[1] == 2:
        g = Marginals(mean[:, 1] - mean[:, 0], (A[:, 1] - A[:, 0]).square().sum(1))
        q = Marginals(*(column[None, :, None] for column in g))
        p, var = Bernoulli().class_probabilities(q)
        return torch.cat([1.0 - p[0], p[0]], 1), var[0].expand(-1, 2)
    n_rows = max(1, BLOCK_FLOATS // (PREDICTIVE_POINTS * mean.shape[1]))
    blocks = zip(mean.split(n_rows), A.split(n_rows), strict=True)
    found = torch.cat([moments_of_softmax(*block) for block in blocks])
    p, var = found.tensor_split(2, -1)
    return p, var


def moments_of_softmax(mean: Tensor, A: Tensor) -> Tensor:
    """Return the same side by side, (N, 2C), by quasi-random points."""

    def log_p(z: Tensor) -> Tensor:
        return torch.log_softmax(mean + (A * z if A.ndim == 2 else (A @ z[..., None])[..., 0]), -1)

    zero = A.new_zeros(1, len(A), A.shape[-1])
    return moments_at_nodes(log_p, Marginals(zero, torch.ones_like(zero)))[0]


# ---- deviations about the probabilities that are reported ----------------------------------------


def most_variance(p: np.ndarray) -> np.ndarray:
    """Return p(1 − p), (N, C), the largest variance for the mean p; it is precise near 1, too."""
    return np.asarray(p * (p @ (1.0 - np.eye(p.shape[1]))))


def deviation_about(
    p: np.ndarray, mean: np.ndarray, std: np.ndarray, factor: float = 1.0
) -> np.ndarray:
    """Return deviations, (N, C), of probabilities whose log odds are shifted until their mean is p.

    Before, they have the mean m and a deviation; log odds are also multiplied by a factor τ. To
    first order dp = τr dm, with r = p(1 − p)/(m(1 − m)). For variances, ρ m(1 − m) before, that is
    ρ' = τ²rρ. Here it is ρ'/(1 − ρ') = τ²r·ρ/(1 − ρ), which agrees for small ρ. Deviations never
    exceed √(p(1 − p)), the most that a distribution of this mean can have.
    """
    before, after = most_variance(mean), most_variance(p)
    var = np.minimum(np.square(std), before)
    varies, rest = factor**2 * after * var, before * (before - var)  # ρ' and 1 − ρ' are as these
    share = np.divide(varies, varies + rest, out=np.zeros_like(varies), where=varies > 0.0)
    return np.sqrt(after * share)
