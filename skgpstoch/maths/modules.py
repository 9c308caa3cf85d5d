"""Modules of torch that are quick to copy and to switch between training and evaluation."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, Self

from torch import nn

CONTAINERS = (dict, OrderedDict, set)


class Module(nn.Module):
    """A module of torch, which has a dozen containers of hooks, all empty."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same copy as without this method, in half the time.

        ``copy.deepcopy`` takes most of its time to find that containers are empty.
        """
        other = memo[id(self)] = type(self).__new__(type(self))
        for name, value in vars(self).items():
            is_empty = type(value) in CONTAINERS and not value
            vars(other)[name] = type(value)() if is_empty else copy.deepcopy(value, memo)
        return other

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers, as torch does, without a look at what kind a bool is."""
        vars(self)["training"] = mode
        for child in self.children():
            child.train(mode)
        return self
