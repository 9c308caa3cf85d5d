"""Bars: how much predictions depend on each input, and the weights of the models of a mixture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.pipeline import Pipeline

from ..data.docstrings import documented
from .base import FITTED, PLOTTED, Display, drawn, fitted_with

if TYPE_CHECKING:
    import matplotlib.axes


@dataclass(kw_only=True, eq=False, repr=False)
class FeatureImportancesDisplay(Display):
    """How much predictions depend on each input, the most important on top.

    Parameters
    ----------
    names : sequence of str
        Names of the inputs.
    importances : array-like of shape (n_features,)
        Importances of the inputs; they sum to 1.

    Attributes
    ----------
    bars_ : matplotlib BarContainer
        One bar for each input that is drawn, from the bottom up.
    ax_ : matplotlib Axes
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    sklearn.inspection.permutation_importance : What scores lose without an input.
    sklearn.inspection.PartialDependenceDisplay : How predictions depend on an input.

    Examples
    --------
    >>> from skgpstoch.display import FeatureImportancesDisplay
    >>> display = FeatureImportancesDisplay(names=["age", "sex"], importances=[0.9, 0.1]).plot()
    >>> [label.get_text() for label in display.ax_.get_yticklabels()]
    ['sex', 'age']
    """

    names: Any
    importances: ArrayLike

    @documented(PLOTTED)
    def plot(
        self, ax: matplotlib.axes.Axes | None = None, *, max_features: int = 20, **kwargs: Any
    ) -> FeatureImportancesDisplay:
        """Draw the bars.

        Parameters
        ----------
        max_features : int, default=20
            Largest number of inputs to draw; the most important ones are drawn.
        **kwargs : dict
            Keywords for matplotlib's `barh`.
        """
        ax = self._open(ax)
        importances = np.asarray(self.importances, dtype=np.float64)
        order = np.argsort(-importances, kind="stable")[:max_features][::-1]
        self.bars_ = ax.barh(range(len(order)), importances[order], **kwargs)
        ax.set_yticks(range(len(order)), [drawn(self.names[j]) for j in order])
        ax.set(xlabel="Importance (share of the gradient)")
        return self

    @classmethod
    @documented(FITTED)
    def from_estimator(
        cls,
        estimator: Any,
        *,
        feature_names: Any = None,
        ax: matplotlib.axes.Axes | None = None,
        **kwargs: Any,
    ) -> FeatureImportancesDisplay:
        """Draw the importances of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted estimator with `feature_importances_`; a pipeline that ends in one, or a
            hyperparameter search over either.
        feature_names : sequence of str, default=None
            Names of the inputs. None: those that the estimator, or the steps of its pipeline, know.

        Raises
        ------
        TypeError
            If the estimator has no `feature_importances_`, or the names are no list.
        ValueError
            If there are not as many names as inputs.
        """
        fitted = fitted_with("feature_importances_", estimator, cls)
        importances = fitted.feature_importances_
        n_inputs = len(importances)
        names = known_names(estimator, fitted) if feature_names is None else feature_names
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise TypeError(
                f"feature_names must be a list of {n_inputs} names, one for each input, got "
                f"{names!r}."
            )
        if len(names := list(names)) != n_inputs:
            raise ValueError(
                f"feature_names must hold {n_inputs} names, one for each input, got {len(names)}."
            )
        return cls(names=names, importances=importances).plot(ax, **kwargs)


def known_names(estimator: Any, fitted: Any) -> list[str]:
    """Return the names of a regressor's inputs: its own, its pipeline's, or x0, x1, ..."""
    if hasattr(fitted, "feature_names_in_"):
        return list(fitted.feature_names_in_)
    outer = getattr(estimator, "best_estimator_", estimator)
    if isinstance(outer, Pipeline) and hasattr(outer[:-1], "get_feature_names_out"):
        return list(outer[:-1].get_feature_names_out())
    return [f"x{j}" for j in range(len(fitted.feature_importances_))]


if TYPE_CHECKING:
    import matplotlib.axes


@dataclass(kw_only=True, eq=False, repr=False)
class StackingWeightsDisplay(Display):
    """The weights of stacked models, the largest on top, with the scores of each alone.

    A model may score well and have no weight, because another model predicts the same, only better.

    Parameters
    ----------
    names : sequence of str
        Names of the models.
    weights : array-like of shape (n_models,)
        Weights of the models; they sum to 1.
    scores : array-like of shape (n_models,)
        Mean log density of held-out rows for each model, in nats per row; greater is better.

    Attributes
    ----------
    bars_ : matplotlib BarContainer
        One bar for each weight, from the bottom up.
    texts_ : list of matplotlib Text
        The scores, in the order of the bars.
    ax_ : matplotlib Axes
        Axes drawn on.
    figure_ : matplotlib Figure
        Figure of the axes.

    See Also
    --------
    skgpstoch.StackedDensityRegressor : Finds the weights.

    Examples
    --------
    >>> from skgpstoch.display import StackingWeightsDisplay
    >>> display = StackingWeightsDisplay(names=["a", "b"], weights=[0.9, 0.1], scores=[0.5, 0.2])
    >>> [text.get_text() for text in display.plot().texts_]
    ['0.200', '0.500']
    """

    names: Any
    weights: ArrayLike
    scores: ArrayLike

    @documented(PLOTTED)
    def plot(self, ax: matplotlib.axes.Axes | None = None, **kwargs: Any) -> StackingWeightsDisplay:
        """Draw the bars.

        Parameters
        ----------
        **kwargs : dict
            Keywords for matplotlib's `barh`.
        """
        ax = self._open(ax)
        weights, scores = (np.asarray(a, dtype=np.float64) for a in (self.weights, self.scores))
        order = np.lexsort((scores, weights))
        self.bars_ = ax.barh(range(len(order)), weights[order], **kwargs)
        ax.set_yticks(range(len(order)), [drawn(self.names[j]) for j in order])
        labels = [f"{scores[j]:.3f}" for j in order]
        self.texts_ = list(ax.bar_label(self.bars_, labels, padding=4))
        ax.set(
            xlim=(0.0, 1.15),
            xlabel="Weight (next to the bars: log density of held-out rows, nats per row)",
        )
        return self

    @classmethod
    @documented(FITTED)
    def from_estimator(
        cls, estimator: Any, *, ax: matplotlib.axes.Axes | None = None, **kwargs: Any
    ) -> StackingWeightsDisplay:
        """Draw the weights of a fitted estimator.

        Parameters
        ----------
        estimator : object
            Fitted :class:`~skgpstoch.StackedDensityRegressor` or
            :class:`~skgpstoch.AutoGaussianProcessRegressor`; a pipeline that ends in one, or a
            hyperparameter search over either.

        Raises
        ------
        TypeError
            If the estimator has no `scores_`, or its `scores_` are not scores of models.
        """
        fitted = fitted_with("scores_", estimator, cls)
        if isinstance(fitted.scores_, dict):
            names, weights, scores = (fitted.scores_[c] for c in ("model", "weight", "score"))
        else:
            fitted_with("named_estimators_", estimator, cls)
            names, weights = list(fitted.named_estimators_), fitted.weights_
            scores = fitted.scores_
        return cls(names=names, weights=weights, scores=scores).plot(ax, **kwargs)
