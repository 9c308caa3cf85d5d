"""Arrays as files keep them: contiguous, little-endian, and without what follows from the rest.

A symmetric or triangular matrix is kept by one half, and float64 numbers that are float32 numbers
too, as those of trained networks are, take four bytes: only where every bit comes back. So does the
order of axes in memory, on which the last bit of a product of matrices may depend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

KINDS = "biuf"  # of numbers: bool, integers, floats
ITEM_SIZES = (1, 2, 4, 8)
NUMBER_TYPES = [("b", 1), ("f", 2), ("f", 4), ("f", 8), *((k, n) for k in "iu" for n in ITEM_SIZES)]
FEWEST = 16  # numbers in an array for which it is looked at what follows from the rest
ALIGNMENT = 64  # bytes, as torch's: results of linear algebra may depend on it
HALVES = ("", "lower", "upper", "symmetric")


class Layout(NamedTuple):
    """How to restore an array.

    Parameters
    ----------
    dtype : str
        Of the array, as NumPy writes it: "<f8".
    shape : tuple of int
        Of the array, its axes in their order in memory.
    axes : tuple of int
        Where each of these is in the array.
    half : {"", "lower", "upper", "symmetric"}
        Which half of the matrices is not 0, or follows from the other; "": all of them are kept.
    """

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    half: str


def is_plain(a: np.ndarray) -> bool:
    """Tell whether these are numbers that a file can keep."""
    return a.dtype.kind in KINDS and a.dtype.itemsize in ITEM_SIZES and type(a) is np.ndarray


def kept(a: np.ndarray) -> tuple[np.ndarray, Layout]:
    """Return what is kept of an array, and how to restore it."""
    axes = tuple(int(i) for i in np.argsort([-abs(s) for s in a.strides], kind="stable"))
    memory = np.ascontiguousarray(a.transpose(axes)).reshape([a.shape[i] for i in axes])
    memory = memory.astype(memory.dtype.newbyteorder("<"), copy=False)
    half = half_of(memory)
    layout = Layout(memory.dtype.str, memory.shape, axes, half)
    return (triangles(memory, half) if half else narrowed(memory)), layout


def restored(payload: np.ndarray, layout: Layout) -> np.ndarray:
    """Return the array, in memory of its own.

    Raises
    ------
    ValueError
        If both do not fit together.
    """
    check(payload, layout)
    memory = aligned(layout.shape, np.dtype(layout.dtype).newbyteorder("="))
    if layout.half:
        fill_triangles(memory, payload, layout.half)
    else:
        memory[...] = payload
    return memory.transpose(np.argsort(layout.axes)) if layout.axes else memory


def check(payload: np.ndarray, layout: Layout) -> None:
    """Raise a ValueError where a layout is none, or not that of the payload."""
    dtype, shape, axes, half = layout
    is_layout = (
        isinstance(dtype, str)
        and dtype
        in {np.dtype(f"{kind}{size}").newbyteorder("<").str for kind, size in NUMBER_TYPES}
        and all(type(n) is int and n >= 0 for n in (*shape, *axes))
        and sorted(axes) == list(range(len(shape)))
        and half in HALVES
    )
    if not is_layout:
        raise ValueError(f"the array layout {tuple(layout)} is not valid")
    if half and (len(shape) < 2 or shape[-1] != shape[-2]):
        raise ValueError(
            f"an array of shape {shape} is not square, so it cannot be stored as one half"
        )
    wanted = (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2) if half else shape
    types = {dtype, "<f4"} if dtype == "<f8" and not half else {dtype}
    given = payload.dtype.newbyteorder("<").str
    if payload.shape != wanted or given not in types:
        raise ValueError(
            f"an array must have the shape {wanted} and the type {dtype}, got "
            f"{payload.shape} and {given}"
        )


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array on memory that begins where torch's would."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + n_bytes].view(dtype).reshape(shape)


# ---- what follows from the rest ------------------------------------------------------------------


def bits(a: np.ndarray) -> np.ndarray:
    """Return numbers as integers: 0 and −0, or two kinds of NaN, are not the same bits."""
    return a.view(f"u{a.dtype.itemsize}")


def half_of(a: np.ndarray) -> str:
    """Return the half that matrices (..., n, n) follow from, as `Layout` names it."""
    if a.size < FEWEST or a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] < 2:
        return ""
    A = bits(a)
    rows = [(A[..., i, i + 1 :], A[..., i + 1 :, i]) for i in range(A.shape[-1] - 1)]
    if all((above == below).all() for above, below in rows):
        return "symmetric"
    if not any(above.any() for above, _ in rows):
        return "lower"
    return "upper" if not any(below.any() for _, below in rows) else ""


def triangles(a: np.ndarray, half: str) -> np.ndarray:
    """Return a half of matrices (..., n, n), row by row: (..., n(n + 1)/2)."""
    n = a.shape[-1]
    out = np.empty((*a.shape[:-2], n * (n + 1) // 2), a.dtype)
    for i, place in enumerate(places(n, half)):
        out[..., place] = a[..., i, i:] if half == "upper" else a[..., i, : i + 1]
    return out


def fill_triangles(a: np.ndarray, payload: np.ndarray, half: str) -> None:
    """Fill matrices (..., n, n) from a half of them."""
    if half != "symmetric":
        a[...] = 0
    for i, place in enumerate(places(a.shape[-1], half)):
        row = payload[..., place]
        if half == "upper":
            a[..., i, i:] = row
        else:
            a[..., i, : i + 1] = row
        if half == "symmetric":
            a[..., :i, i] = row[..., :i]


def places(n: int, half: str) -> list[slice]:
    """Return where each row of a half is."""
    lengths = np.arange(n, 0, -1) if half == "upper" else np.arange(1, n + 1)
    ends = np.cumsum(lengths).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths.tolist(), strict=True)]


def narrowed(a: np.ndarray) -> np.ndarray:
    """Return float64 numbers in float32, if these are the same numbers."""
    if a.dtype != np.float64 or a.size < FEWEST:
        return a
    return narrow(a) if same_when_narrow(a.reshape(-1)[:FEWEST]) and same_when_narrow(a) else a


def narrow(a: np.ndarray) -> Any:
    """Round to float32."""
    with np.errstate(all="ignore"):
        return a.astype("<f4")


def same_when_narrow(a: np.ndarray) -> bool:
    """Tell whether float32 has all these numbers."""
    return bool((bits(narrow(a).astype("<f8")) == bits(a)).all())
