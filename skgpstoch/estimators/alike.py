"""Check that all ranks of a group ask for the same fit."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import torch

from ..data.arrays import fingerprint
from ..data.groups import ALONE, Group, agreed, current
from ..data.messages import internal_frames, loop_of
from ..data.row_source import RowSource
from .checkpoint_key import SILENT, described

NO_ROWS = "X has no rows on any rank."
PROBED_ROWS = 10  # of a source, by which ranks see whether they have the same one
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in default reprs; it differs between processes


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
            asked[name] = digest_of(value) if is_module else ADDRESS.sub("", described(value))
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
    digest = fingerprint(ADDRESS.sub("", repr(module)), *tensors)[:8]
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
