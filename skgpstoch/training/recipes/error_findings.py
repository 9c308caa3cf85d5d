"""Find out whether errors at training rows are more than the noise that the fit assumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk

from ...data.arrays import Scaling, row_blocks
from ...data.findings import Finding
from .findings import (
    DISPERSION,
    ERRORS,
    LEAST_VARIATION,
    NEARBY,
    OUTLIERS,
    TAILS,
    UNTRAINED,
    distinct_rows,
)
from .local_range import of_range

OVER_MEDIAN = 1.4826  # a normal variable's standard deviation over its median absolute value
FAR_OFF = 5.0  # an error is far off beyond five usual errors: one normal error in two million
MOST_FAR, LEAST_FAR = 0.005, 3  # share and number of far rows from which they are reported
FEWEST_LOCAL, MOST_LOCAL = 100, 500  # rows that there are, and that are judged
LOCAL_DISTANCES = 1_000_000  # at a time
LOCAL_WORK = 400_000_000  # numbers of X that judged rows are compared with, about a second
N_NEAREST, LEAST_LOCAL = 10, 0.8  # nearest rows; and share of the model's squared errors
JUDGED_ROWS, FAR_ROWS = 1_000, 50  # rows whose errors are checked; far rows compared to neighbours
MANY_FAR, LEAST_MANY = 0.1, 20  # a larger share and number of far rows are not mere outliers
FEW_FAR, RULING = 0.02, 0.5  # at most this share of rows, but more than this share of the squares
FEW_APART = 0.05  # the same share, if these are far beyond all others:
ALONE, SOLE = 10.0, 1 / 3  # size of one row's error, and its share of the squares, to be told,
FAR_BEYOND = 3.0  # and times the spread of y, which a part of the function hardly is
AS_LARGE, APART = 0.3, 2.0  # at least this share of the largest error, and times all smaller ones
LEAST_WEIGHT = 0.1  # rows with less than this share of the mean weight are not checked
SURE_PAIRS = 4.0  # a correlation must exceed so many of its standard errors
BESIDE_NOISE = 0.25  # least mean squared error, over the noise variance, for errors to count
# A far row stands alone if its nearest row's error is below this share of its own.
SET_APART = 0.5
FOLLOWS = {
    False: "The Gaussian noise follows these rows, so intervals at the other rows are too wide, "
    "and f is less accurate.",
    True: "f or the Gaussian noise follows outliers among these rows, so f is far off beside them, "
    "or intervals at the other rows are too wide.",
}
SHARED = (
    "Outputs share one kernel, which may not suit all: fit them apart, for example with "
    "sklearn.multioutput.MultiOutputRegressor, whose estimators_ have deviations. "
)
EXPECTED = 3.0  # deviations, within which errors are as predicted
N_BESIDE, FAR_APART = 5, 6.0
"""Nearest rows, whose median y that of an outlier is far from, and how many spreads of y. With
three, noise would be outlying that is as wide as y in some regions."""
ASKED_PAIRS = 200  # rows whose errors are compared with those at the nearest rows
MOST_DISPERSION, SURE_DISPERSION = 1.3, 4.0  # least reported ratio; and Poisson standard errors
SLIGHT = 1e-3  # error over the spread of y, which no one minds: y has no noise
LEAST_FREE = 0.05  # least mean of 1 − h, below which it is rounding
LARGE = 100.0  # counts that tell their rates well
FEWEST_TO_DOUBT = 100  # rows; through fewer, a fit may go, and its intervals be right elsewhere
LEAST_DISPERSION, VAGUE = 0.1, 10.0  # ratio that is too low, where variances are so many means


def of_errors(
    error: np.ndarray,
    nearest: np.ndarray,
    noise: np.ndarray,
    advice: str,
    is_trained: bool,
    most: float = 3.0,
) -> Iterator[Finding]:
    """Yield whether errors (m, P) correlate with those at the nearest rows, as noise would not.

    They are clipped at `most` times the usual size. Outputs with errors that are small relative to
    the noise variance (P,) do not count: such noise was fixed, not fitted.

    *Measured* on eight UCI tables of 300 to 600 rows: an exact process has −.8 to .07. With 80
    inducing points it is −.05 to .16 if their noise variance is within a third of the exact one,
    and .3 to .6 if it is three to six times as large; with 5 points it is up to .9. The residual
    variance does not show this: at the optimum it is .02 to .25 of the noise, however few points
    there are. Errors of a row left out are e/(1 − h) with its leverage h, of the same sign;
    *measured* with h up to .97, their correlation differs by less than .1.
    """
    counts = np.square(error).mean(0) >= BESIDE_NOISE * np.where(np.isfinite(noise), noise, 0.0)
    pairs = zip(error.T * counts[:, None], nearest.T, strict=True)
    every = [correlation(*pair, most) for pair in pairs]
    worst = max(range(len(every)), key=lambda p: every[p][0] - every[p][1])
    found, (alike, limit) = Finding(ERRORS, "points", *every[worst]), every[worst]
    if alike > limit:
        several = len(every) > 1
        where = f"those of output {worst}, correlation" if several else "correlation"
        found = found._replace(
            severity="problem" if is_trained else "note",
            text=f"Errors at neighbouring rows of the training data are alike ({where} "
            f"{alike:.2g}): the fit treats a part of the function as noise.",
            advice=SHARED * several + advice if is_trained else UNTRAINED,
        )
    yield found


class JudgedRows(NamedTuple):
    """Rows whose errors are judged."""

    Z: np.ndarray  # standardised, (n, d)
    beyond: np.ndarray  # whether errors are far larger than the spread of y, (n,)
    apart: np.ndarray  # whether y is even farther from that of the nearest rows, (n,)
    slight: np.ndarray  # whether errors are negligible beside the spread of y, (n,)

    @classmethod
    def of(cls, rows: np.ndarray, error: np.ndarray, X: np.ndarray, Y: np.ndarray) -> JudgedRows:
        """Compare rows with these numbers, and their errors (n, P), to the spread of all Y."""
        spread, Z, y = Scaling.robust(Y).scale, standardised(X[rows]), Y[rows]
        beside = y[nearest_of(np.arange(len(Z)), Z, min(N_BESIDE, len(Z) - 1))]  # (n, k, P)
        off = np.abs(y - np.median(beside, axis=1)) if beside.size else np.zeros(y.shape)
        beyond, apart = np.abs(error) > FAR_BEYOND * spread, off > FAR_APART * spread
        slight = np.abs(error) <= SLIGHT * spread
        return cls(Z, *(np.asarray(a) for a in (beyond.any(1), apart.any(1), slight.all(1))))

    def are_followed(self, far: np.ndarray) -> bool:
        """Tell whether far rows are outliers and rows beside them, where f is as far off.

        So it is if f follows the outliers, and the errors are those of rows left out.
        """
        return self.has_outliers and bool((self.beyond & self.apart)[far].any())

    @property
    def has_outliers(self) -> bool:
        """Whether a few rows have y far from those nearest to them."""
        return bool(0 < self.apart.sum() <= FEW_FAR * len(self.apart))


def of_tails(
    error: np.ndarray, judged: JudgedRows, are_noise: bool, z: np.ndarray | None = None
) -> Iterator[Finding]:
    """Yield how many errors (n, P) are far beyond the usual size.

    A few count only if the nearest rows do not have large errors too; otherwise the fit misses a
    part of the function there. One or two do if one rules the squares, and is far larger than
    the spread of y, or if f follows one. If there are many, and errors are as large as the noise,
    y is skewed or its spread differs between regions. Errors that are within three of their
    deviations, which `z` (n, P) are known to be, are not far off, as those of f without noise.
    """
    unit = np.median(np.abs(error), axis=0) * OVER_MEDIAN  # (P,)
    each = np.abs(error) / np.where(unit > 0.0, unit, np.inf)
    if z is not None:
        each = np.where(np.abs(z) < EXPECTED, np.minimum(each, FAR_OFF), each)
    size = np.max(each, axis=1)  # (n,)
    size = np.where(judged.slight, np.minimum(size, FAR_OFF), size)
    far, few, is_sole = far_rows(size, judged.beyond)
    are_followed = judged.are_followed(far)
    is_one_enough = is_sole or are_followed
    rule = is_one_enough or few is not far or rules(few, FEW_FAR, size)
    limit = 0.0 if is_one_enough else max(MOST_FAR, (LEAST_FAR - 1) / len(error))
    found = Finding(OUTLIERS if rule else TAILS, "y", len(far) / len(error), limit)
    are_many = are_noise and len(far) > max(LEAST_MANY, MANY_FAR * len(error))
    if len(far) < max(LEAST_FAR, MOST_FAR * len(error)) and not is_one_enough:
        yield found
        return
    if not (are_many or are_followed or stand_alone(few if rule else far, size, judged.Z)):
        most = max(MANY_FAR, LEAST_MANY / len(error)) if are_noise else np.inf
        yield found._replace(limit=float(most))
        return
    text = (
        f"Errors have heavy tails: at {len(far) / len(error):.1%} of the training rows "
        f"they are more than {FAR_OFF:.0f} times the usual size. {FOLLOWS[are_followed]}"
    )
    of_skewed = (
        "If y is positive and skewed, such as a price, model its logarithm: set "
        "target_transform='log', or wrap the model in sklearn's TransformedTargetRegressor."
    )
    advice = (
        f"{of_skewed} If the spread of y depends on X, use AutoGaussianProcessRegressor or "
        "DLMRegressor."
        if are_many
        else f"Look at these rows. {of_skewed} Otherwise, if the rows are right, use a likelihood "
        "with heavy tails, such as SVGPRegressor(likelihood='student_t'), or "
        "AutoGaussianProcessRegressor."
    )
    severity = "problem" if rule or are_many else "note"
    yield found._replace(severity=severity, text=text, advice=advice)


def far_rows(size: np.ndarray, is_beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return rows with far errors, those of them that may rule all, and whether that is one.

    These are the rows whose errors are far beyond all others, if they are few, or all far ones.
    """
    far = np.flatnonzero(size > FAR_OFF)
    sole, squares = np.argsort(size)[-1:], np.square(size)
    if len(far) and size[sole] > ALONE and is_beyond[sole] and squares[sole] > SOLE * squares.sum():
        return far, sole, True
    largest = far[size[far] > AS_LARGE * size.max(initial=0.0)]
    others = np.setdiff1d(far, largest)
    are_apart = size[largest].min(initial=np.inf) > APART * size[others].max(initial=FAR_OFF)
    return far, largest if are_apart and rules(largest, FEW_APART, size) else far, False


def rules(few: np.ndarray, most: float, size: np.ndarray) -> bool:
    """Tell whether a few rows, at most this share, have most of the squared errors."""
    squares = np.square(size)
    return bool(len(few) <= most * len(size) and squares[few].sum() > RULING * squares.sum())


def stand_alone(far: np.ndarray, size: np.ndarray, Z: np.ndarray) -> bool:
    """Tell whether the rows nearest to far rows have small errors, in the median."""
    some = far[np.linspace(0, len(far) - 1, min(len(far), FAR_ROWS)).round().astype(int)]
    nearest = nearest_of(some, Z, 1)[:, 0]
    return bool(np.median(size[nearest] / size[some]) < SET_APART)


def nearest_of(some: np.ndarray, Z: np.ndarray, k: int) -> np.ndarray:
    """Return the numbers of the k rows of Z nearest to each of some, (m, k)."""
    rows = torch.from_numpy(Z).float()
    distance = torch.cdist(rows[some], rows)
    distance[torch.arange(len(some)), some] = math.inf
    return np.asarray(distance.topk(k, largest=False).indices.numpy())


def correlation(a: np.ndarray, b: np.ndarray, most: float) -> tuple[float, float]:
    """Return the correlation of errors about 0, and how large it may be by chance.

    Errors are clipped at `most` times the usual size. If signs are random, Σab has the variance
    Σ(ab)², also where errors are larger in some regions, and where pairs share a row.
    """
    unit = np.median(np.abs(a)) * OVER_MEDIAN or 1.0
    a, b = (np.clip(e / unit, -most, most) for e in (a, b))
    size = math.sqrt((a @ a) * (b @ b))
    if size == 0.0:
        return 0.0, math.inf
    return float(a @ b) / size, SURE_PAIRS * float(np.linalg.norm(a * b)) / size


def pairs_of(
    X: np.ndarray, weight: np.ndarray, errors: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return errors at some rows, and at the nearest one of each, times the rows' weights.

    Where weights depend on y, errors do not average 0, but weighted ones do.
    """
    first, second = nearest_rows(X)
    w = weight[:, None] / weight[distinct_rows(X)].mean()
    return w[first] * errors(first), w[second] * errors(second)


def nearest_rows(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of some rows and of their nearest other rows, in standardised X.

    Two rows that are each other's nearest are one pair.
    """
    rows = distinct_rows(X)
    Z = torch.from_numpy(standardised(X[rows])).float()
    asked = np.unique(
        np.linspace(0, len(rows) - 1, min(len(rows), ASKED_PAIRS)).round().astype(int)
    )
    distance = torch.cdist(Z[asked], Z)
    distance[torch.arange(len(asked)), asked] = math.inf
    pairs = np.sort(np.stack([asked, distance.argmin(1).numpy()]), axis=0)
    first, second = rows[np.unique(pairs, axis=1)]
    return first, second


def standardised(X: np.ndarray) -> np.ndarray:
    """Return X (n, d) with each column scaled to mean 0 and standard deviation 1."""
    offset, scale = Scaling.standard(X)
    return (X - offset) / scale


def of_local(
    rows: np.ndarray,
    error: np.ndarray,
    X: np.ndarray,
    Y: np.ndarray,
    kernel: sk.Kernel | None = None,
    is_trained: bool = True,
    rival: str = "AutoGaussianProcessRegressor",
    weight: np.ndarray | None = None,
) -> Iterator[Finding]:
    """Yield the squared errors of the mean of the ten nearest rows, over those of the fit.

    A fit that is almost constant is judged by predictions moved towards that mean.

    Parameters
    ----------
    rows : ndarray of shape (m,)
        Numbers of the judged rows, of which at most `MOST_LOCAL` count.
    error : ndarray of shape (m, P)
        Errors of the fit at these rows, left out or not, in the units of Y.
    X, Y : ndarray of shape (n, d), (n, P)
        All rows. Rows that equal a judged one in X do not predict it.
    kernel : sklearn kernel or None
        The fitted kernel, in the units of X; None if it does not see X itself.
    is_trained : bool
        Whether training was not cut short.
    rival : str
        The estimator to use instead.
    weight : ndarray of shape (n,) or None
        How often each row counts.
    """
    if len(X) < FEWEST_LOCAL or not np.ptp(Y, axis=0).any():  # they are exact
        return
    most = int(np.clip(LOCAL_WORK // X.size, FEWEST_LOCAL // 2, MOST_LOCAL))
    few = slice(None, None, -(-len(rows) // most))
    rows, error = rows[few], error[few]
    w = np.ones(len(X)) if weight is None else weight
    share = w[rows] / w[rows].sum()
    unit = np.abs(error).max(0, initial=0.0)
    unit = np.where(unit > 0.0, unit, 1.0)
    is_constant = ((Y[rows] - error).std(0) <= LEAST_VARIATION * Y.std(0)).all()
    e, local = error / unit, (Y[rows] - means_nearby(rows, X, Y, w)) / unit
    of_fit = share @ np.square(e).sum(1)
    if of_fit == 0.0:
        return
    gain = (np.square(e) - np.square(local)).sum(1)
    if is_constant:
        gain = best_gain(e, e - local, share)
    mean = share @ gain
    chance = SURE_PAIRS * np.linalg.norm(share * (gain - mean)) / of_fit
    limit = min(1.0 if is_constant else LEAST_LOCAL, 1.0 - float(chance))
    found = Finding(NEARBY, "kernel", float(1.0 - mean / of_fit), limit)
    if found.value >= limit:
        yield found
        return
    start = "another" if is_constant else "a shorter"
    of_model = f"has {found.value:.2g} times the mean squared error of the model."
    yield found._replace(
        severity="problem" if is_trained else "note",
        text="The model predicts almost the same at all rows, but rows near each other have like "
        f"targets: a prediction moved towards the mean of the {N_NEAREST} nearest rows {of_model}"
        if is_constant
        else "Rows near each other predict better than this model: the mean of the "
        f"{N_NEAREST} nearest rows {of_model}" + of_range(kernel, X, Y),
        advice=f"Start from {start} length_scale or let its bounds reach one, raise n_inducing if "
        f"the estimator has it, or use {rival}."
        if is_trained
        else UNTRAINED,
    )


def of_local_classes(
    rows: np.ndarray,
    probability: np.ndarray,
    X: np.ndarray,
    codes: np.ndarray,
    kernel: sk.Kernel | None = None,
    is_trained: bool = True,
    weight: np.ndarray | None = None,
) -> Iterator[Finding]:
    """Yield the same of probabilities (m, K) at some rows, and of the classes (n,) of all rows."""
    labels, rival = np.eye(probability.shape[1])[codes], "AutoGaussianProcessClassifier"
    error = labels[rows] - probability
    yield from of_local(rows, error, X, labels, kernel, is_trained, rival, weight)


def means_nearby(rows: np.ndarray, X: np.ndarray, Y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the means of Y (n, P), weighted by w (n,), at the ten rows nearest to some, (m, P)."""
    Z = torch.from_numpy(standardised(X)).float()
    weight = torch.from_numpy(np.maximum(w, np.finfo(float).tiny)[:, None])
    total = weight * torch.from_numpy(Y)
    found = np.empty((len(rows), Y.shape[1]))
    for block in row_blocks(len(rows), max(1, LOCAL_DISTANCES // len(X))):
        distance = torch.cdist(Z[rows[block]], Z, compute_mode="donot_use_mm_for_euclid_dist")
        distance[distance == 0.0] = math.inf
        nearest = distance.topk(N_NEAREST, largest=False).indices
        found[block] = (total[nearest].sum(1) / weight[nearest].sum(1)).numpy()
    return found


def best_gain(error: np.ndarray, shift: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return what a shift (m, P), times the best factor ≥ 0, gains in squared errors, (m,)."""
    product = (error * shift).sum(1)
    if share @ product <= 0.0:
        return np.zeros_like(product)
    return np.asarray(product * (share @ product) / (share @ np.square(shift).sum(1)))


def judged_rows(X: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose errors are checked, evenly spaced."""
    return np.unique(np.linspace(0, len(X) - 1, min(len(X), JUDGED_ROWS)).round().astype(int))


class Counts(NamedTuple):
    """Counts of training rows, and what a fit to them says of these, each (m, P)."""

    y: np.ndarray
    mean: np.ndarray  # μ
    variance: np.ndarray  # of y, with that of its rate
    of_rate: np.ndarray  # v, that of counts whose rate is μ, or of y
    kurtosis: np.ndarray  # κ, theirs beyond a normal distribution's
    leverage: np.ndarray  # h, how much f follows a row's own count

    @property
    def ratio(self) -> float:
        """The mean squared error over the predicted variance."""
        return float(np.square((self.y - self.mean) / np.sqrt(self.variance)).mean())

    @property
    def are_vague(self) -> bool:
        """Whether rates are far less certain than large counts tell them."""
        return bool(
            self.ratio < LEAST_DISPERSION
            and len(self.y) >= FEWEST_TO_DOUBT
            and np.median(self.y) > LARGE
            and np.median(self.variance / self.mean) > VAGUE
        )

    @property
    def errors(self) -> np.ndarray:
        """(y − μ)/√v."""
        return np.asarray((self.y - self.mean) / np.sqrt(self.of_rate))

    @property
    def dispersion(self) -> tuple[float, float]:
        """Σ(y − μ)²/v over Σ(1 − h), whose mean is about 1, and its standard error.

        Of small counts, which are far from normal, both are on the quiet side: a true model has a
        mean of .96 at a rate of 5, and of .87 at .5.
        """
        free = max(float(np.sum(1.0 - self.leverage)), LEAST_FREE * self.y.size)
        squares = np.square(self.errors)
        return float(squares.sum()) / free, math.sqrt(np.mean(2.0 + self.kurtosis) / free)


def of_dispersion(
    counts: Counts, learns_it: bool, is_trained: bool, is_told: bool = True
) -> Iterator[Finding]:
    """Yield how much more counts vary than those of their rates do.

    f follows a part of their scatter, which leverages tell, but only near an optimum. It is a
    problem also of training that was cut short, unless that `is_told` already.
    """
    dispersion, error = counts.dispersion
    limit = max(MOST_DISPERSION, 1.0 + SURE_DISPERSION * error)
    found = Finding(DISPERSION, "y", dispersion, limit)
    if counts.are_vague:
        found = found._replace(
            value=counts.ratio,
            limit=LEAST_DISPERSION,
            severity="problem",
            text=f"Counts vary {counts.ratio:.2g} times as much as predicted, so intervals are too "
            f"wide: training did not get as close to rates as counts of about "
            f"{np.median(counts.y):.2g} tell them.",
            advice="Use SVGPRegressor(likelihood='poisson').",
        )
    elif dispersion > limit:
        cure = "" if learns_it else "use likelihood='negative_binomial', which learns how much, or "
        found = found._replace(
            severity="problem" if is_trained or not is_told else "note",
            text=f"Counts vary {dispersion:.2g} times as much as predicted at their rates, so "
            "intervals are wrong, mostly too narrow: counts are overdispersed and f follows their "
            "scatter, or the fit misses a part of the function.",
            advice=f"Raise n_inducing. If that does not help, {cure}add inputs that explain the "
            "variation."
            if is_trained
            else UNTRAINED,
        )
    yield found
