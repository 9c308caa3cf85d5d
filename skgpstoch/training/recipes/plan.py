"""Plans: what "auto" means for a given number of rows, and where training starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...data.arrays import MOST_INTEGER, plain
from ...data.rows import UNSEEN
from ...kernels import Kernel
from ..history import History
from ..optimizers import Schedule, constant
from ..tables import Sizes as Sizes


@dataclass(frozen=True)
class Folds:
    """Rows that are held out: the first ones, in random order.

    Parameters
    ----------
    n_folds : int, default=1
        Number K of disjoint folds, one for each member of an ensemble.
    size : int, default=0
        Number of rows in each fold.
    n_unseen : int, default=0
        Number of rows before the folds. They are in no fold, and no member is trained on them.
    """

    n_folds: int = 1
    size: int = 0
    n_unseen: int = 0

    @property
    def n_untrained(self) -> int:
        """Number of rows that no member is trained on; with K > 1, others train on each fold."""
        return self.n_unseen + (self.size if self.n_folds == 1 else 0)

    @classmethod
    def of(cls, n_rows: int, fraction: float, n_folds: int = 1) -> Folds:
        """Return folds that each have this fraction of the rows."""
        most = n_rows // max(2, n_folds)
        return cls(n_folds, min(max(1, round(fraction * n_rows)), most))

    def numbers(self, n_rows: int, device: torch.device) -> Tensor | None:
        """Return the fold of each row, (N,), −2 for unseen rows, −1 for the rest; None if none."""
        if not self.size:
            return None
        fold = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
        fold[: self.n_unseen] = UNSEEN
        for k in range(self.n_folds):
            start = self.n_unseen + k * self.size
            fold[start : start + self.size] = k
        return fold


@dataclass(frozen=True)
class Plan:
    """The settings of a fit, after every "auto" has been decided."""

    solver: str
    dtype: str  # floating-point type of the tensors
    max_iter: int  # epochs
    batch_size: int
    schedule: Schedule = constant
    patience: float = math.inf  # epochs without an improvement after which to stop
    tol: float = 0.0  # least improvement that counts, nats per row
    holds_out: bool = False
    evaluates: bool = False  # whether epochs are scored to keep the best; else the last is kept
    folds: Folds = field(default=Folds())
    n_inducing: int = 0  # M, or the number of basis functions
    n_orthogonal: int = 0  # M₂
    n_components: int = 0  # random Fourier features
    beta: float = 1.0
    rate: float = 1.0  # learning rate
    shuffles: bool = True  # whether rows are shuffled
    n_restarts: int = 0  # additional runs from other hyper-parameters; the best run is kept
    window_rows: float = 0.0  # least number of rows that running statistics average over
    all_rows: str = ""  # if all rows are points: "exact" evidence, or "sites" of each row
    start_rows: int = 0  # rows whose evidence, or its bound, is maximised first; 0 for none
    seeks_shorter: tuple[str, ...] = ()  # ends of training after which length-scales are sought
    only_scales: bool = False  # whether the start takes no more than length-scales from them


def within_sample(plan: Plan, n_sample: int) -> Plan:
    """Return a plan that holds out at most half of the `n_sample` rows in memory."""
    folds = plan.folds
    if 2 * (folds.n_unseen + folds.n_folds * folds.size) <= n_sample:
        return plan
    n_unseen = min(folds.n_unseen, n_sample // 20)
    size = min(folds.size, (n_sample // 2 - n_unseen) // folds.n_folds)
    return replace(plan, folds=replace(folds, size=size, n_unseen=n_unseen))


def epochs(n_steps: int, n_rows: int, batch_size: int) -> int:
    """Return the number of epochs that make at least this number of steps."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))


def overfit_patience(n_epochs: int) -> int:
    """Return after how many epochs, in which only the fit to training rows improves, networks stop.

    *Measured*: on none of 21 tables a better score came after a quarter of the epochs.
    """
    return math.ceil(n_epochs / 4)


# ---- parameters as estimators have them ----------------------------------------------------------


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

    @property
    def ends(self) -> tuple[str, ...]:
        """Natural ends of training."""
        return ("max_iter", "converged") if self.max_iter == "auto" else ("converged",)

    def is_complete(self, history: History) -> bool:
        """Tell whether training ran to its natural end."""
        return self.n_iter_no_change is None and history.status in self.ends

    def is_enough(self, history: History) -> bool:
        """Tell whether it did, or until more of it gains nothing, though parameters may move."""
        has_settled = self.n_iter_no_change is None and history.has_settled()
        return self.is_complete(history) or has_settled


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


# ---- where training starts -----------------------------------------------------------------------


class Start(NamedTuple):
    """A model from which a fit starts.

    Parameters
    ----------
    posterior : Posterior
        The fitted posterior, or another object with its `model`.
    changed : mapping of str to str, default={}
        Structural parameters that have changed since that fit, each with a description such as
        "n_inducing=20 (before: 10)".
    is_fixed : bool, default=False
        Whether kernel, likelihood and points stay as they were fitted.
    keeps_q : bool, default=True
        Whether q(w) starts as it was fitted, if `is_fixed` or if gradients learn it; otherwise it
        starts at the prior.
    is_new : bool, default=False
        Whether the model was made for this fit, which then trains it; otherwise it trains a copy.
    """

    posterior: Any
    changed: Mapping[str, str] = {}
    is_fixed: bool = False
    keeps_q: bool = True
    is_new: bool = False

    def describe_changes(self) -> str:
        """Return what has changed, for an error message."""
        return ", ".join(self.changed.values())

    def check_unchanged(self, names: tuple[str, ...] | None = None) -> None:
        """Raise a ValueError if any of these parameters, or any at all, has changed."""
        changed = [text for name, text in self.changed.items() if names is None or name in names]
        if changed:
            raise ValueError(
                "warm_start=True continues the model that was fitted before, but "
                f"{', '.join(changed)} needs a different one. Set these parameters "
                "back, or fit with warm_start=False."
            )

    def number(self, name: str, asked: int | str, n_fitted: int) -> int:
        """Return the number of fitted points; if the parameter has changed, they must agree."""
        # An unchanged parameter may exceed it, because there were too few rows to choose from.
        return given_number(asked, name, n_fitted) if name in self.changed else n_fitted


def given_number(asked: int | str, name: str, n_given: int) -> int:
    """Return the number of given points; raise a ValueError if the parameter differs from it."""
    if asked not in ("auto", n_given):
        raise ValueError(
            f"{name}={asked} must be 'auto' or {n_given}, the number of points that are "
            "given or, with warm_start, were fitted before."
        )
    return n_given


OTHER_SHAPE = (
    "warm_start=True needs a model of the same shape as before, but {} changes it. Set it back, or "
    "fit with warm_start=False."
)


def load_fitted(module: nn.Module, fitted: nn.Module, start: Start) -> None:
    """Copy the parameters of a fitted module, and its buffers except those of kernels.

    Raises
    ------
    ValueError
        If the fitted module has other parameters.
    """
    given, wanted = dict(fitted.named_parameters()), dict(module.named_parameters())
    same = given.keys() == wanted.keys()
    if not same or any(given[name].shape != wanted[name].shape for name in wanted):
        raise ValueError(
            OTHER_SHAPE.format(start.describe_changes() or "the number of outputs or classes in y")
        )
    buffers = dict(module.named_buffers())
    of_kernels = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, Kernel))
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
        for name, buffer in fitted.named_buffers():
            fits = name in buffers and buffers[name].shape == buffer.shape
            if fits and not name.startswith(of_kernels):
                buffers[name].copy_(buffer)
