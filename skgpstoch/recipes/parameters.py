"""Parameters that recipes take unchanged from an estimator."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np

from ..data.arrays import MOST_INTEGER, plain


class OfParameters:
    """Base class of objects that are made from an estimator's parameters."""

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Make one: use `decided`, then parameters of the same names, then the defaults."""
        names = [name for name in inspect.signature(cls).parameters if name not in decided]
        has = [name for name in names if hasattr(parameters, name)]
        given = {name: plain(getattr(parameters, name)) for name in has}
        return cls(**given, **decided)


@dataclass(frozen=True)
class Training(OfParameters):
    """Training parameters as estimators have them, before "auto" is decided."""

    max_iter: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate_init: float = 0.1
    learning_rate: str = "one-cycle"
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int | None = None
    tol: float = 0.0
    dtype: str = "float32"

    def is_complete(self, status: str) -> bool:
        """Tell whether training with this final status ran to its natural end."""
        ends = ("converged", "max_iter") if self.max_iter == "auto" else ("converged",)
        return self.n_iter_no_change is None and status in ends


def positive_integers(name: str, given: Any) -> tuple[int, ...]:
    """Return the positive integers of a parameter, which may be one, several or none.

    Raises
    ------
    ValueError
        If it is anything else, rows and columns included.
    """
    found: Sequence[Any] = np.atleast_1d(np.asarray(given, dtype=object)).tolist()
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in found):
        raise ValueError(f"{name} must be positive integers, got {given!r}.")
    if any(n > MOST_INTEGER for n in found):
        raise ValueError(f"{name} must be at most {MOST_INTEGER}, got {given!r}.")
    return tuple(int(n) for n in found)
