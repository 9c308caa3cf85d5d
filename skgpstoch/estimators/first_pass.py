"""The first pass over the rows of a source: their number, their labels, and a sample of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..data.array_inputs import one_output
from ..data.chunk import Chunk
from ..data.groups import ALONE, Group, agreed
from ..data.row_sample import joint_sample
from ..data.row_source import RowSource
from ..data.scan import Scan


class FirstPass(NamedTuple):
    """What a pass over the rows of a source finds.

    Parameters
    ----------
    part : RowSource
        What this rank reads of it.
    own : Scan
        Facts about these rows.
    sample : Chunk
        Random rows of all ranks; all rows, in order, if they are few.
    n_rows : int
        How many rows of all ranks have a weight.
    classes : ndarray or None
        Their labels, if targets are labels.
    """

    part: RowSource
    own: Scan
    sample: Chunk
    n_rows: int
    classes: np.ndarray | None

    @property
    def is_whole(self) -> bool:
        """Whether the sample is all rows."""
        return self.n_rows == len(self.sample)


def first_pass(
    group: Group, source: RowSource, seed: int, look: Callable[[RowSource], tuple[int, Scan]]
) -> FirstPass:
    """Read the rows of a source once, each rank its own.

    `look` reads a part, and returns the size of the sample and the facts.
    """
    with agreed(group):
        source.check_has_target()
        part = source if group is ALONE else source.share(group.rank, group.size)
        n_sample, own = look(part)
    n_rows = int(group.gather(np.array([own.n_rows])).sum())
    sample = joint_sample(group, own.sample, n_sample, seed)
    if sample is None:
        raise ValueError(f"{source!r} has no rows of positive weight.")
    if n_rows == len(sample):  # put them in order, as arrays are
        sample = sample[np.argsort(sample.rows)]
    classes = None
    if group.flag(own.classes is not None):
        classes = classes_of(group, [] if own.classes is None else own.classes)
    return FirstPass(part, own, sample, n_rows, classes)


def classes_of(group: Group, y: Any, sample_weight: Any = None) -> np.ndarray:
    """Return the labels of all ranks' rows that count."""
    y = one_output(np.asarray(y))
    counts = np.ones(len(y), dtype=bool) if sample_weight is None else np.asarray(sample_weight) > 0
    with contextlib.suppress(TypeError, IndexError):  # which the check of rows explains
        y = y[counts]
    return np.unique(group.gather(np.unique(y) if y.ndim == 1 and len(y) else y.ravel()[:0]))
