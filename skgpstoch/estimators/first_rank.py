"""Come to one model on all ranks: they ask for the same, and rank 0 fits or all train in step."""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import copy
import functools
import inspect
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..data.arrays import fingerprint, readable
from ..data.columns import is_frame, narwhals
from ..data.groups import ALONE, Group, WorkerLostError, agreed, current, doing, using
from ..data.messages import internal_frames, loop_of, muted, without_addresses
from ..data.row_source import RowSource
from ..training.checkpoint import SILENT, described
from ..training.interrupts import (
    handle,
    handled_by,
    is_marked,
    marking,
    share_interrupt,
    tell,
    was_interrupted,
)
from .context import warn_of

AFTER_TRAINING = "The fit was interrupted after training had ended; the model is complete."
BEAT = 0.5  # seconds between two signs of life of rank 0, while the others wait for its fit


def fit_on_first(estimator: Any, group: Group, fit: Callable[[], Any]) -> None:
    """Let rank 0 fit while others wait, and give them the result, which no interrupt stops."""
    with marking_on_ranks(group), doing(f"{type(estimator).__name__}.fit, by rank 0 for all"):
        on_first(group, fit)
        adopt(estimator, group)
        is_late = is_marked()
    if is_late:
        tell(AFTER_TRAINING)


@contextlib.contextmanager
def training_together(estimator: Any, group: Group) -> Iterator[None]:
    """Train in step in the block: interrupts leave marks, rank 0 warns, and all get its model."""
    with doing(f"{type(estimator).__name__}.fit, training"), muted(group.rank > 0):
        with marking_on_ranks(group):
            yield
            adopt(estimator, group)
            is_late = is_marked()
        warn_of(estimator)
    if is_late:
        tell(AFTER_TRAINING)


def marking_on_ranks(group: Group) -> contextlib.AbstractContextManager[None]:
    """Let the first interrupt leave a mark if there are several ranks, which would lose a rank."""
    return marking() if group.size > 1 else contextlib.nullcontext()


def on_first(group: Group, work: Callable[[], Any]) -> None:
    """Let rank 0 work, however long it takes; others wait as long as it gives signs of life.

    Raises
    ------
    Exception
        On every rank, if the work fails.
    WorkerLostError
        If a rank is lost meanwhile; rank 0 then ends its work, as far as it can be interrupted.
    """
    if group.size == 1:
        with using(ALONE):
            work()
        return
    error: BaseException | None = None
    if group.rank == 0:
        try:
            with signs_of_life(group), using(ALONE):
                work()
        except WorkerLostError:
            raise
        except BaseException as raised:
            error = raised
        told(group, is_over=True)
    else:
        wait(group)
    if error is not None and not isinstance(error, Exception):
        with contextlib.suppress(RuntimeError):
            group.agree(RuntimeError(f"the fit was ended by {type(error).__name__}"))
        raise error
    group.agree(error)
    if group.flag(was_interrupted()):
        share_interrupt()


def told(group: Group, is_over: bool = False) -> tuple[bool, bool]:
    """Tell whether the work is over, and whether a waiting rank was interrupted; all must ask."""
    flags = torch.tensor([is_over, is_marked()])
    group.max_(flags)
    over, came = flags.tolist()
    return over, came


def wait(group: Group) -> None:
    """Wait for rank 0, and tell it of an interrupt here."""
    with marking():
        while not told(group)[0]:
            pass


@dataclass
class Pulse:
    """Signs of life of rank 0, and what it hears from the others.

    Attributes
    ----------
    is_over : Event
        Set when the work is done.
    lost : WorkerLostError or None
        The error, if a rank is lost.
    is_handled : bool
        Whether the work can be interrupted.
    is_told : bool
        Whether another rank's interrupt is on its way.
    """

    group: Group
    is_over: threading.Event = field(default_factory=threading.Event)
    lost: WorkerLostError | None = None
    is_handled: bool = False
    is_told: bool = False

    def beat(self) -> None:
        """Exchange every few moments whether anything has happened, until the work is over."""
        has_come = False
        try:
            while not self.is_over.wait(BEAT):
                _, came = told(self.group)
                if came and not has_come:
                    self.interrupt()
                has_come = came
        except WorkerLostError as error:
            self.lost = error
            self.interrupt()

    def interrupt(self) -> None:
        """Interrupt the work, which is done in the main thread."""
        if self.is_handled and not self.is_over.is_set():
            self.is_told = True
            _thread.interrupt_main()

    def handle(self) -> None:
        """End the work as Ctrl-C does, or with the error of a lost rank.

        A terminal interrupts all ranks at once, which is one Ctrl-C.
        """
        if self.lost is not None:
            raise self.lost
        if not (self.is_told and was_interrupted()):
            handle()
        self.is_told = False


@contextlib.contextmanager
def signs_of_life(group: Group) -> Iterator[None]:
    """Keep telling the others, from another thread, that the block is still running."""
    pulse = Pulse(group)
    with handled_by(pulse.handle) as pulse.is_handled:
        beat = functools.partial(contextvars.copy_context().run, pulse.beat)
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            pulse.is_over.set()
            thread.join()
            if pulse.lost is not None:
                raise pulse.lost


def adopt(estimator: Any, group: Group) -> None:
    """Take what rank 0 has fitted, so that all ranks have the same model, to the last bit.

    Rank 0 takes it too, because the rounding of sums depends on how arrays lie in memory.
    """
    if group.size == 1:
        return
    content = b""
    with agreed(group):
        if group.rank == 0:
            content = pickle.dumps(without(estimator, own_names(estimator)))
    fitted = pickle.loads(group.first_bytes(content))  # from a process of the same program
    kept = own_names(estimator)
    found = {name: value for name, value in vars(estimator).items() if name in kept}
    vars(estimator).clear()
    vars(estimator).update({**found, **vars(fitted)})


def own_names(estimator: Any) -> set[str]:
    """Return the names of what each rank keeps: parameters, and scikit-learn's callbacks."""
    callbacks = {name for name in vars(estimator) if "callback" in name}
    return callbacks | set(estimator.get_params(deep=False))


def without(estimator: Any, names: set[str]) -> Any:
    """Return a shallow copy without these attributes."""
    bare = copy.copy(estimator)
    for name in names & set(vars(bare)):
        delattr(bare, name)
    return bare


# ---- estimators that do not train in groups ------------------------------------------------------


def fits_on_first(fit: Callable) -> Callable:
    """In a group, run `fit` on rank 0 with the rows of all ranks, and give all ranks the result."""

    @functools.wraps(fit)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if (group := current()).size == 1:
            return fit(*args, **kwargs)
        given = inspect.signature(fit).bind(*args, **kwargs).arguments
        estimator = given.pop("self")
        if given.get("y_std") is not None:
            raise ValueError("y_std must be None where ranks fit together, as only rank 0 fits.")
        with doing(f"{type(estimator).__name__}.fit, gathering rows"):
            check_alike(estimator, group, given["X"])
            rows = gathered(group, given["X"], given["y"], given.get("sample_weight"))
        rows = rows if rows[-1] is not None else rows[:2]
        fit_on_first(estimator, group, lambda: fit(estimator, *rows))
        return estimator

    return wrapped


def gathered(group: Group, *columns: Any) -> tuple[Any, ...]:
    """Return X, y and weights of all ranks, in the order of ranks, on rank 0.

    Raises
    ------
    ValueError
        On every rank, if no rank has rows, or columns differ.
    """
    with agreed(group):
        sent = pickle.dumps(columns if len(columns[0]) else None)
    shares = group.shares(torch.frombuffer(bytearray(sent), dtype=torch.uint8))
    with agreed(group):
        if group.rank == 0:
            parts = [pickle.loads(share.numpy().tobytes()) for share in shares]
            return joined_rows({rank: part for rank, part in enumerate(parts) if part is not None})
    return columns


def joined_rows(parts: dict[int, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return X, y and weights of ranks that have rows, put together."""
    if not parts:
        raise ValueError(NO_ROWS)
    every_X, every_y, weights = zip(*parts.values(), strict=True)
    for k, (X, y, _) in parts.items():
        if y is None or np.shape(y)[:1] != (len(X),):
            raise ValueError(f"y must have {len(X)} rows on rank {k}, as many as X, got {y!r:.80}.")
    check_kinds("y", [np.asarray(readable(y, "y")).dtype for y in every_y])
    weight = None
    if any(w is not None for w in weights):
        weight = np.concatenate(
            [np.ones(len(X)) if w is None else w for X, w in zip(every_X, weights, strict=True)]
        )
    return joined(every_X), np.concatenate([np.asarray(readable(y, "y")) for y in every_y]), weight


def check_kinds(name: str, types: list[np.dtype]) -> None:
    """Check that no rank has text where others have numbers."""
    if len({kind.kind in "OUS" for kind in types}) > 1:
        raise ValueError(
            f"{name} must be of the same kind on all ranks, got {', '.join(map(str, types))}."
        )


def joined(tables: Sequence[Any]) -> Any:
    """Return the rows of arrays, frames or lists."""
    if all(is_frame(X) for X in tables):
        nw = narwhals()
        frames = [nw.from_native(X, eager_only=True) for X in tables]
        check_columns([list(frame.columns) for frame in frames])
        return nw.concat(frames).to_native()
    if all(isinstance(X, list) and X and np.ndim(X[0]) == 0 for X in tables):
        return [x for X in tables for x in X]  # objects that a kernel takes
    arrays = [np.asarray(readable(X, "X", takes_missing=True)) for X in tables]
    check_columns([X.shape[1:] for X in arrays])
    check_kinds("X", [X.dtype for X in arrays])
    return np.concatenate(arrays)


def check_columns(columns: list[Any]) -> None:
    """Check that all shares are of the same table."""
    if any(each != columns[0] for each in columns):
        said = "; ".join(map(str, columns))
        raise ValueError(f"X must have the same columns on all ranks that have rows, got {said}.")


# ---- fits that all ranks ask for -----------------------------------------------------------------


NO_ROWS = "X must have rows of positive weight, got none in any process."
PROBED_ROWS = 10  # of a source, by which ranks see whether they have the same one


def check_alike(estimator: Any, group: Group, X: Any) -> None:
    """Check that ranks have estimators with the same parameters, and rows of the same kind.

    Raises
    ------
    ValueError
        On every rank; it names the parameter that differs.
    """
    if group is ALONE:
        estimator._validate_params()
        return
    if group.size > 1:
        refuse_loop()
    with agreed(group):
        estimator._validate_params()
        asked = asked_for(estimator, X)
    told = [json.loads(t) for t in group.gather(np.array([json.dumps(asked)], dtype=object))]
    names = {name for each in told for name in each}
    for name in sorted(names, key=lambda name: (name != "estimator", name)):
        if len({each.get(name) for each in told}) > 1:
            group.check_same(name, asked.get(name, "nothing"))


def asked_for(estimator: Any, X: Any) -> dict[str, str]:
    """Describe what must be the same on all ranks."""
    asked = {"estimator": type(estimator).__name__, "X": "an array or a frame"}
    if isinstance(X, RowSource):
        asked["X"] = described_rows(X)
    else:
        check_has_rows(X)
    for name, value in estimator.get_params().items():
        if name not in SILENT:
            is_module = isinstance(value, torch.nn.Module)
            asked[name] = digest_of(value) if is_module else described(value, name)
    is_saved = getattr(estimator, "checkpoint_dir", None) is not None
    asked["checkpoint_dir"] = "a folder" if is_saved else "None"
    if getattr(estimator, "warm_start", False):
        start = getattr(estimator, "posterior_", None)
        asked["warm_start"] = f"True from {'no fit' if start is None else digest_of(start)}"
    return asked


def described_rows(source: RowSource) -> str:
    """Describe a source, which must be the same on all ranks, by its first rows."""
    first = source.example[:PROBED_ROWS]
    held = [array for name, array in first.arrays().items() if name != "rows"]
    digest = fingerprint(*(np.asarray(array).tolist() for array in held))[:8]
    n_units = "" if source.n_units is None else f" of {source.n_units} units"
    return f"{type(source).__name__}{n_units}, whose first rows have the digest {digest}"


def check_has_rows(X: Any) -> None:
    """Raise a TypeError if X has no length."""
    try:
        len(X)
    except TypeError as error:
        raise TypeError(f"X must have rows, as an array or a frame, got {X!r:.80}.") from error


def digest_of(module: torch.nn.Module) -> str:
    """Describe a module's layers and tensors."""
    tensors = [t.detach().cpu().numpy() for t in module.state_dict().values()]
    digest = fingerprint(without_addresses(repr(module)), *tensors)[:8]
    return f"<{type(module).__name__}, digest {digest}>"


def refuse_loop() -> None:
    """Raise a ValueError in scikit-learn's loops, which would decide by the rows of one rank."""
    if any(loop_of(frame) is not None for frame in internal_frames(sys._getframe(1))):
        raise ValueError(
            "A search or cross-validation must not run inside process_group: it would "
            "split the rows of each rank separately, and ranks may choose differently. "
            "Search outside of process_group on a sample of the rows, then fit the best "
            "estimator inside it."
        )


def refuse_group(method: str) -> None:
    """Raise a ValueError in a group, if a method cannot do the same on all ranks."""
    if current().size > 1:
        raise ValueError(
            f"{method} cannot run inside process_group, because it adds rows to one model "
            "chunk by chunk. Call it outside of process_group, or call fit with all rows "
            "inside."
        )
