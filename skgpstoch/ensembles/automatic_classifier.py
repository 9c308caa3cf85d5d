"""The recommended default for classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from ..data.rows import Data
from ..data.tables import validate_table
from ..docstrings import documented
from ..estimators.classifier import Classifier
from ..estimators.docs import public_estimator
from ..estimators.validation import check_labels, check_weight
from ..methods.deep_kernel_ensemble import DeepKernelEnsembleClassifier
from ..methods.svgp import SVGPClassifier
from .automatic import Automatic, of_model, of_networks
from .race import Entrant, Judged

FEWEST_FOR_CLASSES = 50
MOST_CLASSES = 1000  # whose probabilities are many numbers for each row
FEW_STEPS = 100  # of a process for few rows of classes


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessClassifier(ClassifierMixin, Automatic):
    """The recommended default: calibrated probabilities on tables of any size.

    Tables are taken as they are: frames with categories, dates and missing values. An ensemble of
    networks with Gaussian-process last layers, trained for the bound on the evidence and calibrated
    by rows that it has not seen; of fewer than 50 rows a process alone.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of rows that have a weight.

    See Also
    --------
    DeepKernelEnsembleClassifier : The networks, with their parameters.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skgpstoch import AutoGaussianProcessClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AutoGaussianProcessClassifier(max_time=1, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    @documented(Classifier.fit)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AutoGaussianProcessClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features)
            Inputs: numbers, categories, dates; NaN, None and the like where a value is missing.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each counts for.
        """
        return self._fit_to(X, y, sample_weight)

    def _validate(self, X: Any, y: Any, sample_weight: Any) -> Data:
        X, y = validate_table(self, X, y, reset=True, ensure_min_samples=2)
        check_labels(y)
        weight = check_weight(Data(y, y), sample_weight, least=2, keeps=True).weight
        self.classes_ = np.unique(y if weight is None else y[weight > 0.0])
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes at least, but y, where sample_weight is "
                f"not 0, has one class: {self.classes_.tolist()}."
            )
        if len(self.classes_) > MOST_CLASSES:
            raise ValueError(
                f"y has {len(self.classes_)} classes, but {type(self).__name__} takes "
                f"{MOST_CLASSES} at most: if they are numbers, use AutoGaussianProcessRegressor; "
                "if not, join rare ones, or predict what they have in common first."
            )
        return self._encoded(X, y, weight, self.classes_)

    def _entrants(self, data: Data) -> list[Entrant]:
        if data.size >= FEWEST_FOR_CLASSES:
            return [of_networks(DeepKernelEnsembleClassifier, self, data)]
        shared = {"device": self.device, "random_state": self.random_state}
        process = SVGPClassifier(max_iter=FEW_STEPS, **shared)
        return [Entrant("process", lambda left: process)]

    def _combine(self, found: list[Judged], weights: np.ndarray, data: Data) -> None:
        self._model = found[0].model

    predict = of_model(Classifier.predict)
    predict_proba = of_model(Classifier.predict_proba)
    predict_log_proba = of_model(Classifier.predict_log_proba)
    predict_std = of_model(Classifier.predict_std)
    log_predictive_density = of_model(Classifier.log_predictive_density)
