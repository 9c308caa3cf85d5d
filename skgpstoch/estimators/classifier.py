"""Base of classifiers: predict classes, probabilities and latent functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..data.arguments import with_rows_checked
from ..data.docstrings import documented
from ..data.groups import current
from ..data.rows import Data
from ..likelihoods.probabilities import ClassLikelihood
from .base import BaseGP
from .validation import check_labels, fewest_rows, validate_inputs
from .weights import check_weight, warn_of_class_weights


class Classifier(ClassifierMixin, BaseGP):
    """Fits and predictions of a classifier: classes, probabilities, and the latent functions.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    """

    classes_: np.ndarray

    @documented(BaseGP.fit)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or None, default=None
            Labels, of two classes or more; None if X includes them.
        """
        return self._fit_to(X, y, sample_weight)

    def _validate(
        self,
        X: Any,
        y: Any,
        reset: bool,
        sample_weight: Any = None,
        classes: Any = None,
        *,
        least: int | None = None,
    ) -> Data:
        """Validate X, y and weights; y becomes the codes of the classes, (n, 1)."""
        least = fewest_rows(reset) if least is None else least
        X, y = validate_inputs(self, X, y, reset=reset, ensure_min_samples=least)
        check_labels(y)
        self._y_shape = ()
        data = check_weight(Data(X, y), sample_weight, least, keeps=reset)
        data, self.classes_ = coded(self, data, classes if reset else self.classes_)
        if reset and current().size == 1:  # ranks ask together
            warn_of_class_weights(data, self.classes_)
        return data

    def _marginals(self, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean and variance of the latent functions, and the mean of y: each (n, P)."""
        rows, posterior = self._query(X)

        def compute(block: slice) -> tuple[Tensor, Tensor, Tensor]:
            q = posterior.marginals(rows[block])
            mean, _ = posterior.likelihood.moments(q).mixture_moments()
            return *q.mixture_moments(), mean

        mean, var, probability = self._collect(len(rows), compute)
        return mean, var, probability

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        probability : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`. Those of a row do not depend on the other rows of X.
        """
        probability = self._marginals(X)[2]
        if probability.shape[1] == 1:
            probability = np.hstack([1.0 - probability, probability])
        return probability / probability.sum(1, keepdims=True)

    @documented(predict_proba)
    def predict_std(self, X: Any) -> np.ndarray:
        """Return the standard deviation of each class's probability under the posterior.

        The probability of a class is a function of f, which is uncertain. Its deviation is large
        far from the training rows if the kernel decays, and smaller near a boundary of classes,
        where `predict_proba` may be as even. Networks and relevance vectors may be certain far from
        the training rows. For more than two classes it is an average over 512 quasi-random points
        of f: within some 4 % above 0.1 and 12 % above 0.03, but smaller deviations may be off by a
        third, or by a factor of two or three with many classes. Robust-max uses a quadrature.
        Models of one class against the others have the deviation of g(f_c)/Σ g(f_j), g the logistic
        function; `predict_proba` is the ratio of the means, not quite the mean of the ratio.

        Returns
        -------
        std : ndarray of shape (n_samples, n_classes)
            Deviations, at most 0.5, in the order of `classes_`. Those of two classes are the same.
        """
        rows, posterior = self._query(X)
        likelihood = cast(ClassLikelihood, posterior.likelihood)

        def compute(block: slice) -> tuple[Tensor]:
            return (likelihood.probability_std(posterior.marginals(rows[block])),)

        return self._collect(len(rows), compute)[0]

    @documented(predict_proba)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class.

        Returns
        -------
        log_probability : ndarray of shape (n_samples, n_classes)
            In nats, in the order of `classes_`.
        """
        rows, posterior = self._query(X)
        likelihood = cast(ClassLikelihood, posterior.likelihood)

        def compute(block: slice) -> tuple[Tensor]:
            q = posterior.marginals(rows[block])
            return (likelihood.log_predictives(q, len(self.classes_)),)

        return self._collect(len(rows), compute)[0]

    @documented(predict_proba)
    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Labels.
        """
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    @documented(predict_proba)
    @with_rows_checked
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of rows whose class is predicted correctly.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        score : float
            Accuracy, between 0 and 1.
        """
        return float(super().score(X, y, sample_weight))

    @documented(predict_proba)
    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and variance of the latent functions.

        Returns
        -------
        mean, variance : ndarrays of shape (n_samples,) or (n_samples, n_classes)
            Two classes have one function, more classes one each.
        """
        mean, var, _ = self._marginals(X)
        return (mean[:, 0], var[:, 0]) if mean.shape[1] == 1 else (mean, var)

    @documented(score)
    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log probability of each row's class.

        Returns
        -------
        log_probability : ndarray of shape (n_samples,)
            In nats.
        """
        data = self._checked(X, y)
        rows, posterior = self._located(data.X)

        def compute(block: slice) -> tuple[Tensor]:
            y = torch.tensor(data.y[block], device=rows.device)
            return (posterior.likelihood.log_predictive(y, posterior.marginals(rows[block])),)

        return self._collect(len(rows), compute)[0]

    def _checked(self, X: Any, y: Any, sample_weight: Any = None) -> Data:
        """Return validated rows of known classes."""
        check_is_fitted(self)
        return self._validate(X, y, False, sample_weight)


def coded(estimator: Any, data: Data, classes: np.ndarray | None = None) -> tuple[Data, np.ndarray]:
    """Return the rows with codes of their classes as y, (n, 1), and the classes.

    By default, the classes are those of the rows with a positive weight.
    """
    counts = np.ones(len(data), bool) if data.weight is None else data.weight > 0.0
    classes = np.unique(data.y[counts]) if classes is None else classes
    if len(classes) < 2:
        is_stream = hasattr(estimator, "partial_fit")
        cure = " A stream names all in its first partial_fit, with classes=[...]." * is_stream
        raise ValueError(
            f"{type(estimator).__name__} needs at least two classes, but y has one class: "
            f"{classes.tolist()}.{cure}"
        )
    codes = codes_of(data.y, classes, counts)
    return replace(data, y=codes.astype(np.float64)[:, None]), classes


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
