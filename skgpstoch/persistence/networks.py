"""Refuse networks whose layers together make far more of a row than it has numbers.

Each layer of a file may be modest: two poolings to 8192, one after the other and along two axes,
make gigabytes of five rows. So fitted networks see one row without numbers (torch's device "meta"),
which computes the sizes of all that they would make, and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.arrays import Scaling
from .forms import DAMAGE
from .registry import ELEMENTWISE, KEEPING_SIZES, PACKAGE, package_of

FREE_NUMBERS = 2**17  # that an operation may make of a row
MOST_OF_A_ROW = 256  # as many numbers as the row has; twice those of a convolution to 128 channels
BYTES_EACH = 4  # of the file, as a layer with weights has for its outputs
MOST_OPERATIONS = 16  # of the largest size
FREE_WORK = 2**23  # numbers that convolutions and poolings may read for a row, again and again
POSITIONS = 4096  # of the row, at each of which a layer may use all weights of the file
MOST_LAYERS = 100  # of a network that no row needs to go through
FREE_LAYERS = 500  # that one row may go through; a layer takes milliseconds
SECONDS_OF_LAYER = 0.01  # of all that a file may have; usual ones take a tenth
BYTES_OF_LAYER = 2**12  # of the file, for which there may be one more
WITH_MEMBERS = {"InputScales", "MemberLinear", "PeriodicInputs"}
OF_MEMBERS = {"InputLimits", "NearFeatures", "OneMember", *WITH_MEMBERS}
OF_USER = "OfUser"


class Networks:
    """Check the networks of fitted estimators: each once, because estimators may share them.

    What fails for one row would otherwise go unchecked, and may work for five. Networks with the
    user's own layers are left out, because no code of the user's runs at load.

    Parameters
    ----------
    n_bytes : int
        Size of the file.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.n_columns: dict[int, int] = {}  # of the rows of each network
        self.layers_left = FREE_LAYERS + n_bytes // BYTES_OF_LAYER
        self.seconds_left = SECONDS_OF_LAYER * self.layers_left

    def check(self, networks: Iterable[nn.Module], scaling: Any) -> None:
        """Raise a ValueError if an estimator's networks would make too much of a row, or fail."""
        n_columns = np.size(scaling.offset) if isinstance(scaling, Scaling) else 0
        for network in networks:
            known = self.n_columns.setdefault(id(network), -1)
            if known not in (-1, n_columns):
                raise ValueError(f"a network has rows of {known} columns, and of {n_columns}")
            if known == -1:
                self.check_network(network, n_columns)
                self.n_columns[id(network)] = n_columns

    def check_network(self, network: nn.Module, n_columns: int) -> None:
        """Raise a ValueError if a network would make too much of a row, or fails."""
        kinds = {type(layer) for layer in network.modules()}
        if not {package_of(cls) for cls in kinds} <= {"torch", PACKAGE}:
            return
        ours = {cls.__name__ for cls in kinds if package_of(cls) == PACKAGE}
        if others := ours - OF_MEMBERS - {OF_USER}:
            raise ValueError(f"a network cannot have layers of the class {min(others)}")
        layers = [
            type(layer).__name__ for _, layer in network.named_modules(remove_duplicate=False)
        ]
        others = set(layers).difference(ELEMENTWISE.split(), OF_MEMBERS, {OF_USER})
        if others and not WITH_MEMBERS.isdisjoint(layers):  # whose rows are along the second axis
            raise ValueError(f"networks of several members cannot have a {min(others)}")
        if is_modest(layers):
            return
        if not n_columns:
            raise ValueError("an estimator has networks, but no scaling of their columns")
        self.layers_left -= len(layers)
        if self.layers_left < 0:
            raise ValueError("its networks have too many layers for so small a file")
        self.check_row(network, n_columns)

    def check_row(self, network: nn.Module, n_columns: int) -> None:
        """Raise a ValueError if a network cannot take a row, or makes too much of it."""
        limit = max(FREE_NUMBERS, MOST_OF_A_ROW * n_columns, self.n_bytes // BYTES_EACH)
        work = max(FREE_WORK, POSITIONS * self.n_bytes // BYTES_EACH)
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        dtype = next((p.dtype for p in network.parameters()), torch.float64)
        unknown = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
        row = torch.empty(1, n_columns, dtype=dtype, device="meta")
        sizes = NumbersMade(limit, work, self.seconds_left)
        try:
            with torch.no_grad(), sizes:
                functional_call(network, unknown, (row,))
        except DAMAGE as error:
            if not sizes.are_many:
                raise ValueError(f"its network cannot take one row: {error}") from error
            raise ValueError(
                f"its network makes more than {limit} numbers of a row, or reads more than {work}, "
                "or takes too long for a file of its size"
            ) from error
        self.seconds_left -= sizes.seconds


def check_members(owner: nn.Module, network: nn.Module) -> None:
    """Raise a ValueError if layers of a network have other members than the module that owns it."""
    layers = [m for m in network.modules() if type(m).__name__ in WITH_MEMBERS]
    known = {len(p) for layer in layers for p in layer.parameters(recurse=False)} or {1}
    expected = getattr(owner, "n_members", 1)
    if known != {expected}:
        raise ValueError(
            f"layers of a network of {expected} members have {', '.join(map(str, sorted(known)))}"
        )


def is_modest(layers: list[str]) -> bool:
    """Tell whether a network has a weight for each number that it makes of a row.

    So no row has to go through it, because to import what the device "meta" needs takes torch three
    seconds. Members and layers of torch together would multiply.
    """
    others = set(layers).difference(KEEPING_SIZES.split(), {OF_USER})
    return len(layers) <= MOST_LAYERS and (others <= {"Linear"} or others <= OF_MEMBERS)


class NumbersMade(TorchDispatchMode):
    """Stop at the first operation whose result is too large, or when all of them are.

    Parameters
    ----------
    limit : int
        Most numbers that an operation may make.
    work : int
        Most numbers that all operations together may read.
    most_seconds : float
        Most time of this thread that they may take.
    """

    n_numbers, n_read, are_many = 0, 0, False  # so far

    def __init__(self, limit: int, work: int, most_seconds: float) -> None:
        self.limit, self.work, self.most_seconds = limit, work, most_seconds
        self.begun = time.thread_time()
        super().__init__()

    @property
    def seconds(self) -> float:
        """Time of this thread so far."""
        return time.thread_time() - self.begun

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        several = found if isinstance(found, tuple) else (found,)
        made = [a.numel() for a in several if isinstance(a, Tensor)]
        (copied, read), most = windows_of(func, args), max(made, default=0)
        self.n_numbers += sum(made)
        self.n_read += read * most
        is_large = max(most, max(self.n_numbers, copied * most) / MOST_OPERATIONS) > self.limit
        is_slow = self.seconds > self.most_seconds  # some layers take 80 ms each
        if is_large or is_slow or self.n_read > self.work:
            self.are_many = True
            raise ValueError("a network makes too many numbers")
        return found


def windows_of(func: Any, args: Any) -> tuple[float, int]:
    """Return how many numbers a convolution or a pooling copies, and reads, for one that it makes.

    A convolution copies the windows of all channels of its output at once.
    """
    if "convolution" in func.__name__:
        weights = args[1].shape
        return math.prod(weights[1:]) / weights[0], math.prod(weights[1:])
    if "pool" in func.__name__ and "adaptive" not in func.__name__:
        return 0, int(np.prod(args[1]))
    return 0, 1
