"""Errors of a finished fit at training rows, with or without what the rows themselves say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ...data.arrays import Scaling
from ...data.devices import HOST
from ...data.equal_rows import copies_merged, counts_with_copies, has_cells
from ...data.findings import Finding
from ...data.rows import Data
from ...likelihoods.counts import Poisson
from ...likelihoods.real import AdditiveNoise, Gaussian
from ...losses import FullyIndependent
from ...maths.gaussian import Marginals
from ...models.calibration.held_out import Predicted
from ...models.posteriors.exact import ExactPosterior
from .error_findings import (
    BESIDE_NOISE,
    LEAST_FREE,
    LEAST_WEIGHT,
    Counts,
    JudgedRows,
    judged_rows,
    of_dispersion,
    of_errors,
    of_local,
    of_local_classes,
    of_tails,
    pairs_of,
)
from .findings import COPIES, MOST_GAIN, UNTRAINED
from .fitted import Fitted
from .row_findings import FEW_TO_LEARN

MOST_LEFT_OUT = 2000  # rows whose inverse covariances are computed to judge the fit
MOST_INDICATORS = 10_000_000  # of rows times classes, which take 80 MB
FEW_COPIES = 1.05  # counts of a distinct row, up to which copies hardly matter
LEAST_FOUND = 0.6  # of the noise
SURE_SHARE = 4.0  # standard errors by which classes are predicted too often
MOST_CERTAIN = 0.03  # nats per row that hardly matter
MANY_LABELS = 2.0  # mean weight, from which on rows with equal inputs are counts of labels
FOLLOWED_LABELS = (
    "Give a kernel with a larger length_scale or a smaller variance, use SVGPClassifier, or fit "
    "with another random_state."
)
LEAST_OWN = 1e-6  # of 1 − h of Gaussian noise, which is rounding below


def error_findings(
    fitted: Fitted, kernel: sk.Kernel | None, advice: str, is_trained: bool
) -> Iterator[Finding]:
    """Yield whether errors at training rows are more than noise.

    `kernel` is the fitted one; None if it does not see the inputs.
    """
    likelihood, data = fitted.posterior.likelihood, fitted.judged
    if data is not None and isinstance(likelihood, Poisson):
        counts = counts_at(fitted, data, judged_rows(data.X))
        learns_it = likelihood.learns_dispersion
        is_told = not fitted.history.has_settled(MOST_GAIN)
        yield from of_dispersion(counts, learns_it, is_trained, is_told)
        at_rows, at_nearest = pairs_of(
            data.X, counts_with_copies(data), lambda i: counts_at(fitted, data, i).errors
        )
        unit = np.ones(at_rows.shape[1])
        yield from of_errors(at_rows, at_nearest, unit, advice, is_trained, math.inf)
    if data is not None and likelihood.for_classes_only:
        yield from of_shares(fitted, data, is_trained)
        yield from of_nearest_classes(fitted, data, kernel, is_trained)
    if data is None or not isinstance(likelihood, AdditiveNoise):
        return
    noise = likelihood.noise_variance.detach().numpy()
    at_rows, at_nearest = pairs_of(
        data.X, counts_with_copies(data), lambda rows: errors_at(fitted, data, rows)
    )
    yield from of_errors(at_rows, at_nearest, noise, advice, is_trained)
    if type(likelihood) is Gaussian:
        rows = np.arange(len(data.X))
        if (weight := data.weight) is not None:  # rows of little weight hardly affect the fit
            rows = np.flatnonzero(weight > LEAST_WEIGHT * weight.mean())
        rows = rows[judged_rows(rows)]
        error = errors_at(fitted, data, rows)
        Y, variance = fitted.scaled_targets(data), noise_at(fitted, data, rows)
        if data.y_std is None:
            yield from of_local(rows, error, data.X, Y, kernel, is_trained, weight=weight)
        are_noise = bool(np.any(np.square(error).mean(0) > BESIDE_NOISE * variance.mean(0)))
        without, z = left_out_at(fitted, data, rows, error, variance)
        judged = JudgedRows.of(rows, without, data.X, Y)
        if z is not None and not judged.has_outliers:  # which f could follow
            without, z, judged = error, None, JudgedRows.of(rows, error, data.X, Y)
        relative = without / np.sqrt(variance)
        if z is None and data.y_std is not None:  # f follows rows of small errors more than others
            z = relative
        yield from of_tails(relative, judged, are_noise, z)


def errors_at(fitted: Fitted, data: Data, rows: np.ndarray) -> np.ndarray:
    """Return the errors (m, P) at the training rows with these numbers, for the scaled y."""
    X = fitted.x_scaling.tensor(data.X[rows], torch.float64, HOST)
    y = (data.y[rows] - fitted.y_scaling.offset) / fitted.y_scaling.scale
    with torch.no_grad():
        mean, _ = fitted.posterior.marginals(X).mixture_moments()
    return y - mean.numpy().reshape(y.shape)


def noise_at(fitted: Fitted, data: Data, rows: np.ndarray) -> np.ndarray:
    """Return the variance σ² + e² of the noise of scaled y at rows, known errors e included."""
    noise = fitted.posterior.likelihood.noise_variance.detach().numpy()
    known = 0.0 if data.y_std is None else np.square(data.y_std[rows] / fitted.y_scaling.scale)
    least = np.finfo(np.float64).tiny
    return np.broadcast_to(np.maximum(noise + known, least), (len(rows), len(noise)))


def left_out_at(
    fitted: Fitted, data: Data, rows: np.ndarray, error: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return errors at rows without their own y, (m, P), and the same over their deviations.

    They are those at training rows, `error`, if it is not known what the rows have told. Then, and
    of kernels that cross-validation chose, deviations are not known (None). Rows that were merged
    are left out together.
    """
    posterior, places = fitted.posterior, fitted.places
    if isinstance(posterior, ExactPosterior):
        is_known = len(posterior.X) <= MOST_LEFT_OUT and places is not None
        if not is_known or len(cast(np.ndarray, places)) != len(cast(Data, fitted.whole)):
            return error, None
        mean = posterior.y - posterior.solver.left_out()[0][..., 0].mT  # in the order of training
        return fitted.scaled_targets(data)[rows] - mean.numpy()[places][rows], None
    X, q = marginals_at(fitted, data, rows)
    weight = np.ones(1) if data.weight is None else data.weight[rows]
    curvature = torch.from_numpy(weight[:, None] / noise)
    with torch.no_grad():
        told = fitted.posterior.told(X, curvature if len(rows) == len(data) else None)
    model = getattr(posterior, "model", None)
    varies = getattr(model, "scale", None) is not None  # the noise, which may follow outliers
    if told is None or varies:
        return error, None
    if isinstance(getattr(model, "loss", None), FullyIndependent):  # residuals are noise
        curvature = 1.0 / (1.0 / curvature + (q.var[0] - told).clamp_min(0.0))
    free = 1.0 - curvature * told
    is_known = free > LEAST_OWN  # f follows the others' own y up to rounding
    free = torch.where(is_known, free, 1.0)
    variance = torch.where(is_known, told / free + (q.var[0] - told).clamp_min(0.0), 0.0)
    without = error / free.numpy()
    return without, without / np.sqrt(variance.numpy() + noise)


def counts_at(fitted: Fitted, data: Data, rows: np.ndarray) -> Counts:
    """Return the counts at numbered training rows, and what q(f) = N(m, s²) says of them."""
    X, q = marginals_at(fitted, data, rows)
    exposure = None if data.exposure is None else torch.from_numpy(data.exposure[rows])
    y = torch.from_numpy(data.y[rows]).reshape(q.mean[0].shape)
    with torch.no_grad():
        likelihood = fitted.posterior.likelihood.given(exposure)
        mean, variance = likelihood.moments(q).mixture_moments()
        of_rate, kurtosis = likelihood.variance_and_kurtosis(mean)
        followed = followed_at(fitted, data, rows, likelihood, X, q, y)
        leverage = torch.zeros_like(mean) if followed is None else followed.leverage
        if followed is None:  # then f varies as y does beyond what its rate tells
            of_rate = variance
    return Counts(*(each.numpy() for each in (y, mean, variance, of_rate, kurtosis, leverage)))


def of_shares(fitted: Fitted, data: Data, is_trained: bool) -> Iterator[Finding]:
    """Yield by how many standard errors classes of rows left out are predicted too often.

    Their mean probability p has the variance Σp(1 − p)/n² about the share of rows, or as much of
    rows that count by their weights.
    """
    likelihood, rows = fitted.posterior.likelihood, judged_rows(data.X)
    y = torch.from_numpy(fitted.scaled_targets(data)[rows])
    X, q = marginals_at(fitted, data, rows)
    with torch.no_grad():
        followed = followed_at(fitted, data, rows, likelihood, X, q, y)
        if followed is None:
            return
        p = Predicted.of_classes(y, followed.without_own(), likelihood).mean.numpy()
    codes = data.y[rows, 0].astype(np.int64)
    w = data.row_counts[rows]
    w = w / w.sum()
    share, mean = np.bincount(codes, w, p.shape[1]), w @ p
    error = np.sqrt(np.maximum(np.square(w) @ (p * (1.0 - p)), np.finfo(float).tiny))
    far = np.abs(mean - share) / error
    k = int(far.argmax())
    found = Finding("shares of classes", "y", float(far[k]), SURE_SHARE)
    if found.value > found.limit:
        by = "" if data.weight is None else ", by weight,"
        found = following_labels(
            found,
            f"A class of {share[k]:.2g} of the rows{by} has a mean probability of {mean[k]:.2g} "
            "where a row's own label is left out: f follows single labels, and probabilities of "
            "new rows are off.",
            is_trained,
        )
    yield found
    has_many = data.weight is not None and data.weight.mean() >= MANY_LABELS
    # Of rows that are counts of labels, one that is left out takes many along.
    if not (has_many and has_cells(copies_merged(data)[0])):
        yield of_certainty(p, codes, w, is_trained)


def of_certainty(p: np.ndarray, codes: np.ndarray, w: np.ndarray, is_trained: bool) -> Finding:
    """Return by how much rows left out are less likely than their probabilities p (n, C) expect.

    −log p has the mean H = −Σ p log p and the variance Σ p log²p − H² if p is right. Where classes
    are as frequent, mean probabilities do not tell that f follows labels. Weights w sum to 1. The
    most surprising row does not count: one label that is wrong is not followed by f.

    *Measured* on four kinds of 100 and 400 rows: QSGPClassifier on labels that X does not tell lost
    .11 to .66 nats of 400 rows in silence, at 3.9 to 37 standard errors; other fits have at most 3.
    """
    least = np.finfo(np.float64).tiny
    log_p = np.log(np.maximum(p, least))
    H = -(p * log_p).sum(1)
    variance = np.maximum((p * np.square(log_p)).sum(1) - np.square(H), 0.0)
    each = w * (-log_p[np.arange(len(p)), codes] - H)
    excess = float(each.sum() - max(each.max(), 0.0))
    error = math.sqrt(max(float(np.square(w) @ variance), least))
    found = Finding("certainty of classes", "y", excess, max(SURE_SHARE * error, MOST_CERTAIN))
    if excess > found.limit:
        found = following_labels(
            found,
            "Where a row's own label is left out, it is less likely than the probabilities say, by "
            f"{excess:.2g} nats on average: f follows single labels, and probabilities of new rows "
            "are too certain.",
            is_trained,
        )
    return found


def following_labels(found: Finding, text: str, is_trained: bool) -> Finding:
    """Return a finding that says so, with what to do if training has ended."""
    severity, advice = ("problem", FOLLOWED_LABELS) if is_trained else ("note", UNTRAINED)
    return found._replace(severity=severity, text=text, advice=advice)


def of_nearest_classes(
    fitted: Fitted, data: Data, kernel: sk.Kernel | None, is_trained: bool
) -> Iterator[Finding]:
    """Yield whether the classes of the ten nearest rows predict better than the fit."""
    n_classes = int(data.y.max()) + 1
    data = data[:: math.ceil(len(data) * n_classes / MOST_INDICATORS)]
    rows, codes = judged_rows(data.X), fitted.scaled_targets(data)
    y, (_, q) = torch.from_numpy(codes[rows]), marginals_at(fitted, data, rows)
    with torch.no_grad():
        p = Predicted.of_classes(y, q, fitted.posterior.likelihood).mean.numpy()
    codes = data.y[:, 0].astype(np.int64)
    yield from of_local_classes(rows, p, data.X, codes, kernel, is_trained, data.weight)


def of_copies(fitted: Fitted, data: Data) -> Iterator[Finding]:
    """Yield the share of the noise that is found where distinct rows count W > 1 times in the mean.

    Copies agree exactly, as if there were no noise. Where the likelihood is largest, the noise is

        σ² = Σ w (e² + s²)/Σ w = Σ w e²/(n(W − h)),

    with the errors e, the variances s² of f, and h the mean leverage ws²/σ² of n distinct rows.
    With weights divided by W and the same e and h it would be Σ w e²/(nW(1 − h)), so the found
    share is W(1 − h)/(W − h). Without noise h is 1, too: then nothing is missed.

    *Measured* on rows drawn with replacement, W = 1.4 to 1.7: where it was below .6, SVGPRegressor,
    FITCRegressor, SolveGPRegressor and DeepGPRegressor lost .4 to 1.6 nats per row; where it was
    .75 or more, up to .2; and .02 with weights divided by W.
    """
    if not getattr(getattr(fitted.posterior, "model", None), "is_bound", True):
        return  # other losses find other noise
    distinct, by_chance = copies_merged(data)
    W = float(distinct.row_counts.mean())
    if by_chance or len(distinct) < FEW_TO_LEARN or W <= FEW_COPIES:
        return
    rows, likelihood = judged_rows(distinct.X), fitted.posterior.likelihood
    y = torch.from_numpy(fitted.scaled_targets(distinct)[rows])
    X, q = marginals_at(fitted, distinct, rows)
    with torch.no_grad():
        followed = followed_at(fitted, distinct, rows, likelihood, X, q, y)
        s2 = (q.var[0] / likelihood.noise_variance).numpy()
    own = W * np.average(s2, 0, distinct.row_counts[rows])
    h = min(1.0, np.max(own if followed is None else followed.leverage.numpy().mean(0)))
    found = Finding(COPIES, "sample_weight", float(W * (1.0 - h) / (W - h)), LEAST_FOUND)
    if found.value < LEAST_FOUND:
        found = found._replace(
            severity="problem",
            text=f"A distinct row counts {W:.3g} times on average, as copies or by sample_weight. "
            "Copies agree exactly, as they do without noise. If y has noise, the fit has found "
            f"only {found.value:.0%} of the noise that the distinct rows show: it follows single "
            "rows, and its intervals are too narrow.",
            advice="Divide the weights of distinct rows by their mean, as NNGPRegressor and "
            "AutoGaussianProcessRegressor do, or drop copies. In BaggingRegressor, set "
            "bootstrap=False and max_samples=0.6.",
        )
    yield found


class Followed(NamedTuple):
    """q(f) = N(m, s²) of training rows (1, n, P), and how it follows the rows' own y, (n, P).

    With the slope g and the curvature −λ of w E_q[log p(y | f)] by m, where w is the row's weight,
    and the part a of s² that rows have told, the leverage is h = λa. Without the row's own y

        q(f) = N(m − ag/(1 − h), a/(1 − h) + s² − a),

    exactly for Gaussian noise, and near an optimum of the bound for others. Where a row has several
    functions, as of classes, each is taken by itself. Where blocks of weights are independent in
    q(w), a may exceed s², whose rest is then 0.
    """

    q: Marginals
    slope: Tensor
    leverage: Tensor
    told: Tensor

    @classmethod
    def of(
        cls,
        q: Marginals,
        y: Tensor,
        likelihood: Any,
        told: Callable[[Tensor], Tensor | None],
        weight: np.ndarray | None = None,
    ) -> Followed | None:
        """Return it, if `told` knows a (n, P), given λ (n, P)."""
        _, by_m, by_s2 = likelihood.expected_gradients(y, q)
        w = 1.0 if weight is None else torch.from_numpy(weight)[:, None]
        g, curvature = w * by_m, -2.0 * w * by_s2.clamp_max(0.0)
        a = told(curvature)
        if a is None:
            return None
        return cls(q, g, (curvature * a).clamp_max(1.0), a)

    def without_own(self) -> Marginals:
        """Return q(f) of each row without its own y, (1, n, P)."""
        of_rest = self.told / (1.0 - self.leverage).clamp_min(LEAST_FREE)
        rest = (self.q.var - self.told).clamp_min(0.0)
        return Marginals(self.q.mean - of_rest * self.slope, of_rest + rest)


def marginals_at(fitted: Fitted, data: Data, rows: np.ndarray) -> tuple[Tensor, Marginals]:
    """Return the scaled X of these rows, and q(f) there, of one component."""
    X = fitted.x_scaling.tensor(data.X[rows], torch.float64, HOST)
    with torch.no_grad():
        m, s2 = fitted.posterior.marginals(X).mixture_moments()
    return X, Marginals(m[None], s2[None])


def followed_at(
    fitted: Fitted,
    data: Data,
    rows: np.ndarray,
    likelihood: Any,
    X: Tensor,
    q: Marginals,
    y: Tensor,
) -> Followed | None:
    """Return how q(f) follows y at these rows, if a posterior knows what all rows have told."""

    def told(curvature: Tensor) -> Tensor | None:
        are_all = len(rows) == len(data)
        return cast(Tensor | None, fitted.posterior.told(X, curvature if are_all else None))

    weight = None if data.weight is None else data.weight[rows]
    return Followed.of(q, y, likelihood, told, weight)


def unit_of(recipe: Any, data: Data) -> float:
    """Return the standard deviation of y in units of f; 1 if f has not the units of y."""
    if recipe.scales_target or not isinstance(recipe.likelihood, AdditiveNoise):
        return 1.0
    return float(Scaling.standard(data.y, data.weight).scale.max())
