"""Lend torch's global generator to layers that can draw from no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from ..data.devices import fork_rng

GLOBAL_GENERATOR = threading.RLock()
"""Held by the thread whose epoch has torch's global generator to itself."""


@contextlib.contextmanager
def global_rng(device: torch.device) -> Iterator[None]:
    """Torch's global generator for this thread's fits alone; after it as it was before.

    Dropout of all kinds, RReLU, attention with dropout, and whatever calls ``torch.rand`` without a
    generator, can draw from no other. Nobody knows what a module of the user's calls, so all of
    them have it; networks of our own draw nothing, and train side by side. Fits in other threads
    wait, an epoch at a time; other code of the process cannot be made to.
    """
    with GLOBAL_GENERATOR, fork_rng(device):
        yield
