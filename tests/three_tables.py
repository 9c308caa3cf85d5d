"""One fit to rows in memory, in chunks, and on ranks: functions that return the models of ranks."""

from __future__ import annotations

import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from thread_group import on_ranks

from skgpstoch.data import ChunkRows, SequenceRows


def in_chunks(model, X, y, **of_rows):
    return [clone(model).fit(SequenceRows(X, y, **of_rows, chunk_rows=97))]


def in_one_order(model, X, y, sample_weight=None):
    columns = [X, y] if sample_weight is None else [X, y, sample_weight]
    pieces = lambda: (tuple(c[i : i + 70] for c in columns) for i in range(0, len(y), 70))  # noqa: E731
    return [clone(model).fit(ChunkRows(pieces))]


def on_parts(model, X, y, **of_rows):
    """On three ranks, the first of which has no rows."""
    cuts = [0, 0, 5 * len(y) // 12, len(y)]

    def fit(group):
        mine = slice(*cuts[group.rank : group.rank + 2])
        return clone(model).fit(X[mine], y[mine], **{k: c[mine] for k, c in of_rows.items()})

    return on_ranks(fit, 3)


def on_ranks_in_chunks(model, X, y, **of_rows):
    """On three ranks, the last of which reads no chunk."""
    rows = SequenceRows(X, y, **of_rows, chunk_rows=max(1, len(y) // 2))
    return on_ranks(lambda group: clone(model).fit(rows), 3)


TABLES = [in_chunks, in_one_order, on_parts, on_ranks_in_chunks]
on_every_table = pytest.mark.parametrize("fits", TABLES, ids=lambda fits: fits.__name__)


def same_on_all(models, X, predict="predict"):
    """Return the predictions of models that are the same to the last bit."""
    found = [getattr(model, predict)(X) for model in models]
    for other in found[1:]:
        assert_array_equal(other, found[0])
    return found[0]
