"""Warn of rows in a stream that do not suit what its first call has chosen for good."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from ..data.devices import HOST
from ..data.messages import warn
from ..data.rows import Data
from ..likelihoods.real import AdditiveNoise
from ..models.calibration.held_out import Predicted
from ..models.features.inducing import InducingFeatures
from .conditioning import condition, conditioned
from .context import fitting
from .first_rank import refuse_group

FEWEST_OF_CALL, MOST_OF_CALL = 20, 200  # rows of a call that are judged
SURPRISING, HALF = 2.0, 0.5  # standard deviations that half of the rows are away; usual: .3 to 1.1
SURPRISING_COUNTS = 5.0  # the same of counts on average
WORSE = 2.0  # times the log loss of equal probabilities
MOST_BEYOND = 0.3  # of the rows
FEWEST_POINTS = 20  # whose range is that of their rows
EDGE = 0.25  # of the range of points, by which rows may be beyond
UNTOLD = 0.5  # share of f's prior variance that points do not explain at such a row


def some_of(data: Data) -> Data:
    """Return evenly spaced rows of a call, which are soon predicted."""
    return data[:: math.ceil(len(data) / MOST_OF_CALL)]


class Surprise(NamedTuple):
    """How far rows are from what was predicted of them before they were learned."""

    each: np.ndarray  # (n, P)
    limit: float  # of its mean over rows
    words: str  # with that mean in it

    @classmethod
    def of_real(cls, error: np.ndarray, variance: np.ndarray) -> Self:
        """Judge errors by their predicted variances, both (n, P)."""
        words = f"{{:.0%}} are more than {SURPRISING:g} standard deviations away from predictions"
        is_far = np.abs(error) > SURPRISING * np.sqrt(np.maximum(variance, 0.0))
        return cls(is_far.astype(np.float64), HALF, words)

    def tell(self, estimator: Any, before: tuple[int, tuple[float, ...]] | None) -> None:
        """Warn if rows of this and earlier calls, once there are enough, are too far away.

        `before` has the number of rows not judged yet and their sums, which the estimator keeps.
        """
        n, sums = (0, 0.0) if before is None else before
        n, sums = n + len(self.each), np.asarray(sums) + self.each.sum(0)
        if n < FEWEST_OF_CALL:
            estimator._appended = (n, tuple(sums.tolist()))
        elif (mean := float(sums.max()) / n) > self.limit:
            warn(
                f"Of the last {n} appended rows, {self.words.format(mean)}, before they are "
                "learned, because the kernel and the noise are those of the rows of the fit. These "
                "were few, or of another kind, such as rows of a small range, a constant y, one "
                "class or counts without an event. Call fit with all rows."
            )


def outnumber(n: int, n_before: int) -> bool:
    """Tell whether rows are more than those before, and enough to learn and to judge some."""
    return n > max(n_before, 2 * FEWEST_OF_CALL)


@torch.no_grad()
def surprise(estimator: Any, data: Data) -> Surprise:
    """Judge rows that a model has not learned yet.

    They stay as far away, as hyper-parameters are those of the fit: of a constant y, for example.
    If they are more than the rows before, every second one is learned first, as f is uncertain
    where there are few.
    """
    X, rows, posterior = estimator._labelled(data)
    if outnumber(len(data), posterior.n_rows):
        posterior = conditioned(copy.deepcopy(posterior), X[::2], rows[::2])
        X, rows = X[1::2], rows[1::2]
    some = slice(None, None, math.ceil(len(X) / MOST_OF_CALL))
    X, rows = X[some], rows[some]
    q, likelihood = posterior.predictive(X, rows)
    if likelihood.for_classes_only:
        log_density, p = Predicted.of_classes(rows.y, q, likelihood)[:2]
        most, words = WORSE * math.log(p.shape[1]), "the log loss is {:.2g} nats"
        return Surprise(-log_density.reshape(-1, 1).cpu().numpy(), most, words)
    mean, variance = likelihood.moments(q).mixture_moments()
    if isinstance(posterior.likelihood, AdditiveNoise):
        return Surprise.of_real((rows.y - mean).cpu().numpy(), variance.cpu().numpy())
    words = "the mean squared error is {:.2g} times its expectation"
    squares = (rows.y - mean).square() / variance
    return Surprise(squares.cpu().numpy(), SURPRISING_COUNTS**2, words)


@fitting
def append(estimator: Any, X: Any, y: Any, *of_rows: Any) -> Any:
    """Condition a fitted estimator on more rows, and warn if they are far from its predictions."""
    refuse_group("condition_on")
    found = surprise(estimator, estimator._checked(X, y, *of_rows))
    before = getattr(estimator, "_appended", None)
    condition(estimator, X, y, *of_rows)
    found.tell(estimator, before)
    return estimator


@torch.no_grad()
def warn_of_beyond(estimator: Any, data: Data) -> None:
    """Warn if many rows are beyond all inducing points, which stay where the first call put them.

    f returns to its mean there, however many rows come.
    """
    features = getattr(getattr(estimator.posterior_, "model", None), "features", None)
    if not isinstance(features, InducingFeatures) or not features.covariances.has_inputs:
        return
    Z = torch.cat(features.embedded_points())
    if len(data) < FEWEST_OF_CALL or len(Z) < FEWEST_POINTS:
        return
    X = estimator._x_scaling.tensor(some_of(data).X, torch.float64, HOST)
    G, basis = features.embed(X)[0], features.basis(X)
    low, high = Z.amin(0), Z.amax(0)
    edge = EDGE * (high - low)  # points are means of rows, some of which are beyond
    is_beyond = ((low - edge > G) | (high + edge < G)).any(1)
    is_untold = basis.residual() > UNTOLD * basis.prior
    share = float((is_beyond & is_untold).double().mean())
    if share > MOST_BEYOND:
        warn(
            f"{share:.0%} of the rows of this call are beyond all inducing points, which stay "
            "where the first call put them, so f returns to its mean there. Call fit with rows of "
            "the whole range, or begin with such rows."
        )
