"""Gaussian-process classification of small tables: several kernels, and calibrated confidence."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ...data.arrays import Scaling, resolve_seed
from ...data.devices import HOST, block_rows, map_blocks, prediction_device, resolve_device
from ...data.docstrings import documented
from ...data.equal_rows import observations
from ...data.held_out import of_classes
from ...data.rows import Data
from ...estimators.classifier import Classifier, coded
from ...estimators.context import IS_JUDGED, fitting, predicting
from ...estimators.first_rank import fits_on_first
from ...estimators.importances import InputSpread, difference_importances
from ...estimators.validation import validate_inputs, with_groups
from ...estimators.weights import check_weight
from ...models.features.network import FARTHEST_INPUT
from ...training.interrupts import was_interrupted
from .class_fit import (
    BLIND_ROWS,
    ClassRows,
    FittedProcess,
    Mixing,
    fit_process,
    folds_of,
    left_out_mixture,
    log_probabilities,
)
from .class_mixture import (
    ClassParts,
    Contrasts,
    MixtureClassifier,
    deviation_about,
    probability_moments,
)
from .class_modes import PointFeatures
from .process import SEARCH_ROWS, ProcessParameters, checked_groups, fit_in_turn
from .process_evidence import ProcessInputs
from .process_fit import relative_weights

KERNELS = ("rough-ard", "linear", "rbf-ard", "rbf")  # the best few first: time may be short
MOST_POINTS = 800  # rows at which kernels of a function are centred
LEAST_REFINED = 0.2  # weight of kernels that are learned again, from more rows
FINE_ROWS = 1000  # from which these are learned
FINE_POINTS = 2500  # points of rough functions then: smooth ones gained nothing


@dataclass(eq=False, repr=False, kw_only=True)
class ExactProcessClassifier(ProcessParameters, MixtureClassifier):
    """A mixture of Gaussian processes for classes, for up to a few thousand rows.

    It mixes smooth processes, a rougher one with a length-scale for every input, and a linear
    model. Each has a function for every class; probabilities are their softmax. The functions are
    at the mode of their posterior. Cross-validation determines how large the functions are, how
    certain probabilities are, and the weight of each kernel. Averages over Laplace's approximation
    of the posterior are too even: *measured* on ten tables of 50 and 200 rows, .590 nats with all
    its variance, .556 with as much of it as folds ask for, and .558 with none.

    Parameters
    ----------
    kernels : "auto" or sequence of str, default="auto"
        The kernels to mix: "rbf", "rbf-ard", "rough-ard", "linear"; "auto" is all of them. "ard"
        has a length-scale for every input, "rough" is Matérn-1/2.
    groups : array-like of int of shape (n_features,) or None, default=None
        A number for each column of X; columns with the same number are the one-hot levels of one
        category, and share a length-scale. None: each column is an input of its own.
    max_time : float or None, default=None
        Time limit in seconds: another kernel is not tried if it would probably take longer. One
        kernel is always fitted.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Device to compute on. None is the CPU; "auto" is a GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of the folds, and of the rows from which kernels are learned.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels of rows with a positive weight.
    kernels_ : list of sklearn kernels
        The fitted kernels, for inputs of variance 1; their variance is that of f.
    weights_ : ndarray of shape (n_kernels,)
        Weights of the kernels in the mixture, which sum to 1.
    held_out_ : HeldOutPredictions
        Predictions for the training rows with a positive weight, each from other folds: row numbers
        (`rows`), `log_density`, the log probability of the row's class, `mean`, the probabilities
        of all classes, and `error`, the indicator of the row's class minus these.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the inputs, if X had any.

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
    >>> from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(ExactProcessClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    groups: Sequence[int] | None = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **ProcessParameters._parameter_constraints,
        "groups": ["array-like", None],
    }

    # ---- fit ---------------------------------------------------------------------------------

    @documented(Classifier.fit)
    @fitting
    @fits_on_first
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None
    ) -> ExactProcessClassifier:
        """Fit the processes.

        Parameters
        ----------
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        groups : array-like of shape (n_samples,) or None, default=None
            Labels of groups, whose rows are in one fold.
        """
        began = time.monotonic()
        self._validate_params()
        names = self._chosen(KERNELS, KERNELS)
        data = with_groups(self._validated(X, y, sample_weight), groups)
        observed, places = observations(data.counted())
        device = resolve_device(self.device)
        rng = np.random.default_rng(resolve_seed(self.random_state))
        rows, inputs = self._scaled(observed, rng, device)
        some = some_of(len(observed), SEARCH_ROWS, rng)
        searched = rows.some(torch.from_numpy(some).to(device))

        def fit_one(name: str, before: list[FittedProcess]) -> FittedProcess:
            return fit_process(name, inputs, rows, searched)

        fitted = fit_in_turn(names, fit_one, began, self.max_time)
        if len(observed) > BLIND_ROWS and has_time_again(began, self.max_time):
            fitted = self._refined(fitted, inputs, rows, rng, began)
        log_p = np.stack([f.log_p for f in fitted])  # (K, n, C)
        self.weights_, self._confidence = Mixing.of(rows, log_p)
        mixed, codes = left_out_mixture(rows, log_p), rows.codes.cpu().numpy()
        log_own = mixed[np.arange(len(codes)), codes]
        given = np.arange(len(data)) if data.weight is None else np.flatnonzero(data.weight)
        self.held_out_ = of_classes(given, log_own[places], np.exp(mixed[places]), codes[places])
        self.kernels_ = [f.kernel for f in fitted]
        self._processes = [f.to(HOST) for f in fitted]
        self._rows = rows.to(HOST)
        return self

    def _refined(
        self,
        fitted: list[FittedProcess],
        inputs: ProcessInputs,
        rows: ClassRows,
        rng: np.random.Generator,
        began: float,
    ) -> list[FittedProcess]:
        """Learn the kernels that matter from more rows, and give rough functions more points.

        Those that then do not predict held-out folds better stay as they were. So do those without
        a length-scale for every input: *measured* on eight tables of 2,500 rows, they gained .002
        nats in the median, because few rows are enough for few hyper-parameters.
        """
        n, device = len(rows.X), rows.X.device
        sizes = FINE_ROWS, n_points(n, FINE_POINTS)
        searched, points = (torch.from_numpy(some_of(n, size, rng)).to(device) for size in sizes)
        weights = Mixing.of(rows, np.stack([f.log_p for f in fitted])).weights
        heavy = {
            f.name: f
            for f, w in zip(fitted, weights, strict=True)
            if w >= LEAST_REFINED and f.name.endswith("ard")
        }

        def refine(name: str, before: list[FittedProcess]) -> FittedProcess:
            fine = rows._replace(points=points) if name.startswith("rough") else rows
            return fit_process(name, inputs, fine, rows.some(searched), heavy[name].theta)

        fine = {f.name: f for f in fit_in_turn(list(heavy), refine, began, self.max_time)}
        return [max(f, fine.get(f.name, f), key=rows.score) for f in fitted]

    def _validated(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Return valid rows with codes of the classes, and remember the classes."""
        X, y = validate_inputs(self, X, y, reset=True, ensure_min_samples=2)
        if not IS_JUDGED.get():  # else the caller has looked, and warned of many classes
            check_classification_targets(y)
        data = check_weight(Data(np.asarray(X, np.float64), y), sample_weight, keeps=True)
        data, self.classes_ = coded(self, data)
        return data

    def _scaled(
        self, data: Data, rng: np.random.Generator, device: torch.device
    ) -> tuple[ClassRows, ProcessInputs]:
        """Scale rows, so that inputs have variance 1, and assign them to folds."""
        offset, std = Scaling.standard(data.X, data.weight).with_near_levels(data.X)
        groups = checked_groups(self.groups, data.X.shape[1])
        inputs = ProcessInputs.of(groups, std, 0, len(data)).shared()
        self._x_scaling = Scaling(offset, std * inputs.unit)
        self._x_spread = InputSpread(offset, std)
        X = self._x_scaling.tensor(data.X, torch.float64, device)
        weight = relative_weights(data)
        codes = data.y[:, 0].astype(np.int64)
        fold = folds_of(codes, rng, data.cluster)
        points = some_of(len(X), n_points(len(X), MOST_POINTS), rng)
        c, w, k, m = (torch.from_numpy(a).to(device) for a in (codes, weight, fold, points))
        return ClassRows.of(X, c, w, k, m, len(self.classes_)), inputs

    # ---- predictions -------------------------------------------------------------------------

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much log odds depend on each input, in units of its standard deviation."""
        check_is_fitted(self)

        def log_odds(X: np.ndarray) -> np.ndarray:
            log_p = self.predict_log_proba(X)
            return log_p - log_p.mean(1, keepdims=True)

        return difference_importances(log_odds, self._x_spread)

    def _check_parts(self) -> None:
        """Raise a ValueError if points are not rows in ascending order, as in edited files."""
        rows: Any = getattr(self, "_rows", None)
        if rows is None:
            return
        for part in (rows, *getattr(self, "_processes", ())):
            ends = (-1, *part.points.tolist(), len(rows.X))
            if any(a >= b for a, b in itertools.pairwise(ends)):
                raise ValueError("the points of a process are not numbers of rows, in order")

    def _parts(self, X: Any) -> tuple[ClassParts, Any]:
        check_is_fitted(self)
        X = validate_inputs(self, X, reset=False)
        device = prediction_device(self.device)
        X = self._x_scaling.tensor(X, torch.float64, device).clamp(-FARTHEST_INPUT, FARTHEST_INPUT)
        rows = self._rows.to(device)
        models = [AtMode(rows, f.to(device)) for f in self._processes]
        return ClassParts(self.weights_, models, self._confidence), X


class AtMode:
    """Predictions of one process for scaled rows X* (N*, d)."""

    def __init__(self, rows: ClassRows, fitted: FittedProcess) -> None:
        self.rows, self.fitted = rows, fitted
        self.features = PointFeatures(fitted.kernel, rows._replace(points=fitted.points).Z)
        self.coefficients = fitted.coefficients

    @predicting()
    def latent(self, X: Tensor) -> Tensor:
        """Return t·f, (N*, C)."""
        found = X.new_empty(len(X), len(self.rows.offset))

        def compute(block: slice) -> None:
            found[block] = self.features.f(X[block], self.coefficients)

        map_blocks(compute, len(X), block_rows(X.device, len(self.features.Z)))
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

        Under Laplace's approximation t·f varies about its mode, so the mean of its softmax is not
        the softmax of the mode; log odds are shifted until it is (:func:`.deviation_about`).
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

        n_rows = min(block_rows(X.device, len(features.Z)), contrasts.block_rows)
        map_blocks(compute, len(X), max(1, n_rows))
        p = np.exp(log_softmax(logits, 1))
        return (1.0 - rows.share) * deviation_about(p, mean, np.sqrt(var))


def some_of(n_rows: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of at most `most` random rows, in order."""
    return np.sort(rng.permutation(n_rows)[:most])


def n_points(n_rows: int, most: int) -> int:
    """Return how many rows are points: all, or few enough that the rest can judge."""
    return n_rows if n_rows <= most else min(most, n_rows // 2)


def has_time_again(began: float, max_time: float | None) -> bool:
    """Tell whether kernels can be learned again, which takes up to five times as long as before."""
    is_time = max_time is None or 6.0 * (time.monotonic() - began) <= max_time
    return is_time and not was_interrupted()
