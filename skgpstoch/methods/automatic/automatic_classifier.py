"""The recommended default for classification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...data.chunk import Chunk
from ...data.docstrings import documented
from ...data.findings import Finding
from ...data.held_out import mixture_of_classes
from ...data.read_table import validate_table
from ...data.rows import Data
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.validation import check_labels
from ...estimators.weights import check_weight
from ..deep_kernel_ensemble.estimators import DeepKernelEnsembleClassifier
from ..nngp.classifier import NNGPClassifier
from .automatic import Automatic, n_observed, of_networks, of_processes
from .class_mixture import ClassParts, MixtureClassifier
from .class_process import ExactProcessClassifier
from .neighbours import of_latent_neighbours
from .race import Entrant, Judged, Shares, of_floor
from .report import class_calibration, class_limits, share_done

MOST_CLASSES = 1000  # whose probabilities are many numbers for each row
FEWEST_OF_CLASSES = 600  # rows; with fewer, processes predict better, and sooner
MOST_OF_CLASSES = 5000  # rows up to which there are processes; with more, neighbours
CLASSES_SHOWN = 5
LEAST_GAIN_OF_CLASSES = (
    0.01  # nats per row that scouts must add: *measured*, .006 made digits worse
)


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class AutoGaussianProcessClassifier(Automatic, MixtureClassifier):
    """The recommended default: calibrated probabilities on tables of any size.

    It takes tables as they are: frames with categories, dates and missing values. Up to 5,000 rows
    it fits Gaussian processes with several kernels, from smooth to linear; with more, processes of
    nearest neighbours. From 600 rows on, it fits an ensemble of networks with Gaussian-process last
    layers, trained for the evidence lower bound, if these promise to predict better. All are
    calibrated on held-out rows. The weights of their mixture come from their predictions for these
    rows.

    Attributes
    ----------
    weights_ : ndarray of shape (n_models,)
        Weights of the models in `estimators_`, which sum to 1.
    classes_ : ndarray of shape (n_classes,)
        Class labels of rows with a positive weight.

    See Also
    --------
    DeepKernelEnsembleClassifier : The ensemble of networks, with all its parameters.

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
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None
    ) -> AutoGaussianProcessClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like or frame of shape (n_samples, n_features), or rows of :mod:`skgpstoch.data`
            Inputs: numbers, categories, dates; NaN, None and the like where a value is missing.
            Rows that are read in chunks include y and weights.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            How many rows each row counts for.
        groups : array-like of shape (n_samples,) or None, default=None
            Labels of groups of rows, such as persons or places, if new rows will be of new groups.
            Whole groups are then held out for scores, calibration and weights. A category whose
            levels each belong to one group is left out, because it says nothing of a new group.
            Rows must be in memory, in one process.
        """
        return self._fit_to(X, y, sample_weight, groups=groups)

    _most_raced: ClassVar[int] = MOST_OF_CLASSES

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, least: int
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        X, y = validate_table(self, X, y, reset=True, ensure_min_samples=least)
        check_labels(y)
        return X, y, check_weight(Data(y, y), sample_weight, least=least, keeps=True).weight

    def _note_classes(self, classes: np.ndarray) -> None:
        self.classes_ = classes
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least two classes, got only "
                f"{self.classes_.tolist()} (rows whose sample_weight is 0 do not count)."
            )
        if len(self.classes_) > MOST_CLASSES:
            raise ValueError(
                f"y has {len(self.classes_)} classes, but {type(self).__name__} supports at "
                f"most {MOST_CLASSES}. If y holds numbers, use "
                "AutoGaussianProcessRegressor; otherwise merge rare classes."
            )

    def _learned(self, rows: Chunk) -> Data:
        return self._encoded(rows, self.classes_)

    def _networks(self, data: Data) -> Entrant:
        networks = of_networks(DeepKernelEnsembleClassifier, self, data)
        return networks._replace(least_gain=LEAST_GAIN_OF_CLASSES)

    def _neighbours(self, data: Data) -> list[Entrant]:
        leaves_groups_out = data.cluster is not None  # neighbours of a row are of its own group
        if leaves_groups_out or n_observed(data) <= MOST_OF_CLASSES:
            return []
        n_functions = 1 if len(self.classes_) == 2 else len(self.classes_)
        return of_latent_neighbours(NNGPClassifier, self, data, n_functions)

    def _entrants(self, data: Data) -> list[Entrant]:
        n, limits = n_observed(data), (MOST_OF_CLASSES, FEWEST_OF_CLASSES)
        groups = self._encoder.groups
        found = of_processes(ExactProcessClassifier, self, n, *limits, groups=groups)
        found += self._neighbours(data)
        if n >= FEWEST_OF_CLASSES:
            found.append(self._networks(data))
        return found

    def _combine(
        self, found: list[Judged], shares: Shares, data: Data, floor: list[Judged]
    ) -> list[Finding]:
        self.weights_ = shares.density
        self._models = [each.model for each in found]
        held_out = mixture_of_classes([model.held_out_ for model in self._models], self.weights_)
        weight = data.row_counts
        judged, done = (held_out, weight[held_out.rows]), share_done(self.budget_)
        self._tables = class_calibration(*judged, self.classes_), class_limits(*judged, done)
        return [*of_floor(floor, held_out), *of_single_groups(data, self.classes_)]

    def _parts(self, X: Any) -> tuple[ClassParts, Any]:
        X = self._query(X)
        return ClassParts(self.weights_, self._models), X


def of_single_groups(data: Data, classes: np.ndarray) -> Iterator[Finding]:
    """Yield how many classes have all of their rows in one group, if groups are held out."""
    if data.cluster is None:
        return
    pairs = np.unique(np.stack([np.searchsorted(classes, data.y), data.cluster]), axis=1)
    alone = classes[np.bincount(pairs[0], minlength=len(classes)) == 1]
    found = Finding("classes of one group", "groups", float(len(alone)), 1.0)
    if len(alone):
        few = [*map(repr, alone[:CLASSES_SHOWN].tolist()), *["..."] * (len(alone) > CLASSES_SHOWN)]
        found = found._replace(
            severity="problem",
            text=f"All rows of {len(alone)} of {len(classes)} classes are in one group each: "
            f"{', '.join(few)}. While that group is held out, no model knows of the class, so "
            "scores and probabilities are too low.",
            advice="Give rows of more groups, merge or drop these classes, or set groups=None if "
            "new rows will be of known groups.",
        )
    yield found
