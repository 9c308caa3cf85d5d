"""torch's optimisers without the imports for torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of torch's optimisers without its wrappers for torch.compile."""
    return getattr(method, "__wrapped__", method)


class LightOptimizer(Optimizer):
    """An optimiser that does not import torch._dynamo.

    That import takes 1.4 to 3 s, and adds a warning filter.
    """

    add_param_group = unwrapped(Optimizer.add_param_group)
    state_dict = unwrapped(Optimizer.state_dict)
    load_state_dict = unwrapped(Optimizer.load_state_dict)
