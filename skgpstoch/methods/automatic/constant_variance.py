"""A predictive distribution for any regressor: its predictions, and errors of one variance."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.validation import _num_samples, check_is_fitted

from ...data.array_inputs import refuse_times
from ...data.docstrings import documented
from ...data.findings import Diagnosis
from ...data.held_out import checked_folds, folds_of_units
from ...data.read_table import validate_table
from ...data.target_transforms import fitted_transform
from ...estimators.base import BaseGP
from ...estimators.callbacks import CallbackSupportMixin, Fits, with_callbacks
from ...estimators.context import fitting
from ...estimators.first_rank import fits_on_first
from ...estimators.parameters import TRANSFORM
from ...estimators.predictions import PredictedRows
from ...estimators.validation import check_numbers
from ...estimators.weights import counted_rows
from ...persistence.failures import file_of
from .mixture import MixedRows, MixtureRegressor, NormalRows, TransformedRows
from .stacking import StackedDensityRegressor

LEAST_STD = 1e-9  # of errors, relative to the standard deviation of y


class ConstantVarianceRegressor(CallbackSupportMixin, MetaEstimatorMixin, MixtureRegressor):
    """A regressor's predictions as means, with normal errors as large as those of held-out rows.

    Parameters
    ----------
    estimator : regressor
        Any regressor of scikit-learn. It checks data frames itself, and missing values.
    cv : int, splitter or iterable, default=5
        Folds whose held-out errors give the variance. With a number, rows are shuffled into folds,
        always alike, with copies of a row in one; for rows in time, give a splitter.
    target_transform : {"log", "yeo-johnson"}, transformer or None, default=None
        Transformation of y that the regressor is fitted to instead of y, and whose errors are
        normal; predictions are of y itself. With "log", errors are relative.

    Attributes
    ----------
    estimator_ : regressor
        The regressor, fitted to all rows.
    std_ : float
        Root of the mean squared error of held-out rows, for the (transformed) y.
    target_transformer_ : transformer or None
        The transformer that was fitted to y, with `transform` and `inverse_transform`.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        Importances of `estimator_`, if it has any.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from skgpstoch import ConstantVarianceRegressor
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> y = X[:, 0] + 0.1 * np.random.default_rng(0).standard_normal(50)
    >>> model = ConstantVarianceRegressor(Ridge(0.01)).fit(X, y)
    >>> bool(0.05 < model.std_ < 0.15)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "estimator": [HasMethods(["fit", "predict"])],
        "cv": ["cv_object"],
        "target_transform": TRANSFORM,
    }

    def __init__(self, estimator: Any, *, cv: Any = 5, target_transform: Any = None) -> None:
        self.estimator = estimator
        self.cv = cv
        self.target_transform = target_transform

    @documented(StackedDensityRegressor.fit)
    @fitting
    @fits_on_first
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ConstantVarianceRegressor:
        """Fit the regressor to all rows, and estimate the variance from folds."""
        self._validate_params()
        check_numbers(self)
        refuse_times(X, "X")
        X, y = validate_table(self, X, y, reset=True, y_numeric=True, ensure_min_samples=2)
        X, y, of_rows = counted_rows(self.cv, X, y, sample_weight, [self.estimator])
        weight = of_rows.get("sample_weight")
        splits = list(checked_folds(self.cv, folds_of_units(self.cv, X, y), X, y, weight))
        self.target_transformer_ = None
        if self.target_transform is not None:
            Y = y.astype(np.float64)[:, None]
            self.target_transformer_ = fitted_transform(self.target_transform, Y, weight)
            y = np.asarray(self.target_transformer_.transform(Y)).reshape(len(Y))
        order = np.concatenate([held_out for _, held_out in splits])
        fits = Fits(self, X, y, len(splits) + 1)
        # First, so that an interrupt leaves no deviation that is smaller than this model's.
        self.estimator_ = fits.next("estimator")(clone(self.estimator), X, y, **of_rows)
        predicted = [self._predicted_held_out(fits, X, y, of_rows, split) for split in splits]
        of_y, error = y - np.median(y), y[order] - np.concatenate(predicted)
        unit = np.abs(np.r_[of_y, error]).max() or 1.0  # squares of very large numbers overflow
        square = np.average((error / unit) ** 2, weights=None if weight is None else weight[order])
        self.std_ = float(unit * max(np.sqrt(square), LEAST_STD * (np.std(of_y / unit) or 1.0)))
        fits.tell_end()
        return self

    def _predicted_held_out(
        self, fits: Fits, X: Any, y: np.ndarray, of_rows: dict, split: tuple
    ) -> np.ndarray:
        """Return predictions of the rows held out of a fold."""
        trained, held_out = split
        rows, of_train = _safe_indexing(X, trained), {k: v[trained] for k, v in of_rows.items()}
        model = fits.next("estimator")(clone(self.estimator), rows, y[trained], **of_train)
        return self._means(model, _safe_indexing(X, held_out))

    def _means(self, model: Any, X: Any) -> np.ndarray:
        """Return a regressor's predictions of rows, (n,); ask one row first if a file made it."""
        if file_of(self) and _num_samples(X) > 1:  # of one row all would ask twice
            self._checked_means(model, _safe_indexing(X, [0]))
        return self._checked_means(model, X)

    def _checked_means(self, model: Any, X: Any) -> np.ndarray:
        """Return predictions of rows, (n,); raise a ValueError if they have another shape."""
        found, n = np.asarray(model.predict(X)), _num_samples(X)
        if found.shape not in ((n,), (n, 1)):
            raise ValueError(
                f"{type(model).__name__} must predict one number for each row, but its "
                f"predictions of {n} rows have the shape {found.shape}{file_of(self)}."
            )
        return found.reshape(n)

    @documented(BaseGP.diagnose)
    def diagnose(self) -> Diagnosis:
        """Tell what may be wrong with the fit of the estimator, if it has `diagnose`."""
        check_is_fitted(self)
        return Diagnosis.of_parts({"estimator_": self.estimator_})

    @property
    def feature_importances_(self) -> np.ndarray:
        """The regressor's importances."""
        check_is_fitted(self)
        return np.asarray(self.estimator_.feature_importances_)

    def _predicted(self, X: Any) -> PredictedRows:
        check_is_fitted(self)
        X = validate_table(self, X, reset=False)
        found: PredictedRows = NormalRows(self._means(self.estimator_, X), self.std_)
        if self.target_transformer_ is not None:
            found = TransformedRows(found, self.target_transformer_)
        return MixedRows([1.0], [found])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):  # it is not validated yet
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags
