"""Warn of rows in a stream that do not suit what its first call has chosen for good."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..data.devices import HOST
from ..data.messages import warn
from ..data.rows import Data
from ..likelihoods.real import AdditiveNoise
from ..models.calibration.held_out import Predicted
from ..models.features.inducing import InducingFeatures

FEWEST_OF_CALL, MOST_OF_CALL = 20, 200  # rows of a call that are judged
SURPRISING = 2.0  # standard deviations that half of the rows are away; usual streams: .3 to 1.1
SURPRISING_COUNTS = 5.0  # the same of counts on average
WORSE = 2.0  # times the log loss of equal probabilities
MOST_BEYOND = 0.3  # of the rows
FEWEST_POINTS = 20  # whose range is that of their rows
EDGE = 0.25  # of the range of points, by which rows may be beyond
UNTOLD = 0.5  # share of f's prior variance that points do not explain at such a row


def some_of(data: Data) -> Data:
    """Return evenly spaced rows of a call, which are soon predicted."""
    return data[:: math.ceil(len(data) / MOST_OF_CALL)]


@torch.no_grad()
def warn_of_surprise(estimator: Any, data: Data) -> None:
    """Warn if rows, which are not learned yet, are much farther away than predictions say.

    They stay so, as hyper-parameters are those of the first rows: of a constant y, for example.
    """
    if len(data) < FEWEST_OF_CALL:
        return
    X, rows, posterior = estimator._labelled(some_of(data))
    q, likelihood = posterior.predictive(X, rows)
    if likelihood.for_classes_only:
        log_density, p = Predicted.of_classes(rows.y, q, likelihood)[:2]
        loss = -float(log_density.mean())
        is_far, said = loss > WORSE * math.log(p.shape[1]), f"have a log loss of {loss:.2g} nats"
    else:
        mean, variance = likelihood.moments(q).mixture_moments()
        squares = (rows.y - mean).square() / variance
        is_real = isinstance(posterior.likelihood, AdditiveNoise)
        typical = squares.median(0).values if is_real else squares.mean(0)
        off = float(typical.max().sqrt())
        is_far = off > (SURPRISING if is_real else SURPRISING_COUNTS)
        said = f"are {off:.2g} standard deviations away"
    if is_far:
        warn(
            f"Rows of this call {said}, typically, before they are learned, because the kernel and "
            "the noise are those of the first rows, which were of another kind, such as rows of a "
            "small range, a constant y, one class or counts without an event. Call fit with all "
            "rows."
        )


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
