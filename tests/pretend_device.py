"""A pretend accelerator: tensors that say they are on the device "pretend:0", and hold CPU data.

It refuses what CUDA refuses: to meet a tensor of the CPU that has a dimension, to become an array,
to draw from a generator of another device. What it computes, it computes on the CPU, so that the
same operations give the same bits. It counts operations, copies from and to the host, and waits,
where the host asks what a tensor holds; it knows how many bytes its tensors keep alive, and runs
out of memory at a budget.

It stands on torch's Python backend for PrivateUse1, which :func:`install` registers, once a
process. All else that is changed in torch is changed for the time of :func:`pretending` alone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
import unittest.mock
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "pretend"
SETUP = "_setup_privateuseone_for_python_backend"
WHY_NOT = None  # why there can be no such device in this process
if not hasattr(backend_registration, SETUP):
    WHY_NOT = f"torch {torch.__version__} has no backends in Python"
elif torch.cuda.is_available():  # beside which it would be another process than users have
    WHY_NOT = "a pretend device beside a CUDA device"
COPIES = {"_to_copy", "copy_", "copy", "_copy_from", "_copy_from_and_resize"}
WAITS = {  # CUDA goes on when it knows what a tensor holds
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_linalg_check_errors",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "_linalg_eigh",  # which reads LAPACK's error codes
    "_linalg_svd",
    "linalg_eig",
    "linalg_lstsq",
    "multinomial",  # which checks what it is given
    "bincount",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
LISTS = (list, tuple)
FILLING = {"fill_", "fill", "masked_fill", "masked_fill_", *INDEXING}  # from a number of the host


@dataclass
class Traffic:
    """What the device was asked to do."""

    operations: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    to_device: int = 0
    to_host: int = 0
    alive: int = 0  # bytes
    peak: int = 0
    budget: float = float("inf")

    def clear(self) -> None:
        """Forget all but what is alive."""
        self.operations.clear()
        self.waits.clear()
        self.to_device = self.to_host = 0
        self.peak = self.alive

    @property
    def n_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def n_waits(self) -> int:
        return sum(self.waits.values())


TRAFFIC = Traffic()


# ---- tensors -------------------------------------------------------------------------------------

_data = torch.Tensor.data


class PretendTensor(torch.Tensor):
    """A tensor on the device; `raw` has its numbers."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor, requires_grad: bool = False) -> PretendTensor:
        strided = {}
        if raw.layout == torch.strided:
            strided = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            **strided,
            layout=raw.layout,
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.raw = counted(raw)
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return _data.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        _data.__set__(self, value)
        self.raw = raw_of(value)

    def __repr__(self) -> str:
        return f"PretendTensor({self.raw})"

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
            "tensor to host memory first."
        )

    def tolist(self) -> Any:
        TRAFFIC.waits["tolist"] += 1
        return self.raw.tolist()

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        if id(self) not in memo:
            copied = PretendTensor(self.raw.detach().clone())
            is_parameter = isinstance(self, torch.nn.Parameter)
            copied = torch.nn.Parameter(copied) if is_parameter else copied
            memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A file says that its tensors were on the device, as those of CUDA do."""
        shape, numbers = tuple(self.shape), torch.empty(self.numel(), dtype=self.dtype)
        numbers.copy_(self.raw.detach().reshape(-1))
        text = numbers.view(torch.uint8).numpy().tobytes().hex() if numbers.numel() else ""
        is_parameter = isinstance(self, torch.nn.Parameter)
        return restored, (text, str(self.dtype), shape, is_parameter, self.requires_grad)


def raw_of(value: Any) -> Any:
    """The tensor of the CPU inside."""
    return value.raw if isinstance(value, PretendTensor) else value


def restored(
    text: str, kind: str, shape: tuple, is_parameter: bool, requires_grad: bool
) -> torch.Tensor:
    """What a file holds."""
    dtype = getattr(torch, kind.removeprefix("torch."))
    numbers = torch.frombuffer(bytearray.fromhex(text), dtype=dtype) if text else torch.empty(0)
    made = PretendTensor(numbers.to(dtype).reshape(shape).clone())
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


def located(value: Any, device: torch.device) -> Any:
    """What was loaded, where it is to be; dicts keep what torch keeps on them."""
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach().to(device), value.requires_grad)
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        found = copy.copy(value)
        found.update((key, located(part, device)) for key, part in value.items())
        return found
    return type(value)(located(v, device) for v in value) if type(value) in LISTS else value


_load = torch.load


def load(file: Any, map_location: Any = None, **options: Any) -> Any:
    """As torch.load: tensors come to `map_location`, or where they were."""
    if map_location is None:
        return _load(file, **options)
    return located(_load(file, map_location="cpu", **options), torch.device(map_location))


class PretendGenerator(torch.Generator):
    """A generator of either device, as both draw the same numbers."""

    def __new__(cls, device: Any = "cpu") -> PretendGenerator:
        made = super().__new__(cls, device="cpu" if is_ours(device) else device)
        made.is_ours = is_ours(device)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0) if self.is_ours else torch.device("cpu")


def is_ours(device: Any) -> bool:
    """Whether this names the pretend device."""
    return device is not None and torch.device(device).type == NAME


# ---- memory --------------------------------------------------------------------------------------

_storages: dict[int, weakref.ref] = {}


def counted(raw: torch.Tensor) -> torch.Tensor:
    """Count the memory of a tensor as long as it is alive; a view has that of what it looks at."""
    if raw.layout != torch.strided:
        return raw
    storage = raw.untyped_storage()
    key, n_bytes = storage._cdata, storage.nbytes()
    if key in _storages:
        return raw
    if TRAFFIC.alive + n_bytes > TRAFFIC.budget:
        raise torch.OutOfMemoryError(
            f"{NAME} out of memory: {n_bytes} bytes are asked for, {TRAFFIC.alive} are in use, "
            f"of {TRAFFIC.budget}"
        )
    # torch keeps the object as long as the memory; finalizers of weakref's own take twice as long
    _storages[key] = weakref.ref(storage, functools.partial(_freed, key, n_bytes))
    TRAFFIC.alive += n_bytes
    TRAFFIC.peak = max(TRAFFIC.peak, TRAFFIC.alive)
    return raw


def _freed(key: int, n_bytes: int, storage: weakref.ref) -> None:
    _storages.pop(key, None)
    TRAFFIC.alive -= n_bytes


# ---- operations ----------------------------------------------------------------------------------


def mapped(change: Any, value: Any) -> Any:
    """Arguments, or what was found, with other tensors; quicker than torch's function for trees."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, LISTS):
        return type(value)([mapped(change, part) for part in value])
    if isinstance(value, dict):
        return {name: mapped(change, part) for name, part in value.items()}
    return value


def check_devices(func: Any, name: str, args: tuple, tensors: list[torch.Tensor]) -> None:
    """Raise as CUDA does where tensors of both devices meet that may not."""
    others = [a for a in tensors if not isinstance(a, PretendTensor)]
    if not others or len(others) == len(tensors) or name in COPIES:
        return
    onto_host = isinstance(args[0], torch.Tensor) and not isinstance(args[0], PretendTensor)
    if name in INDEXING and not onto_host:
        values = args[2:3] if name != "index" else ()
        if all(isinstance(v, PretendTensor) or v.ndim == 0 for v in values):
            return  # indices may be on the host
    numbers = all(other.ndim == 0 for other in others)
    in_place_on_host = onto_host and torch.Tag.inplace in func.tags
    if numbers and not in_place_on_host and torch.Tag.pointwise in func.tags:
        return
    if numbers and not onto_host and name in FILLING:
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 "
        f"and cpu! ({func})"
    )


def target_of(tensors: Iterable[torch.Tensor], kwargs: dict) -> bool:
    """Whether the result is on the device."""
    if kwargs.get("device") is not None:
        return is_ours(kwargs["device"])
    return any(isinstance(a, PretendTensor) for a in tensors)


def compute(func: Any, args: tuple, kwargs: dict) -> Any:
    """Compute on the CPU what the device is asked for, and count it."""
    name = name_of(func)
    tensors: list[torch.Tensor] = []
    given: dict[int, torch.Tensor] = {}

    def raw(value: torch.Tensor) -> torch.Tensor:
        inside = raw_of(value)
        tensors.append(value)
        given[id(inside)] = value
        return inside

    def placed(value: torch.Tensor) -> torch.Tensor:
        if id(value) in given:  # in place, or out=
            return given[id(value)]
        return PretendTensor(value) if ours else value

    raw_args, raw_kwargs = mapped(raw, args), mapped(raw, kwargs)
    ours = target_of(tensors, kwargs)
    check_devices(func, name, args, tensors)
    count(name, args, ours)
    try:
        if name in ("copy_", "_copy_from"):
            target, source = (0, 1) if name == "copy_" else (1, 0)
            raw_args[target].copy_(raw_args[source])
            return args[target]
        if kwargs.get("device") is not None:
            raw_kwargs["device"] = torch.device("cpu")
        found = func(*raw_args, **raw_kwargs)
        if name == "_to_copy" and found is raw_args[0]:
            found = found.clone()
        return mapped(placed, found)
    finally:  # who keeps an error keeps these
        given.clear()
        tensors.clear()


@functools.cache
def name_of(func: Any) -> str:
    """What an operation is called, whatever its arguments are."""
    return func.overloadpacket.__name__


def count(name: str, args: tuple, ours: bool) -> None:
    """Count an operation; a copy between devices and a wait are counted as such, too."""
    TRAFFIC.operations[name] += 1
    if name in COPIES:
        pair = args[:2] if name.startswith("copy") else args[1::-1]
        here = ours if name == "_to_copy" else isinstance(pair[0], PretendTensor)
        there = isinstance(args[0] if name == "_to_copy" else pair[1], PretendTensor)
        if here and not there:
            TRAFFIC.to_device += 1
        elif there and not here:
            TRAFFIC.to_host += 1
            TRAFFIC.waits["copy to host"] += 1
    elif name in INDEXING:
        count_indices(name, args)
    elif name in WAITS:
        TRAFFIC.waits[name] += 1


def count_indices(name: str, args: tuple) -> None:
    """Count copies of indices of the host, and waits for masks, as nobody knows how many rows."""
    for index in (i for i in args[1] if isinstance(i, torch.Tensor)):
        if not isinstance(index, PretendTensor):
            TRAFFIC.to_device += 1
        elif index.dtype in (torch.bool, torch.uint8):
            TRAFFIC.waits[name] += 1


def strict(draw: Any) -> Any:
    """A function that refuses to draw on one device from a generator of the other.

    Below torch's functions a generator is torch's own again, and does not know what it pretends.
    """

    @functools.wraps(draw)
    def checked(*args: Any, **kwargs: Any) -> Any:
        generator = kwargs.get("generator")
        if isinstance(generator, PretendGenerator):
            ours = target_of((*args, *kwargs.values()), kwargs)
            if is_ours(generator.device) != ours:
                raise RuntimeError(
                    f"Expected a '{NAME if ours else 'cpu'}' device type for generator but found "
                    f"'{generator.device.type}'"
                )
        return draw(*args, **kwargs)

    return checked


@functools.cache
def draws() -> list[tuple[Any, str]]:
    """Where torch has its functions that take a generator."""
    takes = (
        full.removeprefix("aten::").partition(".")[0]
        for full, operation in operations()
        if any(a.name == "generator" for a in operation._schema.arguments)
    )
    return [
        (place, name)
        for name in sorted(set(takes))
        for place in (torch, torch.Tensor)
        if callable(getattr(place, name, None))
    ]


@contextlib.contextmanager
def strict_draws() -> Iterator[None]:
    """Have torch's functions refuse generators of the other device.

    A mode of torch's would see all functions, and make each operation twice as long.
    """
    with contextlib.ExitStack() as stack:
        for place, name in draws():
            stack.enter_context(
                unittest.mock.patch.object(place, name, strict(getattr(place, name)))
            )
        yield


# ---- the backend ---------------------------------------------------------------------------------

_library: Any = None


def install() -> None:
    """Register the device with torch; what has been done once stays for the process."""
    global _library
    if _library is not None:
        return
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.device = contextlib.nullcontext
    module.current_device = lambda: 0
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module._is_in_bad_fork = lambda: False
    module.empty_cache = lambda: None
    module.mem_get_info = lambda device=None: (
        int(min(TRAFFIC.budget, 1 << 40) - TRAFFIC.alive),
        int(min(TRAFFIC.budget, 1 << 40)),
    )
    module.memory_reserved = module.memory_allocated = lambda device=None: TRAFFIC.alive
    module.get_rng_state = lambda device=None: torch.default_generator.get_state()
    module.set_rng_state = lambda state, device=None: torch.default_generator.set_state(state)
    getattr(backend_registration, SETUP)(NAME, backend_module=module)
    _library = torch.library.Library("aten", "IMPL")
    for name, operation in factories():
        with contextlib.suppress(RuntimeError):  # some cannot be given
            _library.impl(name, kernel_of(operation), "PrivateUse1")
    _library.impl("_copy_from", kernel_of(torch.ops.aten._copy_from.default), "PrivateUse1")


def operations() -> Iterator[tuple[str, Any]]:
    """All operations that torch has, and their names."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace != "aten":
            continue
        name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, name, None)
        operation = getattr(packet, overload or "default", None)
        if operation is not None:
            yield full, operation


def factories() -> Iterator[tuple[str, Any]]:
    """Operations that make tensors of none."""
    for full, operation in operations():
        arguments = operation._schema.arguments
        makes = any(a.name == "device" for a in arguments)
        if makes and not any("Tensor" in str(a.type) for a in arguments):
            yield full.removeprefix("aten::"), operation


def kernel_of(operation: Any) -> Any:
    """What the dispatcher calls where no tensor of ours is among the arguments."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return compute(operation, args, kwargs)

    return kernel


@contextlib.contextmanager
def pretending() -> Iterator[Traffic]:
    """Have a pretend device for the time of the context, and what it was asked for."""
    install()
    generator = torch.Generator
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.Generator, torch.load = PretendGenerator, load
    torch.__future__.set_swap_module_params_on_conversion(True)
    TRAFFIC.clear()
    TRAFFIC.budget = float("inf")
    try:
        with strict_draws(), torch.serialization.safe_globals([restored]):
            yield TRAFFIC
    finally:
        torch.Generator, torch.load = generator, _load
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        TRAFFIC.budget = float("inf")
