"""Predict for rows that are on Dask workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

from ..data.messages import muted
from .rows import check_chunks

BY_ROWS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "predict_std",
    "predict_interval",
    "predict_atoms",
)
"""Methods that predict each row independently of the others and return arrays."""


def predict(model: Any, X: Any, method: str = "predict", **kwargs: Any) -> Any:
    """Predict lazily for a Dask array or frame, partition by partition.

    Parameters
    ----------
    model : fitted estimator
        The fitted model; it is sent once to each worker that needs it.
    X : dask Array of shape (n_samples, n_features), or dask DataFrame
        Inputs, in chunks of rows.
    method : str, default="predict"
        Method to call: "predict", "predict_proba", "predict_log_proba", "decision_function",
        "predict_std", "predict_interval" or "predict_atoms".
    **kwargs : dict
        Other parameters of the method, such as `return_std` or `coverage`. Parameters with a value
        for each row are not supported.

    Returns
    -------
    predicted : dask Array, Series or DataFrame, or tuple of these
        Predictions in X's chunks, with X's index if X is a frame; a tuple if the method returns
        one. They are computed when Dask computes the result.

    Raises
    ------
    TypeError
        If X is not a Dask array or frame.
    ValueError
        If the method cannot be computed chunk by chunk, or chunks also split the columns.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skgpstoch import SVGPRegressor
    >>> from skgpstoch.dask import predict
    >>> x = np.linspace(0.0, 6.0, 100)[:, None]
    >>> model = SVGPRegressor(n_inducing=10, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> mean, std = predict(model, da.from_array(x, chunks=(25, 1)), return_std=True)
    >>> mean
    dask.array<getitem, shape=(100,), dtype=float64, chunksize=(25,), chunktype=numpy.ndarray>
    """
    if method not in BY_ROWS:
        raise ValueError(
            f"method must be one of {BY_ROWS}, got {method!r}. Others cannot be computed "
            "chunk by chunk."
        )
    if kwargs.get("return_cov"):
        raise ValueError(
            "return_cov must be False for Dask collections, because a covariance needs the "
            "rows of all chunks at once."
        )
    if not isinstance(X, da.Array | dd.DataFrame):
        raise TypeError(f"X must be a dask array or frame, got {type(X).__name__}.")
    few = X._meta_nonempty if isinstance(X, dd.DataFrame) else np.ones((2, *X.shape[1:]), X.dtype)
    with muted(True):
        outputs = outputs_of(model, method, kwargs, few)
    call = Call(method, kwargs, sum(map(width, outputs)), np.result_type(*outputs))
    held = dask.delayed(model, pure=False, traverse=False)
    if isinstance(X, dd.DataFrame):
        of_frame = X.map_partitions(call.on_frame, held, meta=call.on_frame(few[:0], model))
        predicted = [frame_of(of_frame, *each) for each in placed(outputs)]
        if method.endswith("proba"):
            predicted = [each.rename(columns=dict(enumerate(model.classes_))) for each in predicted]
    else:
        check_chunks("X", X, needs_sizes=False)
        chunks, meta = (X.chunks[0], (call.width,)), np.empty((0, 0), call.dtype)
        of_array = X.map_blocks(cast(Any, call.on_array), held, chunks=chunks, meta=meta)
        predicted = [array_of(of_array, *each) for each in placed(outputs)]
    return predicted[0] if len(predicted) == 1 else tuple(predicted)


class Call(NamedTuple):
    """A call of a model's method, whose outputs are columns of one array."""

    method: str
    kwargs: dict[str, Any]
    width: int
    dtype: np.dtype

    def on_array(self, X: Any, model: Any) -> np.ndarray:
        """Return the outputs of a partition, (n, width)."""
        if len(X) == 0:
            return np.empty((0, self.width), self.dtype)
        outputs = outputs_of(model, self.method, self.kwargs, X)
        return np.concatenate([each.reshape(len(X), -1) for each in outputs], axis=1)

    def on_frame(self, X: Any, model: Any) -> Any:
        """Return the outputs of a partition as a frame with the index of X."""
        return pd.DataFrame(self.on_array(X, model), index=X.index)


def outputs_of(model: Any, method: str, kwargs: dict[str, Any], X: Any) -> tuple[np.ndarray, ...]:
    """Return the arrays that a method returns."""
    found = getattr(model, method)(X, **kwargs)
    return found if isinstance(found, tuple) else (found,)


def width(output: np.ndarray) -> int:
    """Return the number of values that an output has for each row."""
    return int(np.prod(output.shape[1:], dtype=int))


def placed(outputs: Sequence[np.ndarray]) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Yield the columns of each output, and the output's shape for one row."""
    first = 0
    for output in outputs:
        yield slice(first, first + width(output)), output.shape[1:]
        first += width(output)


def array_of(of_array: da.Array, columns: slice, shape: tuple[int, ...]) -> da.Array:
    """Return one output as a Dask array."""
    if len(shape) < 2:
        return of_array[:, columns if shape else columns.start]
    chunks = (of_array.chunks[0], *((size,) for size in shape))
    return of_array[:, columns].map_blocks(
        lambda block: block.reshape(-1, *shape),
        drop_axis=1,
        new_axis=list(range(1, 1 + len(shape))),
        chunks=chunks,
        dtype=of_array.dtype,
    )


def frame_of(of_frame: Any, columns: slice, shape: tuple[int, ...]) -> Any:
    """Return one output: a series, or a frame if there are several numbers in a row."""
    if not shape:
        return of_frame[columns.start].rename(None)
    own = of_frame[list(range(columns.start, columns.stop))]
    return own.rename(columns={k: k - columns.start for k in own.columns})
