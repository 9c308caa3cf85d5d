"""Processes of classes for small tables: several kernels, and as much confidence as is due."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax, logsumexp
from sklearn.gaussian_process import kernels as sk
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..data.arrays import Scaling, resolve_seed
from ..data.devices import HOST, block_rows, map_blocks, prediction_device, resolve_device
from ..data.held_out import of_classes
from ..data.rows import Data
from ..docstrings import documented
from ..estimators.base import fitting, predicting, validate_inputs
from ..estimators.classifier import Classifier
from ..estimators.validation import check_weight
from ..features.network import FARTHEST_INPUT
from ..kernels.matrices import covariance_of
from .class_deviations import Contrasts, deviation_about, probability_moments
from .class_mixture import ClassParts, MixtureClassifier, codes_of
from .class_modes import (
    LabelEvidence,
    PointFeatures,
    PriorKernel,
    Problems,
    best_theta,
    contrasts,
    find_modes,
    one_hot,
)
from .process import KERNEL_ROWS, SEARCH_ROWS, ProcessParameters, fit_in_turn
from .stacking import stacking_weights

KERNELS = ("rough-ard", "linear", "rbf-ard", "rbf")  # the best of few first: time may be short
MOST_POINTS = 800  # rows that functions are made of
FOLDS_OF_FEW = 10  # of few rows
FEW_ROWS = 100  # that there are so many folds of
USUAL_FOLDS = 5
VARIANCES = (2.0, 10.0, 50.0, 250.0)  # of f, that are tried
VARIANCE_PRIOR = (math.log(10.0), 1.5)  # of the logarithm
LOG_CONFIDENCES = np.linspace(-1.5, 1.5, 31)  # of factors of f that are tried
SHARE_ROWS = 1.0  # that speak for the shares of the classes, whatever the inputs
CONFIDENCE_PRIOR = 0.5  # standard deviation of these around 0


class FittedProcess(NamedTuple):
    """Softmax of t·f + offset, with f* = k(X*, Z) v.

    Parameters
    ----------
    kernel : sklearn kernel
        k, of which s² is a factor.
    coefficients : Tensor of shape (M, C)
        v, at the mode.
    confidence : float
        t.
    log_p : ndarray of shape (N, C)
        Log probabilities of the rows' classes, each from the other folds.
    """

    kernel: sk.Kernel
    coefficients: Tensor
    confidence: float
    log_p: np.ndarray


class ClassRows(NamedTuple):
    """Scaled rows: X (N, d), codes, weights and folds (N,), points Z (M, d), and the offset of f.

    Points are rows; where they are all of them, Z is X.
    """

    X: Tensor
    codes: Tensor
    weight: Tensor
    fold: Tensor
    Z: Tensor
    offset: Tensor

    @property
    def labels(self) -> Tensor:
        """1 at the class of each row, (N, C)."""
        return one_hot(self.codes, len(self.offset))

    @property
    def share(self) -> float:
        """The weight of the shares of the classes in probabilities."""
        return SHARE_ROWS / (float(self.weight.sum()) + SHARE_ROWS)

    def some(self, index: Tensor) -> ClassRows:
        """Return rows by their numbers, with functions made of these."""
        X, codes, weight, fold = (column[index] for column in self[:4])
        return ClassRows(X, codes, weight, fold, X, self.offset)

    def to(self, device: torch.device) -> ClassRows:
        """Move to a device."""
        X, codes, weight, fold, Z, offset = (column.to(device) for column in self)
        return ClassRows(X, codes, weight, fold, X if self.Z is self.X else Z, offset)


@dataclass(eq=False, repr=False, kw_only=True)
class ExactProcessClassifier(ProcessParameters, MixtureClassifier):
    """Gaussian processes for classes, of up to some thousand rows, mixed for their probabilities.

    A smooth process, a rougher one with a length-scale for every input, and a linear model, each
    with a function for every class, of which the softmax is taken. The functions are at the mode of
    their posterior; folds say how large they are, how certain probabilities are to be, and what
    weight each kernel has. Averages over Laplace's approximation of the posterior are too even:
    *measured* on ten tables of 50 and 200 rows, .590 nats, with all its variance, .556 with as much
    of it as folds ask for, and .558 with none.

    Parameters
    ----------
    kernels : "auto" or sequence of str, default="auto"
        What is mixed: "rbf", "rbf-ard", "rough-ard", "linear"; "auto" is all of them. "ard" has a
        length-scale for every input, "rough" is Matérn-1/2.
    max_time : float or None, default=None
        Seconds after which no other kernel is tried, if it would probably take longer. One is
        always fitted.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of the folds, and of the rows that kernels are learned from.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of rows that have a weight.
    kernels_ : list of sklearn kernels
        What is mixed, of inputs of variance 1; their variance is that of f.
    weights_ : ndarray of shape (n_kernels,)
        Of the mixture, of sum 1.
    held_out_ : HeldOutPredictions
        Predictions for the rows of the fit that have a weight, each from other folds: numbers of
        the rows (`rows`), `log_density`, the log probability of its class, `mean`, the
        probabilities of all, and `error`, 1 at its class less these.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any.

    See Also
    --------
    GaussianProcessClassifier : One kernel, any expression, by Laplace's approximation.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press,
       2006, sections 3.5 and 6.5.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpstoch.ensembles.class_process import ExactProcessClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(ExactProcessClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    # ---- fit ---------------------------------------------------------------------------------

    @documented(Classifier.fit)
    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ExactProcessClassifier:
        """Fit the processes.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.
        """
        began = time.monotonic()
        self._validate_params()
        names = self._chosen(KERNELS, KERNELS)
        data = self._validated(X, y, sample_weight)
        merged, places = data.counted().merging()
        device = resolve_device(self.device)
        rng = np.random.default_rng(resolve_seed(self.random_state))
        rows = self._scaled(merged, rng, device)
        some = some_of(len(merged), SEARCH_ROWS, rng)
        searched = rows.some(torch.from_numpy(some).to(device))

        def fit_one(name: str, before: list[FittedProcess]) -> FittedProcess:
            return fit_process(name, rows, searched)

        fitted = fit_in_turn(names, fit_one, began, self.max_time)
        log_p = np.stack([f.log_p for f in fitted], 1)  # (n, K, C)
        codes, weight = rows.codes.cpu().numpy(), rows.weight.cpu().numpy()
        of_class = log_p[np.arange(len(codes)), :, codes]
        self.weights_ = stacking_weights(of_class, weight, KERNEL_ROWS)
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        mixed = logsumexp(log_p, axis=1, b=self.weights_[:, None])
        self._confidence = mixture_confidence(rows, mixed) if len(fitted) > 1 else 1.0
        mixed = log_softmax(self._confidence * mixed, axis=1)
        log_own = mixed[np.arange(len(codes)), codes]
        self.held_out_ = of_classes(given, log_own[places], np.exp(mixed[places]), codes[places])
        self.kernels_ = [f.kernel for f in fitted]
        self._processes = [f._replace(coefficients=f.coefficients.to(HOST)) for f in fitted]
        self._rows = rows.to(HOST)
        return self

    def _validated(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Return what was given, checked, with codes of the classes, which it remembers."""
        X, y = validate_inputs(self, X, y, reset=True, ensure_min_samples=2)
        check_classification_targets(y)
        data = check_weight(Data(np.asarray(X, np.float64), y), sample_weight, keeps=True)
        counts = np.ones(len(data), bool) if data.weight is None else data.weight > 0.0
        self.classes_ = np.unique(y[counts])
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes at least, but y has one class: "
                f"{self.classes_.tolist()}."
            )
        codes = codes_of(y, self.classes_, counts)
        return replace(data, y=codes.astype(np.float64)[:, None])

    def _scaled(self, data: Data, rng: np.random.Generator, device: torch.device) -> ClassRows:
        """Scale rows, and assign them to folds."""
        self._x_scaling = Scaling.standard(data.X, data.weight)
        X = self._x_scaling.tensor(data.X, torch.float64, device)
        weight = np.ones(len(data)) if data.weight is None else data.weight.astype(np.float64)
        codes = data.y[:, 0].astype(np.int64)
        shares = np.bincount(codes, weight, len(self.classes_)) + 0.5
        log_shares = np.log(shares)
        fold, points = folds_of(codes, rng), some_of(len(X), MOST_POINTS, rng)

        def tensor(column: np.ndarray) -> Tensor:
            return torch.from_numpy(column).to(device)

        Z = X if len(points) == len(X) else X[tensor(points)]
        offset = tensor(log_shares - log_shares.mean())
        return ClassRows(X, tensor(codes), tensor(weight), tensor(fold), Z, offset)

    # ---- predictions -------------------------------------------------------------------------

    def _parts(self, X: Any) -> tuple[ClassParts, Any]:
        check_is_fitted(self)
        X = validate_inputs(self, X, reset=False)
        device = prediction_device(self.device)
        X = self._x_scaling.tensor(X, torch.float64, device).clamp(-FARTHEST_INPUT, FARTHEST_INPUT)
        rows = self._rows.to(device)
        models = [AtMode(rows, f) for f in self._processes]
        return ClassParts(self.weights_, models, self._confidence), X


class AtMode:
    """Predictions of one process for scaled rows X* (N*, d)."""

    def __init__(self, rows: ClassRows, fitted: FittedProcess) -> None:
        self.rows, self.fitted = rows, fitted
        self.features = PointFeatures(fitted.kernel, rows.Z)
        self.coefficients = fitted.coefficients.to(rows.Z.device)

    @predicting()
    def latent(self, X: Tensor) -> Tensor:
        """Return t·f, (N*, C)."""
        found = X.new_empty(len(X), len(self.rows.offset))

        def compute(block: slice) -> None:
            found[block] = self.features.f(X[block], self.coefficients)

        map_blocks(compute, len(X), block_rows(X.device, len(self.rows.Z)))
        return found.mul_(self.fitted.confidence)

    def predict_log_proba(self, X: Tensor) -> np.ndarray:
        """Return log probabilities, (N*, C)."""
        return log_probabilities(self.rows, self.latent(X)).cpu().numpy()

    def predict_proba(self, X: Tensor) -> np.ndarray:
        """Return probabilities, (N*, C)."""
        return np.exp(self.predict_log_proba(X))

    @predicting()
    def predict_std(self, X: Tensor) -> np.ndarray:
        """Return deviations of probabilities about those that are predicted, (N*, C).

        Under Laplace's approximation t·f varies about its mode, so that the mean of its softmax is
        not that of the mode; log odds move until it is (:func:`.deviation_about`).
        """
        rows, features = self.rows, self.features
        logits = (self.latent(X) + rows.offset).cpu().numpy()
        F = features(rows.X)
        pi = torch.softmax(rows.offset + features.f(rows.X, self.coefficients), 1)
        contrasts = Contrasts(F, pi, rows.weight)
        mean, var = np.empty_like(logits), np.empty_like(logits)

        def compute(block: slice) -> None:
            phi = features(X[block])
            A = contrasts.factor(phi, features.residual_variance(X[block], phi))
            at = torch.from_numpy(logits[block]).to(A)
            found = probability_moments(at, self.fitted.confidence * A)
            mean[block], var[block] = (a.cpu().numpy() for a in found)

        map_blocks(compute, len(X), block_rows(X.device, len(rows.Z)))
        p = np.exp(log_softmax(logits, 1))
        return (1.0 - rows.share) * deviation_about(p, mean, np.sqrt(var))


# ---- parts ---------------------------------------------------------------------------------------


def some_of(n_rows: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of some rows at most, in order."""
    return np.sort(rng.permutation(n_rows)[:most])


def folds_of(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assign rows to folds, each with about the same share of every class, (N,)."""
    order = np.lexsort((rng.permutation(len(codes)), codes))
    fold = np.empty(len(codes), np.int64)
    fold[order] = np.arange(len(codes)) % (FOLDS_OF_FEW if len(codes) <= FEW_ROWS else USUAL_FOLDS)
    return fold


def fit_process(name: str, rows: ClassRows, searched: ClassRows) -> FittedProcess:
    """Learn a kernel, the variance of f and the confidence, and condition on all rows.

    The kernel and the variance are those of the rows that are searched.
    """
    kernel = kernel_of(name, searched)
    f = modes(PointFeatures(kernel, searched.Z), searched, VARIANCES)[1]
    scores = [most_suitable(searched, blind)[1] for blind in f.unbind(1)]
    log_variance, std = VARIANCE_PRIOR
    penalty = 0.5 * ((np.log(VARIANCES) - log_variance) / std) ** 2
    variance = VARIANCES[int(np.argmax(scores - penalty))]
    kernel = sk.ConstantKernel(variance, "fixed") * kernel
    features = PointFeatures(kernel, rows.Z)
    U, f = modes(features, rows, (1.0,))
    confidence, _ = most_suitable(rows, f[:, 0])
    log_p = log_probabilities(rows, confidence * f[:, 0]).cpu().numpy()
    return FittedProcess(kernel, features.coefficients(U[:, 0]), confidence, log_p)


def log_probabilities(rows: ClassRows, f: Tensor) -> Tensor:
    """Return log p of the classes where their functions are f, (N*, C).

    With the shares of the classes, for which a row speaks: few rows may agree by chance, and the
    mode is certain of itself. *Measured* on ten tables: .05 nats at 5 rows, .026 at 10, 0 at 40.
    """
    share = rows.share
    log_p = torch.log_softmax(rows.offset + f, 1) + math.log1p(-share)
    return torch.logaddexp(log_p, torch.log_softmax(rows.offset, 0) + math.log(share))


def kernel_of(name: str, rows: ClassRows) -> sk.Kernel:
    """Return the kernel that explains the labels best, of mean variance 1."""
    prior = PriorKernel.of(name, rows.X.shape[1])
    X = rows.X.cpu().numpy()
    covariance = covariance_of(prior.kernel, X, rows.X.device)
    Y = contrasts(rows.codes, rows.weight, len(rows.offset))
    theta = best_theta(LabelEvidence(prior, covariance, Y, rows.weight))
    covariance.set_theta(theta)
    kernel = prior.kernel.clone_with_theta(theta)
    unit = float(covariance.diag(X).mean())
    return sk.ConstantKernel(1.0 / unit, "fixed") * kernel


def modes(
    features: PointFeatures, rows: ClassRows, variances: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return u (R, V, C) for V variances, and f of each row without its fold (N, V, C)."""
    F, V = features(rows.X), len(variances)
    scale = torch.tensor(variances, dtype=F.dtype, device=F.device).sqrt()
    weight = rows.weight[:, None].expand(-1, V)
    given_all = Problems(F, rows.labels, weight, scale, rows.offset)
    U, _ = find_modes(given_all)
    folds = torch.arange(int(rows.fold.max()) + 1, device=F.device)
    weight = rows.weight[:, None] * (rows.fold[:, None] != folds)
    without = given_all._replace(
        weight=weight.repeat(1, V), scale=scale.repeat_interleave(len(folds))
    )
    f = find_modes(without, U.repeat_interleave(len(folds), 1))[1].unflatten(1, (V, -1))
    return U, f[torch.arange(len(f), device=F.device), :, rows.fold]


def most_suitable(rows: ClassRows, f: Tensor) -> tuple[float, float]:
    """Return the factor t of f with the best log probability of rows, given its prior; and that."""
    own = rows.codes[:, None]

    def score(log_t: float) -> float:
        log_p = torch.log_softmax(rows.offset + math.exp(log_t) * f, 1).gather(1, own)[:, 0]
        return float(rows.weight @ log_p) - 0.5 * (log_t / CONFIDENCE_PRIOR) ** 2

    scores = [score(log_t) for log_t in LOG_CONFIDENCES]
    best = int(np.argmax(scores))
    return math.exp(LOG_CONFIDENCES[best]), scores[best]


def mixture_confidence(rows: ClassRows, log_p: np.ndarray) -> float:
    """Return τ: mixtures of calibrated parts are too even. log_p (N, C) are of rows held out."""
    logits = torch.from_numpy(log_p).to(rows.weight.device)
    return most_suitable(rows._replace(offset=torch.zeros_like(rows.offset)), logits)[0]
