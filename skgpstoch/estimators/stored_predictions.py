"""Predict for a row source, which is read in chunks, and write the predictions chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from ..data.arguments import check_coverage
from ..data.frames import is_frame
from ..data.messages import warn
from ..data.read_ahead import read_ahead
from ..data.row_source import RowSource
from .wrappers import predict_distribution

__all__ = ["predict_to"]

Named = dict[str, np.ndarray]


def predict_to(
    estimator: Any, rows: RowSource, path: str | Path, coverage: float | None = None
) -> None:
    """Predict for rows that need not fit into memory, and write the predictions to a Parquet file.

    Each chunk becomes one row group, in the order of the rows. The file gets its name only when it
    is complete. Memory holds two chunks and their predictions.

    Parameters
    ----------
    estimator : estimator
        A fitted regressor or classifier of skgpstoch, on its own, in wrappers or in a pipeline.
    rows : RowSource
        A `ParquetRows`, `SequenceRows` or `ChunkRows`. Only its X and exposures are used.
    path : str or Path
        The file to write; an existing file is replaced. A regressor writes the columns `mean` and
        `std` (`mean_0`, ... for several outputs), a classifier `prediction` and, for each class c,
        `probability_c`.
    coverage : float or None, default=None
        Probability of a central interval, only for regressors. Its ends are written to the columns
        `lower` and `upper`. None: write no interval.

    Raises
    ------
    TypeError
        If `rows` is not a row source.
    ValueError
        If a chunk is invalid, `path` is one of the files that `rows` reads, the `transform` of
        `rows` is not fitted, or `coverage` is given for a classifier.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skgpstoch import SVGPRegressor, predict_to
    >>> from skgpstoch.data import SequenceRows
    >>> X = np.linspace(0.0, 6.0, 100)[:, None]
    >>> model = SVGPRegressor(n_inducing=10, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "predictions.parquet"
    ...     predict_to(model, SequenceRows(X), path)
    ...     path.exists()
    True
    """
    from ..data.parquet_writer import write_parquet  # needs pyarrow

    if not isinstance(rows, RowSource):
        raise TypeError(
            "rows must be ParquetRows, SequenceRows or ChunkRows, got "
            f"{type(rows).__name__}. Wrap an array with skgpstoch.data.SequenceRows(X), or "
            "call predict."
        )
    rows.check_path(path)
    if rows.has_new_transform:
        raise ValueError(
            f"The transform of rows must be fitted, got {rows.transform!r}, which would be "
            "fitted to the rows to predict for. Pass the one that was fitted with the "
            "model: transform=training_rows.transform_."
        )
    is_classifier = hasattr(estimator, "predict_proba")
    if coverage is not None and is_classifier:
        raise ValueError(f"coverage must be None for a classifier, got {coverage!r}.")
    coverage = None if coverage is None else check_coverage(coverage)
    found = predictions(estimator, rows, coverage, is_classifier)
    first = next(found)
    groups = (tuple(columns.values()) for columns in itertools.chain([first], found))
    write_parquet(path, list(first), groups)


def predictions(
    estimator: Any, rows: RowSource, coverage: float | None, is_classifier: bool
) -> Iterator[Named]:
    """Yield the columns of each chunk."""
    is_table = is_frame(rows.example.X)
    takes_stored = rows.transform is None and (is_table or takes_missing(estimator))
    knows_names = hasattr(estimator, "feature_names_in_")
    names = None if is_table and takes_stored else rows.feature_names
    if names is not None and not knows_names:
        if rows.transform is None and hasattr(estimator, "n_features_in_"):  # as of a frame
            known = f"{type(estimator).__name__} was fitted without feature names"
            warn(f"X has feature names, but {known}", UserWarning)
        names = None  # as the fit had none
    for chunk in read_ahead(rows.read(None)) if takes_stored else rows.chunks():
        if not len(chunk):
            continue
        X = named(names, chunk.X)
        if knows_names and is_frame(X):
            X = in_fitted_order(list(estimator.feature_names_in_), X)
        if is_classifier:
            yield of_classes(estimator, X)
            continue
        of_rows = {} if chunk.exposure is None else {"exposure": chunk.exposure}
        distribution = predict_distribution(estimator, X, **of_rows)
        columns = {"mean": distribution.mean(), "std": distribution.std()}
        if coverage is not None:
            columns["lower"], columns["upper"] = distribution.interval(coverage)
        yield each_output(columns)


def takes_missing(estimator: Any) -> bool:
    """Tell whether an estimator, or what begins a pipeline, takes missing values."""
    while isinstance(estimator, Pipeline):
        estimator = estimator[0]
    return bool(get_tags(estimator).input_tags.allow_nan)


def of_classes(estimator: Any, X: Any) -> Named:
    """Return the predicted labels and the class probabilities."""
    p = estimator.predict_proba(X)
    labels = np.asarray(estimator.classes_)
    of_labels = {f"probability_{c}": p[:, k] for k, c in enumerate(labels.tolist())}
    return {"prediction": labels[p.argmax(1)], **of_labels}


def each_output(columns: Named) -> Named:
    """Split columns of shape (m, P) into columns of shape (m,)."""
    return {
        name if a.ndim == 1 else f"{name}_{p}": column
        for name, a in columns.items()
        for p, column in enumerate(a.reshape(len(a), -1).T)
    }


def named(names: list[str] | None, X: Any) -> Any:
    """Return X as a frame with these column names, if there are names and pandas is installed."""
    if names is None:
        return X
    try:
        import pandas as pd
    except ImportError:
        return X  # scikit-learn warns that names are missing
    return pd.DataFrame(X, columns=names)


def in_fitted_order(known: list[str], X: Any) -> Any:
    """Return a frame with its columns in the order of the estimator's fit.

    Raises
    ------
    ValueError
        If the frame has all the columns of the fit and additional ones.
    """
    names = list(X.columns)
    if set(known) < set(names):
        more = sorted(set(names) - set(known))
        raise ValueError(
            "rows must have the columns that the model was fitted to and no others, "
            f"got {more} as well. Drop them, or open the files with ParquetRows(..., "
            "features=[...])."
        )
    return X[known] if set(known) == set(names) else X
