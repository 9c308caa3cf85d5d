"""The recommended default for classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.arrays import resolve_seed
from ..data.rows import Data
from ..data.tables import validate_table
from ..docstrings import documented
from ..estimators.classifier import Classifier
from ..estimators.docs import public_estimator
from ..estimators.validation import check_labels, check_weight
from ..methods.deep_kernel_ensemble import DeepKernelEnsembleClassifier
from .automatic import Automatic, of_networks
from .class_mixture import ClassParts, MixtureClassifier
from .process_classes import ExactProcessClassifier
from .race import Entrant, Judged

MOST_CLASSES = 1000  # whose probabilities are many numbers for each row
FEWEST_FOR_NETWORKS = 200  # rows
MOST_FOR_PROCESS = 5000  # rows


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessClassifier(Automatic, MixtureClassifier):
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
        n, found = data.size, []
        if n <= MOST_FOR_PROCESS:
            found.append(Entrant("process", self._process))
        if n >= FEWEST_FOR_NETWORKS:
            found.append(of_networks(DeepKernelEnsembleClassifier, self, data))
        return found

    def _process(self, left: float | None) -> ExactProcessClassifier:
        """Return processes, to be fitted in the time that is left."""
        seed = resolve_seed(self.random_state)
        return ExactProcessClassifier(max_time=left, device=self.device, random_state=seed)

    def _combine(self, found: list[Judged], weights: np.ndarray, data: Data) -> None:
        self.weights_ = weights
        self._models = [each.model for each in found]

    def _parts(self, X: Any) -> tuple[ClassParts, Any]:
        X = self._query(X)
        return ClassParts(self.weights_, self._models), X
