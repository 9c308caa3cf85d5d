"""The rows of a stored table as the networks of a default see them, encoded chunk by chunk."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from ..data.chunk import Chunk, checked
from ..data.level_sums import FoldMeans
from ..data.messages import muted
from ..data.row_source import RowSource
from ..data.scan import Scan
from ..data.tables import TableEncoder


class EncodedRows(RowSource):
    """The rows of a source as models see them.

    Parameters
    ----------
    source : RowSource
        The rows as they are stored.
    automatic : estimator
        It has learned how to encode rows, and how to transform targets.
    by_fold : dict of int to FoldMeans
        Encodings of levels, see :meth:`TableEncoder.learn_levels`.
    found : Scan
        What is known of this rank's rows, as they are stored.
    """

    def __init__(
        self, source: RowSource, automatic: Any, by_fold: Mapping[int, FoldMeans], found: Scan
    ) -> None:
        super().__init__(None, source.buffer_rows)
        self.source, self.automatic, self.by_fold = source, automatic, by_fold
        self.found = found

    def __repr__(self) -> str:
        return repr(self.source)

    @property
    def n_rows(self) -> int | None:
        """How many rows there are, if that is known."""
        return self.source.n_rows

    @property
    def n_units(self) -> int | None:
        """How many units there are, if their order can be changed."""
        return self.source.n_units

    def read(self, generator: np.random.Generator | None) -> Generator[Chunk, None, None]:
        """Yield chunks of numbers, with targets as they are stored."""
        for chunk in self.source.read(generator):
            yield replace(chunk, X=self.encoded(chunk)) if len(chunk) else chunk

    def encoded(self, chunk: Chunk) -> np.ndarray:
        """Return X as numbers."""
        encoder: TableEncoder = self.automatic._encoder
        try:
            with muted(True):  # only predictions warn of levels that the encoder does not know
                X = as_given(self.source, chunk.X)
                return encoder.transform_training(X, chunk.rows, self.by_fold)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{chunk.where}: {error}") from error

    def checked(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        """Yield chunks, checked, with transformed targets."""
        for chunk in super().checked(chunks):
            assert chunk.y is not None  # the first pass has seen it
            try:
                y = transformed(self.automatic, chunk.y)
            except ValueError as error:
                raise ValueError(f"{chunk.where}: {error}") from error
            yield replace(chunk, y=y)

    def share(self, rank: int, size: int) -> Self:
        """Return the share of the source, encoded in the same way."""
        return self._limited(source=self.source.share(rank, size))

    def known(self, n_sample: int) -> Scan | None:
        """Return what the first pass over the stored rows has found.

        If a target cannot be transformed, another pass over all rows has to say which one.
        """
        found = self.found
        if found.sample is None:
            return found
        sample = found.sample[:n_sample]
        try:
            if found.extremes is not None:  # of all targets, whose transformation is monotone
                transformed(self.automatic, found.extremes)
            (encoded,) = self.checked(iter([replace(sample, X=self.encoded(sample))]))
        except ValueError:
            return None
        return replace(found, sample=encoded)


def transformed(automatic: Any, y: np.ndarray) -> np.ndarray:
    """Return the targets that models are fitted to, for these targets.

    Raises
    ------
    ValueError
        If they are not finite.
    """
    if len(y) == 0:
        return y
    with np.errstate(all="ignore"):
        z = np.asarray(automatic._targets(y))
    if z is not y and not np.isfinite(z).all():
        raise ValueError(
            "target_transform must give a finite value for each target, but "
            f"{automatic.target_transform!r} does not."
        )
    return z


def with_checked_targets(chunk: Chunk) -> Chunk:
    """Return a chunk as it is stored, with y and weights that are valid."""
    none = np.empty((len(chunk), 0))
    return replace(checked(replace(chunk, X=none), (), none.dtype), X=chunk.X)


def as_given(source: RowSource, X: Any) -> Any:
    """Return what is stored as the user's transformer leaves it, if there is one."""
    return X if source.transform is None else source.inputs.transform.transform(X)
