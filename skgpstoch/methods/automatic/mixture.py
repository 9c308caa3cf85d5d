"""Mixtures of fitted regressors, and other functions of what models predict."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from ...data.arguments import FITS_AGAIN, NO_FUNCTION, MissingMethod
from ...data.arrays import random_numbers
from ...estimators.distributions.law import Law
from ...estimators.distributions.mixed import MixedLaw, chosen
from ...estimators.distributions.normal import NormalLaw
from ...estimators.distributions.transformed import TransformedLaw, transformed, transformed_draws
from ...estimators.predictions import PredictedRows, PredictiveRegressor
from ...persistence.estimator import SavedEstimator
from .row_weights import RowWeights

ONE_MODEL = "SVGPRegressor and GaussianProcessRegressor have it."

Draw = Callable[[int, int], np.ndarray]
"""Draws y, (n_rows, P, n_samples), given a number of draws and a seed."""


class MixtureRegressor(RegressorMixin, PredictiveRegressor):
    """Mean, deviation, intervals, draws, densities and distributions of a mixture."""

    condition_on = MissingMethod(FITS_AGAIN, ONE_MODEL)
    partial_fit = MissingMethod(FITS_AGAIN, ONE_MODEL)
    predict_gradient = MissingMethod(NO_FUNCTION, ONE_MODEL)
    score = PredictiveRegressor.score
    sample_functions = MissingMethod(
        NO_FUNCTION, f"Use sample_y to draw at given rows. {ONE_MODEL}"
    )
    log_marginal_likelihood = MissingMethod(
        "it is not a single Gaussian process and has no single prior",
        f"Use log_predictive_density to score rows. {ONE_MODEL}",
    )


def predicted_by(model: Any, X: Any, **of_rows: Any) -> PredictedRows:
    """Return what a fitted regressor, ours or another one, predicts at rows of X."""
    if isinstance(model, SavedEstimator):
        return cast(Any, model)._predicted(X, **of_rows)
    return AskedRows(model, X)


class MixedRows(PredictedRows):
    """The mixture of several predictions of the same rows, with weights that sum to 1.

    Their means may have weights of their own: see :mod:`.point_weights`. Weights may depend on the
    row: see :mod:`.row_weights`.
    """

    def __init__(
        self,
        weights: Sequence[float],
        parts: Sequence[PredictedRows],
        mean_weights: Sequence[float] | None = None,
        by_row: RowWeights | None = None,
    ) -> None:
        self.weights, self.parts, self.by_row = weights, parts, by_row
        self.mean_weights = weights if mean_weights is None else mean_weights
        self.n_rows, self.output_shape = parts[0].n_rows, parts[0].output_shape
        self.block_rows = min(part.block_rows for part in parts)
        self.unit = functools.reduce(np.minimum, [part.unit for part in parts])

    def law(self, rows: slice) -> Law:
        laws = [part.law(rows) for part in self.parts]
        if len(laws) == 1:
            return laws[0]
        if self.by_row is not None:
            return self.by_row.law(laws, np.array(self.mean_weights))
        return MixedLaw(np.array(self.weights), laws, np.array(self.mean_weights))

    def mean(self) -> np.ndarray:
        pairs = zip(self.mean_weights, self.parts, strict=True)
        return np.asarray(sum(w * part.mean() for w, part in pairs if w > 0.0))

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y jointly at all rows, each time from a part that is drawn by the weights."""
        if self.by_row is not None:
            return self._draws_by_row(self.by_row, n_samples, random_state)
        return mixed_draws(self.weights, [p.draws for p in self.parts], n_samples, random_state)

    def _draws_by_row(self, by_row: RowWeights, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw where the weights of parts depend on the row.

        One number from 0 to 1 chooses the parts of a draw at all rows, which so change seldom from
        row to row. Draws where the models agree have the ranks of those from one of them.
        """
        rng, law = random_numbers(random_state), cast(MixedLaw, self.law(slice(0, self.n_rows)))
        which = chosen(law.weights, rng.uniform(size=(n_samples, 1)))  # (n_samples, N)
        seeds = rng.randint(2**31 - 1, size=2 * len(self.parts)).tolist()
        agreed = np.flatnonzero((which == len(self.parts)).any(1))
        given = by_row.weight[:-1] / by_row.weight[:-1].sum()
        ranked = rng.choice(len(self.parts), len(agreed), p=given)
        draws = np.empty((n_samples, *law.shape))

        def fill(at: np.ndarray, of_part: int, values: np.ndarray) -> None:
            draws[at] = np.where((which[at] == of_part)[..., None], values, draws[at])

        for k, part in enumerate(self.parts):
            own, others = np.flatnonzero((which == k).any(1)), agreed[ranked == k]
            if len(own):
                fill(own, k, np.moveaxis(part.draws(len(own), seeds[2 * k]), -1, 0))
            if len(others):
                drawn = np.moveaxis(part.draws(len(others), seeds[2 * k + 1]), -1, 0)
                fill(others, len(self.parts), by_row.moved(law, k, drawn))
        return np.moveaxis(draws, 0, -1)

    def targets(self, y: Any) -> Any:
        for part in self.parts:
            part.targets(y)  # or an error
        return super().targets(y)


def mixed_draws(
    weights: Sequence[float], parts: Sequence[Draw], n_samples: int, random_state: Any
) -> np.ndarray:
    """Draw from a mixture, whose parts draw jointly at all rows: (n_rows, P, n_samples)."""
    rng = random_numbers(random_state)
    counts = rng.multinomial(n_samples, weights)
    seeds = rng.randint(2**31 - 1, size=len(counts))
    draws = [
        draw(int(n), int(seed)) for draw, n, seed in zip(parts, counts, seeds, strict=True) if n
    ]
    return np.concatenate(draws, -1)[..., rng.permutation(n_samples)]


class TransformedRows(PredictedRows):
    """Predictions of y, from those of z = T(y), for a fitted and monotone transformer."""

    is_transformed = True

    def __init__(self, of_z: PredictedRows, transformer: Any) -> None:
        self.of_z, self.transformer = of_z, transformer
        self.n_rows, self.output_shape = of_z.n_rows, of_z.output_shape

    def law(self, rows: slice) -> TransformedLaw:
        return transformed(self.of_z.law(rows), self.transformer)

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        draws = self.of_z.draws(n_samples, random_state)
        law = self.law(slice(0, self.n_rows))
        return transformed_draws(draws, law, random_numbers(random_state))


class NormalRows(PredictedRows):
    """Normal distributions about a regressor's means, (n,) or (n, P), with one deviation."""

    def __init__(self, mean: Any, std: float) -> None:
        mean = np.asarray(mean, dtype=np.float64)
        self.n_rows, self.output_shape = len(mean), mean.shape[1:]
        columns = mean.reshape(len(mean), -1)
        self.whole = NormalLaw(columns, np.full(columns.shape, std))

    def law(self, rows: slice) -> Law:
        return self.whole.of(rows)

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw y, with errors that are independent between rows."""
        draws = self.distribution().sample(n_samples, random_state)
        return draws.reshape(*self.whole.shape, n_samples)


class AskedRows(PredictedRows):
    """Predictions of a model that is not ours, which is asked for some rows at a time."""

    def __init__(self, model: Any, X: Any) -> None:
        self.model, self.X = model, X
        self.n_rows = _num_samples(X)
        self.output_shape = np.shape(model.predict(_safe_indexing(X, [0])))[1:]

    def law(self, rows: slice) -> Law:
        X = _safe_indexing(self.X, np.arange(self.n_rows)[rows])
        if hasattr(self.model, "predict_distribution"):
            return self.model.predict_distribution(X).law
        return AskedLaw(self.model, X, int(np.prod(self.output_shape)))

    def mean(self) -> np.ndarray:
        return np.reshape(self.model.predict(self.X), (self.n_rows, -1))

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        draws = np.asarray(self.model.sample_y(self.X, n_samples, random_state=random_state))
        return draws.reshape(self.n_rows, -1, n_samples)


@dataclass(frozen=True)
class AskedLaw(Law):
    """Law of y at X from a model's `predict`, `predictive_cdf` and `log_predictive_density`."""

    model: Any
    X: Any
    n_outputs: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.X), self.n_outputs

    def of(self, rows: Any) -> AskedLaw:
        numbers = np.arange(len(self.X))[rows]
        return AskedLaw(self.model, _safe_indexing(self.X, numbers), self.n_outputs)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.model.predict(self.X, return_std=True)
        return np.reshape(mean, self.shape), np.reshape(std, self.shape)

    def mean(self) -> np.ndarray:
        return np.reshape(self.model.predict(self.X), self.shape)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return np.reshape(self.model.predictive_cdf(self.X, self._given(y)), self.shape)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return np.reshape(self.joint_log_density(y), self.shape)  # of one output

    def joint_log_density(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.log_predictive_density(self.X, self._given(y)))

    def _given(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0] if self.n_outputs == 1 else y
