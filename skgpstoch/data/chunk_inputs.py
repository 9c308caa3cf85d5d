"""Turn stored rows into the X of models, with `transform`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from .chunk import Chunk
from .kinds import refuse_times
from .stored import names_of, refuse_unstored

EXAMPLE_ROWS = 100
"""Rows that are transformed to find out the columns and dtype of the result."""


@dataclass(frozen=True)
class Inputs:
    """Make the X of chunks.

    Parameters
    ----------
    transform : fitted transformer or None
        Transformer that is applied to stored rows.
    names : list of str
        Names of the columns of X.
    named : bool
        Whether the names are the user's.
    dtype : dtype
        Dtype of X, float32 or float64.
    """

    transform: Any
    names: list[str]
    named: bool
    dtype: np.dtype

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return a chunk with X as an array; whether its columns agree is checked elsewhere."""
        if len(chunk) == 0:
            return replace(chunk, X=np.empty((0, len(self.names)), self.dtype))
        return replace(chunk, X=transformed(self.transform, chunk.X, chunk.where))


def transformed(transform: Any, X: Any, where: str) -> np.ndarray:
    """Return X, an array or a frame, after a transformation if there is one.

    Raises
    ------
    ValueError
        If the transformer raises an error, or if X holds dates and there is no transformer.
    """
    if transform is not None:
        try:
            X = transform.transform(X)
        except Exception as error:
            raise ValueError(
                f"{where}: `transform` failed on X: {error}. An unfitted `transform` is "
                "fitted to a random sample, which may lack values that other rows have. "
                "Pass a fitted transformer, or one that accepts unknown values "
                "(handle_unknown='ignore')."
            ) from error
        refuse_unstored(X, "The result of `transform`")
    else:
        try:
            refuse_times(X, "X")
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    return np.asarray(X)


def inputs_of(transform: Any, X: Any, stored_names: list[str] | None, where: str) -> Inputs:
    """Return how to make X, as the first stored rows show."""
    made = transformed(transform, X[:EXAMPLE_ROWS], where)
    if made.ndim != 2:
        raise ValueError(f"{where}: X must have two dimensions, got shape {made.shape}.")
    names = stored_names if transform is None else names_out(transform)
    if names is None and transform is None:
        names = names_of(X)
    named = names is not None and len(names) == made.shape[1]
    used = names if named and names is not None else [f"x{j}" for j in range(made.shape[1])]
    dtype = np.dtype(np.float32 if made.dtype == np.float32 else np.float64)
    return Inputs(transform, used, named, dtype)


def names_out(transform: Any) -> list[str] | None:
    """Return a transformer's names of its columns; None if it has none."""
    try:
        return [str(name) for name in transform.get_feature_names_out()]
    except (AttributeError, TypeError, ValueError):  # transformers without names raise these
        return None


def fitted_transform(transform: Any, sample: Callable[[], tuple[Any, np.ndarray | None]]) -> Any:
    """Return a fitted transformer: the given one, or a clone fitted on a sample."""
    if transform is not None and not hasattr(transform, "transform"):
        raise TypeError(f"transform must have a method `transform`, got {transform!r}.")
    return transform if is_fitted(transform) else clone(transform).fit(*sample())


def is_fitted(transform: Any) -> bool:
    """Tell whether a transformer, or none, is fitted."""
    try:
        check_is_fitted(transform)
    except NotFittedError:
        return False
    except TypeError:  # not a scikit-learn estimator: it needs no fit
        return True
    return True
