"""Save estimators to safetensors files, without pickle; loading executes no code from the file.

The header has the entries `format`, `class`, `versions`, `parameters` (for people to read),
`structure` (:mod:`.state`), and `sha256` of all of these and the tensors. Checkpoints of fits have
the same form, with other entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import sklearn
import torch
from sklearn.base import BaseEstimator

from ..data.messages import is_raised_by_us, without_addresses
from ..data.whole_file import checked_path, open_file
from .failures import LONGEST_MESSAGE, mark_loaded
from .fields import forget_folders
from .forms import DAMAGE
from .limits import FileLimits
from .own_names import FileNames, check_is_given
from .registry import PACKAGE
from .state import Names, PackedState, Packer, Unpacker
from .strict_json import parsed
from .tensor_file import header_of, read, table_of, write

FILE_FORMAT = "1"
MOST_OF_THE_FILE = 3  # objects may take at most so many times the file's size in memory
FREE_BYTES = 2**24  # memory that they may take however small a file is: about 5,000 modules
ENTRIES = {"format", "class", "versions", "parameters", "structure", "sha256"}


def save(estimator: Any, path: str | os.PathLike) -> None:
    """Write an estimator to a file, if `load` would read it."""
    path, names = checked_path(path), FileNames()
    state = Packer(names).state(estimator)
    try:
        value_of(state, FileNames(names.asked), size_of(state))
        header = header_of_state(what_is_saved(estimator), state)
    except DAMAGE as error:
        why = error.__cause__ if error.__cause__ and is_raised_by_us(error.__cause__) else error
        raise ValueError(f"{type(estimator).__name__} cannot be saved: {why}.") from error
    estimator._validate_params()  # set_params does not validate
    write(path, header, state.arrays)


def what_is_saved(estimator: Any) -> dict[str, str]:
    """Return what the header of a file tells people of an estimator."""
    params = estimator.get_params(deep=False)
    said = {name: without_addresses(f"{value!r:.200}") for name, value in params.items()}
    return {
        "class": type(estimator).__name__,
        "versions": json.dumps(versions()),
        "parameters": json.dumps(said),
    }


def size_of(state: PackedState) -> int:
    """Return about how many bytes the file of a state has."""
    return len(state.structure) + sum(a.nbytes for a in state.arrays)


def write_state(path: Path, entries: dict[str, str], state: PackedState) -> None:
    """Write a state and what else the header says."""
    write(path, header_of_state(entries, state), state.arrays)


def header_of_state(entries: dict[str, str], state: PackedState) -> str:
    """Return the header of a file with a state, and what else it says."""
    metadata = {"format": FILE_FORMAT, **entries, "structure": state.structure}
    metadata["sha256"] = digest(metadata, state.arrays)
    return header_of(metadata, state.arrays)


def read_state(file: BinaryIO, entries: set[str]) -> tuple[dict[str, str], PackedState]:
    """Return what the header of a file says, and its state.

    Raises
    ------
    ValueError
        If the file is damaged, was altered, or has other entries.
    """
    metadata, arrays = read(file)
    if metadata.get("format") != FILE_FORMAT or metadata.keys() != entries:
        raise ValueError(
            f"its header is not one of version {versions()[PACKAGE]}: it was written by another "
            "version, or is damaged. Copy the file again, or fit and save with this version. Its "
            f"format is {metadata.get('format')!r:.20}, of {metadata.get('versions')!r:.200}"
        )
    if digest(metadata, arrays) != metadata["sha256"]:
        raise ValueError(
            "it is damaged or was altered: its contents do not match its digest. Copy or save it "
            "again"
        )
    return metadata, PackedState(metadata["structure"], arrays, [])


def value_of(state: PackedState, names: Names, n_bytes: int) -> Any:
    """Return the object in a file of `n_bytes` bytes, whoever has written it."""
    return objects_of(state, names, n_bytes)[-1]


def objects_of(state: PackedState, names: Names, n_bytes: int) -> list[Any]:
    """Return the object in a file, after all that it consists of."""
    unpacker = Unpacker(names, FileLimits(MOST_OF_THE_FILE * n_bytes + FREE_BYTES, n_bytes))
    unpacker.value(state, lambda text: parsed(text, n_bytes))
    return unpacker.made


def load(path: str | os.PathLike, *, objects: Mapping[str, Any] | None = None) -> Any:
    """Read an estimator from a file that its method `save` wrote.

    Loading executes no code from the file and imports nothing that the file names, so it is safe to
    load files from anybody. The only foreign code that runs is what you pass as `objects`. A file
    can still hold a model that predicts badly on purpose. A `checkpoint_dir` in the file is not
    used, with a warning.

    Parameters
    ----------
    path : str or os.PathLike
        The file to read.
    objects : mapping of str to type or function, or None, default=None
        Your own classes and functions that the model uses (likelihoods, networks, estimators inside
        it), by their names. None if it uses none. Their code runs on what the file gives it, so for
        a stranger's file name only classes that check their attributes.

    Returns
    -------
    estimator : object
        The estimator as it was saved; fitted if it was fitted. On the same machine its predictions
        are bitwise the same.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, was altered, has a later format, needs `objects` that are not given,
        has numbers that are not finite, or asks for more memory or time than a model needs.
    MemoryError
        If the file does not fit into memory.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, skgpstoch
    >>> X = np.linspace(0.0, 1.0, 20)[:, None]
    >>> model = skgpstoch.GaussianProcessRegressor(optimizer=None).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.safetensors"
    ...     model.save(path)
    ...     again = skgpstoch.load(path)
    >>> bool(np.all(again.predict(X) == model.predict(X)))
    True
    """
    names = FileNames(objects)
    with opened(checked_path(path)) as file:
        try:
            estimator = loaded(file, names)
        except DAMAGE as error:
            is_told = is_raised_by_us(error)
            why = str(error)[:LONGEST_MESSAGE] if is_told else "it is damaged, or was altered"
            raise ValueError(f"{os.fspath(path)!r} cannot be loaded: {why}.") from error
        except MemoryError as error:
            size = os.fstat(file.fileno()).st_size
            raise MemoryError(
                f"{os.fspath(path)!r} cannot be loaded: its {size:,} bytes and its model need more "
                "memory than there is."
            ) from error
    return estimator


def opened(path: Path) -> BinaryIO:
    """Open a file to read it, or raise a ValueError if it is a pipe, which may never end."""
    try:
        return open_file(path)
    except OSError as error:
        if error.errno is not None:  # the system's own errors name the path
            raise
        raise ValueError(f"{str(path)!r} cannot be loaded: {error}.") from error


def loaded(file: Any, names: FileNames) -> Any:
    """Return the estimator in an open file."""
    metadata, state = read_state(file, ENTRIES)
    check_is_given(state.structure, names.objects)
    *_, estimator = objects = objects_of(state, names, file.tell())
    has_save = isinstance(estimator, BaseEstimator) and hasattr(type(estimator), "save")
    if not has_save or type(estimator).__name__ != metadata["class"]:
        raise ValueError(f"it does not hold a {metadata['class']!r:.60}")
    forget_folders(objects)
    mark_loaded(objects, file.name)
    return estimator


def versions() -> dict[str, str]:
    """Return the versions of the packages that write a file."""
    own = sys.modules[PACKAGE].__version__
    return {
        PACKAGE: own,
        "scikit-learn": sklearn.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def digest(metadata: dict[str, str], arrays: list[np.ndarray]) -> str:
    """Return a digest of a file's metadata and arrays."""
    said = {name: text for name, text in metadata.items() if name != "sha256"}
    found = hashlib.sha256(json.dumps([said, table_of(arrays)], sort_keys=True).encode())
    for a in arrays:
        found.update(a.data if a.size else b"")
    return found.hexdigest()
