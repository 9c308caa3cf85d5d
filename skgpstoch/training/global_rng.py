"""Lend torch's global generator to layers that can draw only from it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from ..data.devices import fork_rng

GLOBAL_GENERATOR = threading.RLock()
"""Lock of the thread whose epoch uses torch's global generator exclusively."""


@contextlib.contextmanager
def global_rng(device: torch.device) -> Iterator[None]:
    """Reserve torch's global generator for this thread's fit; restore its state afterwards.

    Dropout of all kinds, RReLU, attention with dropout, and all code that calls ``torch.rand``
    without a generator can only draw from it. We cannot know what a user's module calls, so every
    user's module gets it. Our own networks draw nothing from it, so they can train in parallel.
    Fits in other threads wait, an epoch at a time; other code in the process does not wait.
    """
    with GLOBAL_GENERATOR, fork_rng(device):
        yield
