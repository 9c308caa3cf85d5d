"""Take values of Python, NumPy, torch and pandas apart, and put them together again.

The functions that put parts together check them, because anybody may have written the file.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .arrays import FEWEST, ITEM_SIZES
from .registry import UFUNCS

Parts = Iterable[tuple[str, Any]]  # where each part is (for messages), and the part
Types = tuple[type, ...]

BYTES_OF_A_LETTER, FREE_LETTERS = 4, 1024  # of each string of an array
FREE_BYTES_OF_TEXTS = 2**20
MOST_BYTES_OF_A_TEXT = 256  # in an array, for each string and each of its letters
MOST_BYTES_OF_TEXTS = 2**26  # in an array
MOST_WITHOUT_CELLS = 2**20  # rows of an array without columns
LETTERS_SHOWN = 60  # letters of a text, in messages
MOST_FLOATS = 2**20  # in a list that is stored as an array, which takes eight times as much memory
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
DTYPES = {str(t).partition(".")[2]: t for t in vars(torch).values() if isinstance(t, torch.dtype)}
OF_SCALARS: dict[str, Types] = {
    **{"b": (bool,), "i": (int,), "u": (int,), "f": (float, int)},
    **{"U": (str,), "m": (int,), "M": (int,)},
}
ENDS = (int, float, np.integer, np.floating)  # of intervals
STATE_OF_TWISTER = 624  # numbers
OF_PANDAS = {name: name.lower() for name in ("Timestamp", "Timedelta", "Period", "Interval")}
ZONE = r"(?!dateutil)[A-Za-z]\w*(/[A-Za-z][\w+-]*){0,3}|UTC[+-]\d\d:\d\d"
"""No path, which dateutil would open, and no zone of dateutil's, which makes one of any word."""


# ---- Python's own --------------------------------------------------------------------------------


def numbered(values: Iterable[Any]) -> Parts:
    """Label each item with its position."""
    return ((f"[{i}]", value) for i, value in enumerate(values))


def in_order(values: Iterable[Any]) -> Parts:
    """Sort the items of a set, so that equal ones have equal states."""
    return numbered(sorted(values, key=lambda value: (type(value).__name__, repr(value))))


def items(mapping: dict) -> Parts:
    """Return keys and values in turn."""
    for key, value in mapping.items():
        yield " (a key)", key
        yield f"[{key!r:.40}]", value


def pairs(parts: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the keys and values that `items` took apart."""
    return zip(parts[::2], parts[1::2], strict=True)


def one_of(table: dict[str, Any], name: str) -> Any:
    """Return what a table has under a name, or raise a ValueError that shows the name's start."""
    if name not in table:
        raise ValueError(f"{name[:LETTERS_SHOWN]!r} is not one of the names that this form knows")
    return table[name]


def word(value: Any) -> Parts:
    """Take apart a path, a device, or a number that JSON does not have."""
    return numbered([str(value)])


def is_long_list_of_floats(value: Any) -> bool:
    """Tell whether a value is a list of floats so long that an array takes less space."""
    return type(value) is list and len(value) >= FEWEST and all(type(v) is float for v in value)


def floats_of(parts: list[Any]) -> list[float]:
    """Return a list of floats."""
    (a,) = parts
    if a.dtype != np.float64 or a.ndim != 1 or len(a) > MOST_FLOATS:
        raise ValueError(f"an array {a.shape} of {a.dtype} is not a list of at most {MOST_FLOATS}")
    return a.tolist()


# ---- NumPy's -------------------------------------------------------------------------------------


def scalar(value: np.generic) -> Parts:
    """Take a scalar apart: its type, and the number."""
    is_time = value.dtype.kind in "mM"
    return numbered([value.dtype.str, int(value.astype(np.int64)) if is_time else value.item()])


def scalar_of(parts: list[Any]) -> Any:
    """Return a scalar."""
    dtype, value = dtype_of(parts[0], "biufUmM"), parts[1]
    if type(value) not in OF_SCALARS[dtype.kind]:
        raise ValueError(f"a scalar of type {dtype} cannot be a {type(value).__name__}")
    is_odd = dtype.kind in "biuf" and dtype.itemsize not in ITEM_SIZES  # such as long doubles
    if is_odd or (dtype.kind == "U" and dtype.itemsize > np.array(value).itemsize):
        raise ValueError(f"a scalar cannot have the type {dtype}")
    array = np.array(value, np.int64).view(dtype) if dtype.kind in "mM" else np.array(value, dtype)
    return array[()]


def dtype_of(text: str, kinds: str) -> np.dtype:
    """Return a dtype of one of these kinds; NumPy's own reader takes whole programs of types."""
    if not re.fullmatch(rf"[<>|=][{kinds}]\d{{0,9}}(\[([1-9]\d{{0,8}})?[A-Za-z]{{1,2}}\])?", text):
        raise ValueError(f"{text[:LETTERS_SHOWN]!r} is not a type of these objects")
    return np.dtype(text)


def is_spacious(a: np.ndarray) -> bool:
    """Tell whether a few long strings make an array of strings take far too much memory."""
    if a.dtype.kind != "U":
        return False
    values = a.reshape(-1).tolist()
    return a.nbytes > most_bytes(values) or a.dtype.itemsize > most_bytes_each(values)


def most_bytes_each(values: list) -> int:
    """Return the bytes that each string may take; predicted classes are as long as the longest."""
    longest = max((len(v) for v in values if type(v) is str), default=0)
    return BYTES_OF_A_LETTER * max(FREE_LETTERS, 2 * longest)


def most_bytes(values: list) -> int:
    """Return the bytes that an array of strings may take."""
    n = len(values) + sum(len(v) for v in values if type(v) is str)
    return min(FREE_BYTES_OF_TEXTS + MOST_BYTES_OF_A_TEXT * n, MOST_BYTES_OF_TEXTS)


def cells(a: np.ndarray) -> Parts:
    """Take an array of strings or objects apart: its dtype, number of axes, shape, and cells."""
    return numbered([a.dtype.str, a.ndim, *a.shape, *a.reshape(-1).tolist()])


def array_of_cells(parts: list[Any]) -> np.ndarray:
    """Return an array of strings or objects."""
    text, ndim, *rest = parts
    shape, values = rest[:ndim], rest[ndim:]
    if type(text) is not str or not all(
        type(n) is int and 0 <= n <= max(len(values), MOST_WITHOUT_CELLS) for n in (ndim, *shape)
    ):
        raise ValueError("an array of strings or objects has a shape that is none")
    dtype = dtype_of(text, "UO")
    if dtype.kind == "U" and (
        dtype.itemsize * max(len(values), 1) > most_bytes(values) + MOST_BYTES_OF_A_TEXT
        or dtype.itemsize > most_bytes_each(values)
        or not all_are(str, values)
    ):
        raise ValueError(f"an array of strings cannot have the type {dtype}, or its values")
    flat = np.empty(len(values), dtype)
    for i, value in enumerate(values):
        flat[i] = value
    return flat.reshape(shape)


def all_are(kind: type, values: Iterable[Any]) -> bool:
    """Tell whether all values are of exactly this type."""
    return all(type(value) is kind for value in values)


def times(a: np.ndarray) -> Parts:
    """Take an array of times apart."""
    return numbered([a.dtype.str, a.view(np.int64)])


def array_of_times(parts: list[Any]) -> np.ndarray:
    """Return an array of times."""
    if parts[1].dtype != np.int64:
        raise ValueError(f"an array of times cannot be of type {parts[1].dtype}")
    return parts[1].view(dtype_of(parts[0], "mM"))


def is_mersenne_twister(generator: np.random.RandomState) -> bool:
    """Tell whether a generator is of the usual kind."""
    state: Any = generator.get_state(legacy=False)
    return state["bit_generator"] == "MT19937"


def is_known(function: np.ufunc) -> bool:
    """Tell whether a ufunc is one that files may name; others may share a name."""
    return UFUNCS.get(function.__name__) is function


def random_state(generator: np.random.RandomState) -> Parts:
    """Take a generator apart."""
    state: Any = generator.get_state(legacy=False)
    inner = state["state"]
    return numbered([inner["key"], inner["pos"], state["has_gauss"], state["gauss"]])


def random_state_of(parts: list[Any]) -> np.random.RandomState:
    """Return a generator."""
    key, position, has_gauss, gauss = parts
    is_state = (
        key.shape == (STATE_OF_TWISTER,)
        and key.dtype == np.uint32
        and (key[0] >= 2**31 or key[1:].any())  # all other bits 0: draws 0 for ever
        and 0 <= position <= STATE_OF_TWISTER  # NumPy reads wherever this points to
        and has_gauss in (0, 1)
    )
    if not is_state:
        raise ValueError("a random state has fields that no generator has")
    generator = np.random.RandomState(0)
    generator.set_state(("MT19937", key, position, has_gauss, gauss))
    return generator


# ---- torch's -------------------------------------------------------------------------------------


def tensor(value: Tensor) -> Parts:
    """Take a tensor apart: an array, and the type if NumPy lacks it. Gradients are not kept."""
    dense = value.detach().cpu()
    if dense.dtype == torch.bfloat16:
        return numbered([dense.view(torch.int16).numpy(), "bfloat16"])
    return numbered([dense.numpy(), None])


def tensor_of(parts: list[Any]) -> Tensor:
    """Return a tensor that shares the memory of the array, which nothing else uses."""
    array, dtype = parts
    if dtype not in (None, "bfloat16") or (dtype and array.dtype != np.int16):
        raise ValueError(
            f"a tensor of {array.dtype} cannot be of type {dtype and dtype[:LETTERS_SHOWN]!r}"
        )
    values = torch.from_numpy(array)
    return values if dtype is None else values.view(torch.bfloat16)


def torch_device_of(parts: list[Any]) -> torch.device:
    """Return a device."""
    if not re.fullmatch(r"[a-z]{1,20}(:\d{1,4})?", parts[0]):
        raise ValueError(f"{parts[0][:LETTERS_SHOWN]!r} is not a device")
    return torch.device(parts[0])


def torch_type(dtype: torch.dtype) -> Parts:
    """Take a tensor type apart: its name."""
    return numbered([str(dtype).partition(".")[2]])


def parameter(value: nn.Parameter) -> Parts:
    """Take a parameter apart."""
    return numbered([value.data, value.requires_grad])


# ---- pandas' scalars among levels of categories --------------------------------------------------


def pandas() -> Any:
    """Return the module, which is not a requirement; whoever uses frames has it."""
    try:
        import pandas
    except ImportError as error:
        raise ValueError("it has times or intervals of pandas, which is not installed") from error
    return pandas


def form_of_level(value: Any) -> str | None:
    """Return the form of a pandas scalar, or None if the value is not one."""
    is_of_pandas = type(value).__module__.partition(".")[0] == "pandas"
    return OF_PANDAS.get(type(value).__name__) if is_of_pandas else None


def timestamp(value: Any) -> Parts:
    """Take a time apart: the time in UTC, and the time zone."""
    return numbered([value.to_datetime64(), None if value.tz is None else str(value.tz)])


def timestamp_of(parts: list[Any]) -> Any:
    """Return a time."""
    pd = pandas()
    when, zone = parts
    if np.datetime_data(when)[0] == "generic":  # pandas raises a SystemError
        raise ValueError("a time has no unit")
    time = pd.Timestamp(when)
    return time if zone is None else time.tz_localize("UTC").tz_convert(zone_of(zone))


@functools.cache  # of a few thousand; pandas keeps eight, and reads the others again and again
def zone_of(name: str) -> Any:
    """Return a time zone."""
    pd = pandas()
    if not re.fullmatch(ZONE, name):
        raise ValueError(f"{name[:LETTERS_SHOWN]!r} is not a time zone")
    try:
        return pd.Timestamp(0, tz=name).tz
    except OSError as error:  # a part of the world, which is a folder
        raise ValueError(f"{name!r:.40} is not a time zone") from error


def timedelta_of(parts: list[Any]) -> Any:
    """Return a duration."""
    pd = pandas()
    return pd.Timedelta(*parts)


def period_of(parts: list[Any]) -> Any:
    """Return a period."""
    pd = pandas()
    ordinal, freq = parts
    if not re.fullmatch(r"[\w-]{1,20}", freq):
        raise ValueError(f"{freq[:LETTERS_SHOWN]!r} is not a frequency")
    return pd.Period(ordinal=ordinal, freq=freq)


def interval_of(parts: list[Any]) -> Any:
    """Return an interval."""
    pd = pandas()
    left, right, closed = parts
    if not all(
        isinstance(end, ENDS) or form_of_level(end) in ("timestamp", "timedelta")
        for end in parts[:2]
    ):
        raise ValueError("the ends of an interval must be numbers or times")
    return pd.Interval(left, right, closed)
