"""Name the file that a fit saves to and resumes from."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.arrays import fingerprint, plain, readable, resolve_seed
from ..data.rows import Data
from ..recipes.warm_start import Start
from ..training.checkpoint import Checkpoint

SILENT = {"checkpoint_dir", "verbose", "device", "random_state"}  # parameters that change no model


def checkpoint_of(
    estimator: Any, data: Data, seed: int, start: Start | None, *more: Any
) -> Checkpoint:
    """Return the checkpoint of exactly this fit: parameters, data, seed and start are the same."""
    params = {k: plain(v) for k, v in sorted(estimator.get_params().items()) if k not in SILENT}
    modules = [p for p in params.values() if isinstance(p, torch.nn.Module)]
    arrays = {k: np.asarray(readable(v)) for k, v in params.items() if hasattr(v, "__array__")}
    params = {k: v for k, v in params.items() if k not in arrays}  # whose repr is abbreviated
    if start is not None:
        modules.append(start.posterior)
    tensors = [t.cpu().numpy() for m in modules for t in m.state_dict().values()]
    named_seed = None if estimator.random_state is None else seed
    versions = sys.modules["skgpstoch"].__version__, torch.__version__
    columns = [(f.name, getattr(data, f.name)) for f in fields(data)]
    given = [part for n, c in columns if c is not None for part in (n, c.shape, str(c.dtype), c)]
    arrays_of = [*arrays, *arrays.values(), *tensors]
    identity = fingerprint(versions, params, named_seed, *given, *arrays_of, *more)
    return Checkpoint(Path(estimator.checkpoint_dir), f"{type(estimator).__name__}-{identity}")


def seed_of(estimator: Any, checkpoint: Checkpoint, seed: int) -> int:
    """Return the seed of a fit: without a random_state, the same one whenever it resumes."""
    return int(checkpoint.identity[-8:], 16) if estimator.random_state is None else seed


def sampling_seed(estimator: Any) -> int:
    """Return the seed of a sample of rows; the sample identifies a fit that resumes.

    So without a random_state it is always the same, and :func:`seed_of` tells fits apart.
    """
    resumes = estimator.checkpoint_dir is not None and estimator.random_state is None
    return resolve_seed(0 if resumes else estimator.random_state)


def described(value: Any) -> str:
    """Return its repr; for an array, whose repr NumPy abbreviates, the shape and a digest."""
    value = plain(value)
    if not hasattr(value, "__array__"):
        return repr(value)
    a = np.asarray(readable(value), dtype=np.float64)
    return f"<array of shape {a.shape}, digest {fingerprint(a)[:8]}>"
