"""Read and write safetensors files: the header's length in eight bytes, a JSON header, and numbers.

The format is https://github.com/huggingface/safetensors#format. Reading is stricter than in the
safetensors library: tensors must neither overlap nor leave gaps, and sizes are checked before
memory is allocated.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..data.whole_file import whole_file
from .arrays import MOST_AXES
from .strict_json import parsed

TYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
METADATA = "__metadata__"
LENGTH = 8  # bytes, little-endian
LONGEST_HEADER = 2**21  # bytes; the library allows 100 MB
"""*Measured*: that of a default model of 60 to 70 columns takes 40 to 80 kB. Whatever looks at each
letter and value of such a header keeps to the seconds and megabytes that any file may take."""
UNWRITTEN = re.compile(rb"[^ -~]")  # what JSON in ASCII escapes
FREE_ROWS = 1000  # of arrays without columns; if there are more, other arrays have a byte for each
NOT_OURS = (
    "it was not written by an estimator's `save`, or is cut short. Read files of other "
    "programs with their own functions (joblib.load, skops.io.load, torch.load)"
)
Table = dict[str, dict[str, Any]]


# ---- writing -------------------------------------------------------------------------------------


def table_of(arrays: list[np.ndarray]) -> Table:
    """Return the header's entries for arrays, which must be contiguous and little-endian."""
    ends = np.cumsum([0, *(a.nbytes for a in arrays)], dtype=np.int64).tolist()
    return {
        str(i): {
            "dtype": NAMES[a.dtype.str],
            "shape": list(a.shape),
            "data_offsets": [ends[i], ends[i + 1]],
        }
        for i, a in enumerate(arrays)
    }


def header_of(metadata: dict[str, str], arrays: list[np.ndarray]) -> str:
    """Return the header of a file with these arrays, or raise a ValueError if it is too long."""
    header = json.dumps({METADATA: metadata, **table_of(arrays)}, separators=(",", ":"))
    if len(header) > LONGEST_HEADER - LENGTH:
        raise ValueError(
            f"its description, with texts and lists that are no arrays, takes {len(header)} bytes, "
            f"and {LONGEST_HEADER} are allowed"
        )
    return header + " " * (-len(header) % LENGTH)


def write(path: Path, header: str, arrays: list[np.ndarray]) -> None:
    """Write a file completely or not at all (:func:`.whole_file`)."""
    with whole_file(path) as partial, open(partial, "wb") as file:
        file.write(len(header).to_bytes(LENGTH, "little") + header.encode("ascii"))
        for a in arrays:
            file.write(a.data if a.size else b"")
        file.flush()
        os.fsync(file.fileno())


# ---- reading -------------------------------------------------------------------------------------


def read(file: BinaryIO) -> tuple[dict[str, str], list[np.ndarray]]:
    """Return the metadata of a file, and its arrays, which are read-only.

    Raises
    ------
    ValueError
        If it is not such a file, or is damaged.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size < LENGTH:
        raise ValueError(f"it has only {size} bytes; {NOT_OURS}")
    length = int.from_bytes(file.read(LENGTH), "little")
    if length > min(size - LENGTH, LONGEST_HEADER):
        raise ValueError(f"it does not start with the length of a header; {NOT_OURS}")
    text = file.read(length)
    if UNWRITTEN.search(text):
        raise ValueError("its header is not printable ASCII, so it is damaged")
    header = parsed(text.decode("ascii"), size)
    metadata = header.pop(METADATA, None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its header has no metadata")
    check_table(header, size - LENGTH - length)
    data = file.read(size - LENGTH - length)
    return metadata, [array_of(data, header[str(i)]) for i in range(len(header))]


def check_table(table: Table, n_bytes: int) -> None:
    """Raise a ValueError unless the tensors, in order, fill all bytes after the header."""
    end = 0
    for i in range(len(table)):
        entry = table.get(str(i))
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"its tensors are not numbered from 0 on; {NOT_OURS}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in TYPES:
            raise ValueError(
                f"its tensor {i} has the type {dtype!r:.40}, which no saved estimator has"
            )
        is_void = are_counts(shape) and 0 in shape and max(shape) > n_bytes + FREE_ROWS
        if not are_counts(shape) or len(shape) > MOST_AXES or is_void:
            raise ValueError(
                f"its tensor {i} has the shape {shape!r:.80}, which no saved estimator has"
            )
        needed = math.prod(shape) * np.dtype(TYPES[dtype]).itemsize
        if not are_counts(offsets) or offsets != [end, end + needed] or offsets[1] > n_bytes:
            raise ValueError(
                f"its tensor {i} needs {needed} bytes from byte {end} of {n_bytes} on, "
                f"but its header gives the bytes {offsets!r:.80}"
            )
        end = offsets[1]
    if end != n_bytes:
        raise ValueError(f"it has {n_bytes} bytes after its header, but its tensors take {end}")


def are_counts(values: Any) -> bool:
    """Tell whether these are integers of at least 0, as large as sizes can be."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**64 for v in values)


def array_of(data: bytes, entry: dict[str, Any]) -> np.ndarray:
    """Return an array that shares the memory of the file's bytes."""
    shape, first = entry["shape"], entry["data_offsets"][0]
    values = np.frombuffer(data, TYPES[entry["dtype"]], math.prod(shape), first)
    return values.reshape(shape)
