"""Targets of a regressor: their shape, their transformer, and exposures where they need them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np

from ..data.groups import ALONE, Group, agreed
from ..data.rows import Data
from ..data.target_transforms import fitted_transform
from ..likelihoods.base import regression_likelihood

KNOWN_AND_TRANSFORMED = (
    "y_std must be None with target_transform, because known errors are errors of y, not "
    "of the transformed target."
)


def transformer_of(model: Any) -> Any:
    """Return the fitted transformer of the targets, or None."""
    return getattr(model, "target_transformer_", None)


def with_transformed_targets(model: Any, data: Data, reset: bool) -> Data:
    """Return rows with transformed targets, if any; fit the transformer first if `reset`.

    Raises
    ------
    ValueError
        If targets are counts or have known errors, or cannot be transformed.
    """
    if reset:
        learn_targets(model, data, ALONE)
    if (transformer := transformer_of(model)) is None:
        return data
    if data.y_std is not None:
        raise ValueError(KNOWN_AND_TRANSFORMED)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.asarray(transformer.transform(data.y), dtype=np.float64).reshape(data.y.shape)
    if not np.isfinite(z).all():
        raise ValueError(
            f"y must be in the domain where target_transform={model.target_transform!r} is "
            f"finite, got {data.y[~np.isfinite(z)][0]:g}."
        )
    return replace(data, y=z)


def learn_targets(model: Any, data: Data, group: Group) -> None:
    """Fit the transformer of targets, if there is one, to rows that all ranks have.

    Raises
    ------
    ValueError
        If targets are counts, or outside the transformer's domain.
    """
    if not hasattr(model, "target_transform"):
        return
    model.target_transformer_ = None
    if model.target_transform is None:
        return
    if regression_likelihood(getattr(model, "likelihood", "auto")).is_discrete:
        raise ValueError(
            f"target_transform must be None if y holds counts, got {model.target_transform!r}."
        )
    given = model.target_transform, data.y, data.weight
    model.target_transformer_ = fitted_alike(group, *given)


def fitted_alike(group: Group, transform: Any, y: np.ndarray, weight: np.ndarray | None) -> Any:
    """Return rank 0's transformer, fitted to targets that all ranks have; fits may be random."""
    content = b""
    with agreed(group):
        fitted = fitted_transform(transform, y, weight)
        if group.size > 1 and group.rank == 0:
            content = pickle.dumps(fitted)
    if group.size == 1:
        return fitted
    return pickle.loads(group.first_bytes(content))  # from a process of the same program


def check_exposed(model: Any, exposure: Any) -> None:
    """Raise a ValueError if targets cannot be scored without the exposures of their rows."""
    if exposure is None and getattr(model, "_fitted_with_exposure", False):
        raise ValueError(
            "exposure must be given, because the model was fitted with one and cannot "
            "score y without it."
        )


def check_shape(model: Any, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless a row of targets has the shape that it had in the fit."""
    if shape != model._y_shape:
        raise ValueError(
            f"y must have shape {('n_samples', *model._y_shape)}, as at the first call, "
            f"got {('n_samples', *shape)}."
        )
