"""Bayesian linear regression on finite features, from their sufficient statistics.

With features Z (n, D), noise σ², a prior N(0, τ²I) of the weights and the ridge λ = σ²/τ², all that
the marginal likelihood and the posterior need of the data are G = ZᵀZ, c = Zᵀy, yᵀy and n. In the
eigenbasis of G = U diag(l) Uᵀ a candidate (σ², λ) costs O(D):

    2·NLML = q(λ)/σ² + Σⱼ log(lⱼ + λ) + (n−D)·log σ² + D·log τ² + n·log 2π                    (A1)
    q(λ) = ‖Zŵ − y‖² + λ‖ŵ‖² = yᵀy − Σⱼ (Uᵀc)ⱼ²/(lⱼ + λ),      ŵ = U (Uᵀc)/(l + λ)

Shoham & Avron's l(θ), sec. 2.2, has τ² = 1, that is λ = σ²; a free τ² is a constant factor of the
kernel.

Shapes: members of an ensemble of feature maps lead (K), then come D features and P outputs. Noise
and ridge are (P,), or (C, P) for C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.devices import map_blocks
from .gaussian import LOG_2PI
from .linalg import NotPositiveDefiniteError, eigh

CHOSEN = 2  # degrees of freedom that held-out rows lose, because they choose λ and the iterate
CALIBRATION_TOLERANCE = 2.5  # nats of all held-out rows, but at most 0.01 for each


class Statistics(NamedTuple):
    """Sums over rows, in float64."""

    gram: Tensor  # G = ZᵀZ, (K, D, D)
    cross: Tensor  # c = Zᵀy, (K, D, P)
    square: Tensor  # yᵀy, (K, P)
    n_rows: Tensor  # n, (K,)

    def scaled_to(self, n_rows: Tensor) -> Statistics:
        """Estimate the sums over n_rows (K,) rows from those over fewer."""
        scale = (n_rows / self.n_rows)[:, None]
        gram, cross = self.gram * scale[..., None], self.cross * scale[..., None]
        return Statistics(gram, cross, self.square * scale, n_rows)


class Spectrum(NamedTuple):
    """Statistics in the eigenbasis of G."""

    values: Tensor  # l, (K, D)
    vectors: Tensor  # U, (K, D, D)
    cross: Tensor  # Uᵀc, (K, D, P)
    square: Tensor  # yᵀy, (K, P)
    n_rows: Tensor  # n, (K,)

    def statistics(self) -> Statistics:
        """Statistics whose spectrum this is."""
        gram = self.vectors * self.values[:, None] @ self.vectors.mT
        return Statistics(gram, self.vectors @ self.cross, self.square, self.n_rows)


def batch_statistics(Z: Tensor, y: Tensor, weight: Tensor | None = None) -> Statistics:
    """Statistics of Z (K, N, D) and y (N, P), of rows that count `weight` (K, N) times."""
    Z, Y = Z.double(), y.double().expand(len(Z), -1, -1)
    if weight is None:
        n_rows = Z.new_full((len(Z),), Z.shape[1])
    else:
        weight = weight.double()
        root = weight.sqrt()[..., None]
        Z, Y, n_rows = Z * root, Y * root, weight.sum(1)
    return Statistics(Z.mT @ Z, Z.mT @ Y, Y.square().sum(1), n_rows)


def exact_statistics(
    members: Callable[[Tensor], Tensor], X: Tensor, y: Tensor, weight: Tensor | None = None
) -> Statistics:
    """Statistics of all rows, streamed in blocks: `members` maps (N, d) to features (K, N, D)."""

    def part(block: slice) -> Statistics:
        of_block = None if weight is None else weight[:, block]
        return batch_statistics(members(X[block]), y[block], of_block)

    return Statistics(*sums_over_blocks(part, len(X)))


@torch.no_grad()
def sums_over_blocks(part: Callable[[slice], Iterable[Tensor]], n_rows: int) -> list[Tensor]:
    """Sums over blocks of rows of what `part` finds for each."""
    sums: list[Tensor] = []

    def add(block: slice) -> None:
        found = part(block)
        sums[:] = [a + b for a, b in zip(sums, found, strict=True)] if sums else found

    map_blocks(add, n_rows)
    if not sums:  # other members may have rows
        add(slice(0))
    return sums


def spectrum(statistics: Statistics, n_rows: Tensor | None = None) -> Spectrum:
    """Return the eigendecomposition of G, O(KD³); scaled to n_rows (K,) rows, if these are given.

    Raises
    ------
    NotPositiveDefiniteError
        If the features are not finite.
    """
    if n_rows is not None:
        statistics = statistics.scaled_to(n_rows)
    if not bool(torch.isfinite(statistics.gram).all()):
        raise NotPositiveDefiniteError(
            "The features of the training rows have NaN or infinite values: the inputs are "
            "probably on an extreme scale (use StandardScaler), or the learning rate is too large."
        )
    values, vectors = eigh(statistics.gram)
    cross = vectors.mT @ statistics.cross
    return Spectrum(values.clamp_min(0.0), vectors, cross, statistics.square, statistics.n_rows)


def penalized_square(s: Spectrum, ridge: Tensor) -> Tensor:
    """q(λ) for ridge (..., P): (..., K, P)."""
    shrunk = s.cross.square() / (s.values[..., None] + ridge[..., None, None, :])  # (..., K, D, P)
    # q > 0 in exact arithmetic; the floor is the rounding error of the difference.
    return (s.square - shrunk.sum(-2)).clamp_min(1e-15 * s.square.clamp_min(1e-300))


def negative_log_evidence(s: Spectrum, noise: Tensor, ridge: Tensor) -> Tensor:
    """NLML (A1) in nats, summed over rows: noise and ridge (..., P) → (..., K, P)."""
    D = s.values.shape[-1]
    n = s.n_rows[:, None]
    noise, ridge = noise[..., None, :], ridge[..., None, :]  # (..., 1, P)
    log_det = (s.values[..., None] + ridge[..., None, :]).log().sum(-2)  # log|G + λI|
    q = penalized_square(s, ridge[..., 0, :])
    log_scales = (n - D) * noise.log() + D * (noise / ridge).log()
    return 0.5 * (q / noise + log_det + log_scales + n * LOG_2PI)


def most_likely(
    s: Spectrum, bounds: tuple[float, float] = (0.0, math.inf)
) -> tuple[Tensor, Tensor]:
    """Noise and ridge with the least NLML. The best σ² is q(λ)/n, so the search is over λ alone.

    σ² within the bounds, and λ: geometric means over the members.
    """
    ridges = ridge_grid(s, decades=12)
    P = s.square.shape[1]
    q = penalized_square(s, ridges[:, None].expand(-1, P))  # (C, K, P)
    n = s.n_rows[:, None]
    noise = (q / n).clamp(*bounds)
    log_det = (s.values / ridges[:, None, None]).log1p().sum(-1)  # log|G/λ + I|, (C, K)
    best = (q / noise + n * noise.log() + log_det[..., None]).argmin(0)  # (A1), (K, P)
    noise = noise.gather(0, best[None])[0]
    return noise.log().mean(0).exp(), ridges[best].log().mean(0).exp()


def ridge_grid(s: Spectrum, decades: int = 9) -> Tensor:
    """Candidates for λ up to ten times the largest eigenvalue of G, ascending, five a decade."""
    top = s.values[:, -1].mean()
    top = torch.where(top > 0.0, top, s.n_rows.mean())  # features that are all zero say nothing
    n_steps = 5 * (decades + 1) + 1
    return torch.logspace(-decades, 1, n_steps, dtype=top.dtype, device=top.device) * top


class HeldOutErrors(NamedTuple):
    """How members predict rows they have not seen, for C ridges: means over those rows."""

    square: Tensor  # (y−m)²/h, (C, P)
    log_variance: Tensor  # log h, (C, 1)

    def score(self, noise: Tensor) -> Tensor:
        """Negative log predictive density, nats per row, for noise (C, P): (C, P)."""
        return 0.5 * (LOG_2PI + noise.log() + self.log_variance + self.square / noise)


def predict_held_out(
    s: Spectrum,
    members: Callable[[Tensor], Tensor],
    X: Tensor,
    y: Tensor,
    held_out: Tensor,
    ridges: Tensor,
) -> HeldOutErrors:
    """Predictions N(m, σ²h) of the rows of X by the members that have not seen them.

    Parameters
    ----------
    s : Spectrum
        Of the rows that each member was trained on.
    members, X, y
        As for :func:`exact_statistics`, of validation rows.
    held_out : Tensor of shape (K, N)
        How often a row counts that the member has not seen; 0 for other rows.
    ridges : Tensor of shape (C,)
        Candidates for λ.
    """
    inverse = 1.0 / (s.values[:, None] + ridges[:, None])  # 1/(l + λ), (K, C, D)
    W = torch.einsum("kdp,kcd->kdcp", s.cross, inverse).flatten(2)  # (K, D, C·P)

    def part(block: slice) -> tuple[Tensor, Tensor]:
        Z = members(X[block]).double() @ s.vectors  # (K, N, D)
        unseen = held_out[:, block].double()
        m = (Z @ W).unflatten(-1, (len(ridges), -1))  # (K, N, C, P)
        h = 1.0 + Z.square() @ inverse.mT  # (K, N, C)
        square = (y[block].double()[:, None] - m).square() / h[..., None]
        log_variance = torch.einsum("kn,knc->c", unseen, h.log())[:, None]
        return torch.einsum("kn,kncp->cp", unseen, square), log_variance

    n = held_out.sum()
    return HeldOutErrors(*(total / n for total in sums_over_blocks(part, len(X))))


def held_out_score(
    predict: Callable[[Tensor], HeldOutErrors], noise: Tensor, ridge: Tensor
) -> float:
    """Return the negative log predictive density for σ² and λ (P,): nats per row."""
    return float(predict(ridge).score(noise).diagonal().sum())  # C = P: output p has ridge p


def calibrate(
    held: HeldOutErrors,
    ridges: Tensor,
    tolerance: float = 0.0,
    bounds: tuple[float, float] = (1e-12, math.inf),
) -> tuple[Tensor, Tensor]:
    """Noise and ridge by the predictive density of rows that the members have not seen.

    Given λ, the σ² of largest predictive density is the mean of (y−m)²/h, in closed form, so
    the search is over λ alone.

    Parameters
    ----------
    held : HeldOutErrors
        From :func:`predict_held_out`, for the same ridges.
    ridges : Tensor of shape (C,)
        Candidates for λ, ascending.
    tolerance : float, default=0.0
        The largest ridge whose score is within this of the best is taken, in nats per row.
    bounds : tuple of float, default=(1e-12, inf)
        Interval of σ².

    Returns
    -------
    noise, ridge : Tensors of shape (P,)
        σ² and λ.
    """
    noise = held.square.clamp(*bounds)  # (C, P)
    score = held.score(noise)
    near = score <= score.min(0).values + tolerance
    index = torch.arange(len(ridges), device=near.device)[:, None]
    best = torch.where(near, index, 0).amax(0)  # (P,)
    return noise.gather(0, best[None])[0], ridges[best]


def choose_noise(
    s: Spectrum,
    predict: Callable[[Tensor], HeldOutErrors],
    n_held_out: float,
    bounds: tuple[float, float],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Choose noise and ridge by held-out rows: the best, and cautious ones.

    Where the score is flat in λ, a smaller one only makes variances explode away from the data. The
    cautious λ is the largest that scores about as well. The cautious σ² makes up for the degrees of
    freedom that the rows lose by choosing.

    Parameters
    ----------
    s, bounds
        As for :func:`predict_held_out` and :func:`calibrate`.
    predict : callable
        Maps candidates for λ to how well they predict.
    n_held_out : float
        How many rows are held out.

    Returns
    -------
    best, cautious : pairs of Tensors of shape (P,)
        σ² and λ, each.
    """
    ridges = ridge_grid(s)
    held = predict(ridges)
    tolerance = min(0.01, CALIBRATION_TOLERANCE / n_held_out)
    judged = held._replace(square=held.square * (1.0 + CHOSEN / n_held_out))
    cautious = calibrate(judged, ridges, tolerance, bounds)
    return calibrate(held, ridges, bounds=bounds), cautious
