"""Convert arrays to their form in files: contiguous, little-endian, and without redundancy.

Of a symmetric or triangular matrix only one half is stored. float64 numbers take four bytes if they
are exact in float32, as those of trained networks are. Every bit is restored, and so is the order
of axes in memory, because the last bit of a matrix product may depend on it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

KINDS = "biuf"  # kinds of numbers: bool, integers, floats
OF_A_NUMBER = (int, float, np.bool_, np.integer, np.floating)
ITEM_SIZES = (1, 2, 4, 8)
STORED = {"|b1", "<f2", "<f4", "<f8", "|i1", "|u1", *(f"<{k}{n}" for k in "iu" for n in (2, 4, 8))}
FEWEST = 16  # smaller arrays are stored as they are
MOST_AXES = 6  # of each, NumPy shows six numbers
ALIGNMENT = 64  # bytes, as in torch: results of linear algebra may depend on it
HALVES = ("", "lower", "upper", "symmetric")


class Layout(NamedTuple):
    """How to restore an array.

    Parameters
    ----------
    dtype : str
        The array's dtype, as NumPy writes it: "<f8".
    shape : tuple of int
        The array's shape, with axes in their order in memory.
    axes : tuple of int
        For each of these axes, its position in the array.
    half : {"", "lower", "upper", "symmetric"}
        Which half is stored: "lower" or "upper" if the other one is 0; "symmetric" stores the lower
        half. With "", the whole array is stored.
    """

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    half: str


def are_numbers(value: Any, most_axes: int) -> bool:
    """Tell whether a value is a number, or an array or lists of numbers along so many axes."""
    if isinstance(value, np.ndarray):
        return value.ndim <= most_axes and value.dtype.kind in KINDS
    if isinstance(value, list | tuple):
        return most_axes > 0 and all(are_numbers(each, most_axes - 1) for each in value)
    return isinstance(value, OF_A_NUMBER)


def told(value: Any) -> str:
    """Say of which type a value is, and of which shape."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of the shape {value.shape}"
    return f"a {type(value).__name__}"


def is_plain(a: np.ndarray) -> bool:
    """Tell whether an array has numbers that a file can store."""
    return a.dtype.kind in KINDS and a.dtype.itemsize in ITEM_SIZES and type(a) is np.ndarray


def kept(a: np.ndarray) -> tuple[np.ndarray, Layout]:
    """Return the numbers to store for an array, and how to restore it."""
    axes = tuple(int(i) for i in np.argsort([-abs(s) for s in a.strides], kind="stable"))
    memory = np.ascontiguousarray(a.transpose(axes)).reshape([a.shape[i] for i in axes])
    memory = memory.astype(memory.dtype.newbyteorder("<"), copy=False)
    half = half_of(memory)
    layout = Layout(memory.dtype.str, memory.shape, axes, half)
    return (triangles(memory, half) if half else narrowed(memory)), layout


def restored(payload: np.ndarray, layout: Layout) -> np.ndarray:
    """Restore an array, in memory of its own.

    Raises
    ------
    ValueError
        If the payload does not match the layout.
    """
    check(payload, layout)
    memory = aligned(layout.shape, np.dtype(layout.dtype).newbyteorder("="))
    if layout.half:
        fill_triangles(memory, payload, layout.half)
    else:
        memory[...] = payload
    in_order = layout.axes == tuple(range(len(layout.axes)))  # which most are, and sorting is slow
    return memory if in_order else memory.transpose(np.argsort(layout.axes))


def check(payload: np.ndarray, layout: Layout) -> None:
    """Raise a ValueError if a layout is not valid, or does not match the payload."""
    dtype, shape, axes, half = layout
    is_layout = dtype in STORED and sorted(axes) == list(range(len(shape))) and half in HALVES
    if not is_layout or min(shape, default=0) < 0:
        raise ValueError("the array layout is not valid")
    if half and (len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape):
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
    """Return an uninitialised array with the alignment that torch uses."""
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(n_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + n_bytes].view(dtype).reshape(shape)


# ---- what follows from the rest ------------------------------------------------------------------


def bits(a: np.ndarray) -> np.ndarray:
    """View numbers as integers, to compare bits: 0 and −0, or two kinds of NaN, differ."""
    return a.view(f"u{a.dtype.itemsize}")


def half_of(a: np.ndarray) -> str:
    """Return which half determines the matrices (..., n, n), as in `Layout`."""
    if a.size < FEWEST or a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] < 2:
        return ""
    A = bits(a)
    if np.array_equal(A, A.swapaxes(-1, -2)):
        return "symmetric"
    above = ~np.tri(a.shape[-1], dtype=bool)
    if not any(M[above].any() for M in matrices(A)):
        return "lower"
    return "" if any(M[above.T].any() for M in matrices(A)) else "upper"


def triangles(a: np.ndarray, half: str) -> np.ndarray:
    """Return one half of matrices (..., n, n), row by row: (..., n(n + 1)/2)."""
    n = a.shape[-1]
    rows = [matrices(a)[:, i, stored_of(i, half)] for i in range(n)]
    return np.concatenate(rows, axis=1).reshape(*a.shape[:-2], n * (n + 1) // 2)


def fill_triangles(a: np.ndarray, payload: np.ndarray, half: str) -> None:
    """Fill matrices (..., n, n) from one half of them, row by row, without a mask of their size."""
    A, numbers, first = matrices(a), payload.reshape(-1, payload.shape[-1]), 0
    a[...] = 0
    for i in range(a.shape[-1]):
        places = stored_of(i, half)
        after = first + len(range(a.shape[-1])[places])
        A[:, i, places] = numbers[:, first:after]
        if half == "symmetric":
            A[:, places, i] = numbers[:, first:after]
        first = after


def stored_of(i: int, half: str) -> slice:
    """Return which columns of row i are stored."""
    return slice(i, None) if half == "upper" else slice(0, i + 1)


def matrices(a: np.ndarray) -> np.ndarray:
    """View contiguous arrays (..., n, n) as (S, n, n)."""
    return a.reshape(-1, *a.shape[-2:])


def narrowed(a: np.ndarray) -> np.ndarray:
    """Return float64 numbers in float32 if that is exact; otherwise unchanged."""
    if a.dtype != np.float64 or a.size < FEWEST:
        return a
    return narrow(a) if same_when_narrow(a.reshape(-1)[:FEWEST]) and same_when_narrow(a) else a


def narrow(a: np.ndarray) -> Any:
    """Round to float32."""
    with np.errstate(all="ignore"):
        return a.astype("<f4")


def same_when_narrow(a: np.ndarray) -> bool:
    """Tell whether all numbers are exact in float32."""
    return bool((bits(narrow(a).astype("<f8")) == bits(a)).all())
