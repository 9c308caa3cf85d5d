"""The rivals of the recommended default: a registry of constructors, by name.

pytabkit's networks predict means; their density is ``HeldOutVariance``. With the pinball loss
RealMLP predicts quantiles, as the quantile forest does; their density is a mixture around these
(``_densities.Mixture``), whose width is chosen on rows that were held out or out of bag.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from _common import Array
from _densities import Density, Gaussian, Mixture
from _peers import (
    CatBoostDensity,
    ConstantVariance,
    ExactOnSubset,
    NaturalGradientBoosting,
    catboost_settings,
)
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import skgpstoch

Registry = dict[str, Callable[[int], Any]]  # name → seed → estimator
HELD_OUT = 0.2  # of the rows: pytabkit's own share for early stopping
LEVELS = (np.arange(20) + 0.5) / 20  # of quantiles
WIDTHS = np.geomspace(1e-3, 1.0, 40)  # of a mixture's parts, in standard deviations of y


def held_out(n: int, seed: int) -> NDArray[np.intp]:
    """Rows to hold out."""
    return np.random.default_rng(seed).permutation(n)[: round(HELD_OUT * n)]


# --- densities from means and from quantiles ------------------------------------------------------
class HeldOutVariance:
    """A mean, and the variance of its errors on the rows that it was stopped by.

    The variance is constant, or boosted trees of the squared errors: whichever predicts these rows
    with the greater density in five folds. The name of the one that was used is ``variance_``.
    """

    def __init__(self, network: Any, seed: int) -> None:
        self.network = network
        self.seed = seed

    def fit(self, X: Any, y: Array) -> Self:
        held = held_out(len(y), self.seed)
        quietly(self.network.fit, X, y, val_idxs=held)
        X_held = rows_of(X, held)
        square = np.maximum((self._mean(X_held) - y[held]) ** 2, 1e-12 * np.var(y))
        candidates = {
            "constant": DummyRegressor(),
            "trees": HistGradientBoostingRegressor(
                loss="gamma", learning_rate=0.05, max_leaf_nodes=8, random_state=self.seed
            ),
        }
        losses = {name: self._loss(model, X_held, square) for name, model in candidates.items()}
        self.variance_ = min(losses, key=losses.__getitem__)
        self.variance_model_ = candidates[self.variance_].fit(X_held, square)
        return self

    @staticmethod
    def _loss(model: Any, X: Any, square: Array) -> float:
        variance = cross_val_predict(model, X, square)
        return float(np.mean(np.log(variance) + square / variance))

    def _mean(self, X: Any) -> Array:
        return quietly(self.network.predict, X).reshape(len(X)).astype(np.float64)

    def density(self, X: Any) -> Density:
        return Gaussian(self._mean(X), np.sqrt(self.variance_model_.predict(X)))


class QuantileNetwork:
    """RealMLP with the pinball loss of twenty levels."""

    def __init__(self, seed: int) -> None:
        loss = f"multi_pinball({','.join(f'{level:.3f}' for level in LEVELS)})"
        self.seed = seed
        self.network = real_mlp(seed, train_metric_name=loss, val_metric_name=loss)

    def fit(self, X: Any, y: Array) -> Self:
        held = held_out(len(y), self.seed)
        quietly(self.network.fit, X, y, val_idxs=held)
        self.width_ = best_width(quietly(self.network.predict, rows_of(X, held)), y[held])
        return self

    def density(self, X: Any) -> Density:
        return Mixture(quietly(self.network.predict, X), self.width_)


class QuantileForest:
    """Meinshausen's forest; the width of its density's parts is chosen out of bag."""

    def __init__(self, seed: int) -> None:
        from quantile_forest import RandomForestQuantileRegressor  # an extra

        threads = torch.get_num_threads()
        self.forest = RandomForestQuantileRegressor(random_state=seed, n_jobs=threads)

    def fit(self, X: Array, y: Array) -> Self:
        self.forest.set_params(bootstrap=True, oob_score=False).fit(X, y)
        centres = self.forest.predict(X, quantiles=list(LEVELS), oob_score=True)
        self.width_ = best_width(centres, y)
        return self

    def density(self, X: Array) -> Density:
        mean = self.forest.predict(X, quantiles="mean")
        return Mixture(self.forest.predict(X, quantiles=list(LEVELS)), self.width_, mean)


def best_width(centres: Array, y: Array) -> float:
    """The width of a mixture's parts with which it predicts y best."""
    densities = {w: Mixture(centres, w) for w in WIDTHS * y.std()}
    return max(densities, key=lambda w: float(densities[w].log_density(y).mean()))


def rows_of(X: Any, rows: NDArray[np.intp]) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


# --- pytabkit -------------------------------------------------------------------------------------
def quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call without what Lightning says of its trainer."""
    for name in ("pytorch_lightning", "lightning.pytorch"):
        for logger in (name, f"{name}.utilities.rank_zero", f"{name}.trainer"):
            logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


def pytabkit_settings(seed: int) -> dict[str, Any]:
    return {"device": "cpu", "n_threads": torch.get_num_threads(), "random_state": seed}


def real_mlp(seed: int, **settings: Any) -> Any:
    from pytabkit import RealMLP_TD_Regressor  # an extra

    return RealMLP_TD_Regressor(**pytabkit_settings(seed), **settings)


def tab_m(seed: int) -> Any:
    from pytabkit import TabM_D_Regressor  # an extra

    return TabM_D_Regressor(**pytabkit_settings(seed))


class RealMLPClassifier:
    """RealMLP for probabilities: stopped by log-loss and without label smoothing, as advised."""

    def __init__(self, seed: int) -> None:
        from pytabkit import RealMLP_TD_Classifier  # an extra

        advice = {"val_metric_name": "cross_entropy", "use_ls": False}
        self.network = RealMLP_TD_Classifier(**pytabkit_settings(seed), **advice)

    def fit(self, X: Array, y: NDArray[np.int64]) -> Self:
        quietly(self.network.fit, X, y)
        return self

    def predict_proba(self, X: Array) -> Array:
        return quietly(self.network.predict_proba, X)


# --- the others -----------------------------------------------------------------------------------
def network(seed: int) -> Any:
    layers = (128, 128)
    perceptron = MLPRegressor(hidden_layer_sizes=layers, early_stopping=True, random_state=seed)
    return make_pipeline(StandardScaler(), perceptron)


def catboost_classifier(seed: int) -> Any:
    from catboost import CatBoostClassifier  # an extra

    return CatBoostClassifier(**catboost_settings(seed))


def constant_catboost(seed: int) -> ConstantVariance:
    from catboost import CatBoostRegressor  # an extra

    return ConstantVariance(CatBoostRegressor(**catboost_settings(seed)), seed, refit=True)


def boosting(seed: int) -> ConstantVariance:
    return ConstantVariance(HistGradientBoostingRegressor(random_state=seed), seed, refit=True)


EXACT_ROWS = 2000  # beyond which an exact process takes minutes

OUR_REGRESSORS: Registry = {
    "auto": lambda seed: skgpstoch.AutoGaussianProcessRegressor(random_state=seed),
    "NNGP": lambda seed: skgpstoch.NNGPRegressor(random_state=seed),
    "SCGD": lambda seed: skgpstoch.SCGDGaussianProcessRegressor(random_state=seed),
    "DLM": lambda seed: skgpstoch.DLMRegressor(
        n_inducing=256, beta=[0.01, 0.1, 1], random_state=seed
    ),
}
REGRESSORS: Registry = {
    "ExactARD": lambda seed: ExactOnSubset(EXACT_ROWS, seed),
    "HistGradientBoosting": boosting,
    "CatBoost": CatBoostDensity,
    "CatBoostConstant": constant_catboost,
    "RealMLP": lambda seed: HeldOutVariance(real_mlp(seed), seed),
    "QuantileForest": QuantileForest,
    "RealMLPQuantiles": QuantileNetwork,
    "MLP": lambda seed: ConstantVariance(network(seed), seed, refit=True),
    "NGBoost": NaturalGradientBoosting,
    "TabM": lambda seed: HeldOutVariance(tab_m(seed), seed),
}
OUR_CLASSIFIERS: Registry = {
    "auto": lambda seed: skgpstoch.AutoGaussianProcessClassifier(random_state=seed),
    "SVGP": lambda seed: skgpstoch.SVGPClassifier(random_state=seed),
}
CLASSIFIERS: Registry = {
    "LogisticRegression": lambda seed: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=1000)
    ),
    "HistGradientBoosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "CatBoost": catboost_classifier,
    "RealMLP": RealMLPClassifier,
    "calibrated SVC": lambda seed: make_pipeline(StandardScaler(), CalibratedClassifierCV(SVC())),
    "RandomForest": lambda seed: RandomForestClassifier(random_state=seed),
}
