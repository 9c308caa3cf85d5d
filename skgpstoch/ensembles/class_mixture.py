"""Predictions of a mixture of fitted classifiers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array

from ..data.arguments import FITS_AGAIN, NO_FUNCTION, MissingMethod
from ..data.arrays import readable
from ..docstrings import documented
from ..estimators.classifier import Classifier
from ..persistence.estimator import SavedEstimator
from .class_deviations import deviation_about


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

    @documented(Classifier.predict)
    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    @documented(Classifier.log_predictive_density)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log probability of each row's class."""
        log_p = self.predict_log_proba(X)
        y = check_array(readable(y), dtype=None, ensure_2d=False, input_name="y")
        if y.shape != (len(log_p),):
            raise ValueError(
                f"y must have the shape ({len(log_p)},), one label for each row, got {y.shape}."
            )
        return log_p[np.arange(len(y)), codes_of(y, self.classes_)]


def log_mixture(log_p: np.ndarray, weights: np.ndarray, confidence: float) -> np.ndarray:
    """Return normalised τ log Σ_k w_k p_k, (N, C), from log p (K, N, C)."""
    mixed = logsumexp(log_p, axis=0, b=weights[:, None, None])
    return np.asarray(log_softmax(confidence * mixed, axis=1))


def codes_of(y: np.ndarray, classes: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Return the position of each label among the classes, (n,).

    Raises
    ------
    ValueError
        If a label that `counts`, (n,), is not among them.
    """
    codes = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    unknown = classes[codes] != y
    if counts is not None:
        unknown &= counts
    if unknown.any():
        raise ValueError(
            f"y has the class {y[unknown][:1].tolist()[0]!r}, which the model was not "
            f"fitted to: the classes are {classes.tolist()}."
        )
    return np.asarray(codes)
