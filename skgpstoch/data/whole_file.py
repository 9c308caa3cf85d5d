"""Write files completely or not at all, and read nothing that is no file."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

fcntl: Any = None  # Windows lacks it; but there nobody can remove a file that is open
with suppress(ImportError):
    import fcntl

FULL_DISK = errno.ENOSPC, errno.EDQUOT, errno.EFBIG  # errors that do not say what was being written
BYTES_KEPT = 217  # of a file's name in that of its unfinished file, which may have 255


def checked_path(path: Any) -> Path:
    """Return a path, or raise a TypeError if it is not a path."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a str or os.PathLike, got {path!r:.80}.")
    if "\0" in os.fspath(path):
        raise ValueError(f"path must not contain null characters, got {path!r:.80}.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ValueError(f"path must be text that names can have, got {path!r:.80}.") from error
    return Path(path)


@contextmanager
def whole_file(path: str | os.PathLike) -> Generator[Path, None, None]:
    """Yield where to write a file, which gets its name at the end of the block.

    After an error, an existing file is unchanged. A link stays a link: its target is replaced. The
    file keeps its permissions. What a killed process left of an earlier write is removed; what
    another process or thread is writing is not, because that holds a lock.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    mode = checked_mode(target)
    remove_leftovers(target)
    partial, lock = locked(target)
    try:
        if mode is not None:
            os.chmod(partial, mode | stat.S_IWUSR)  # so that a read-only file can be written anew
        yield partial
        if mode is not None:
            os.chmod(partial, mode)
        os.replace(partial, target)
    except OSError as error:
        if error.errno in FULL_DISK and error.filename is None:
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
        if lock is not None:
            os.close(lock)


def open_file(path: str | Path) -> BinaryIO:
    """Open a file to read it.

    Raises
    ------
    OSError
        If it is a folder, a device, or a pipe, which could be waited for without end.
    """
    return open(path, "rb", opener=opener_of_files)


def opener_of_files(path: str, flags: int) -> int:
    """Open a file without waiting, and see that it is one; a moment later the path may not be."""
    found = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(found).st_mode
    if not stat.S_ISREG(mode):
        os.close(found)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError("it is a pipe or a device, not a file")
    return found


def checked_mode(target: Path) -> int | None:
    """Return the permissions of a file, or None if there is none yet."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "path must be a file, got a folder", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "path must be in an existing folder", str(target))
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "path must be a file, got a device or a pipe", str(target))
    return stat.S_IMODE(found)


def remove_leftovers(target: Path) -> None:
    """Remove unfinished files of this name that nobody is writing."""
    with suppress(OSError):  # whoever cannot list the folder cannot remove them
        for found in os.scandir(target.parent):
            if is_unfinished(found.name, target.name) and found.is_file(follow_symlinks=False):
                with suppress(OSError):  # another process writes it, or has removed it
                    remove_leftover(Path(found.path))


def is_unfinished(name: str, of: str) -> bool:
    """Tell whether a name is one that `locked` gives to an unfinished file."""
    start = start_of(of)
    is_drawn = re.fullmatch(r"[0-9a-f]{32}\.tmp", name.removeprefix(start)) is not None
    return name.startswith(start) and is_drawn


def start_of(name: str) -> str:
    """Return how the names of a file's unfinished files begin."""
    return f".{name.encode(errors='ignore')[:BYTES_KEPT].decode(errors='ignore')}."


def remove_leftover(path: Path) -> None:
    """Remove a file unless a process holds its lock, which raises an OSError."""
    opened = os.open(path, os.O_RDWR)
    try:
        if fcntl is not None:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(beside(path), ignore_errors=True)
            path.unlink()
    finally:
        os.close(opened)
    if fcntl is None:
        path.unlink()


def beside(unfinished: Path) -> Path:
    """Return the folder for what a file is made from, which goes where the unfinished file goes."""
    return Path(f"{unfinished}.parts")


@contextmanager
def folder_beside(unfinished: Path) -> Generator[Path, None, None]:
    """Yield that folder, and remove it at the end of the block."""
    folder = beside(unfinished)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def locked(target: Path) -> tuple[Path, int | None]:
    """Return a new unfinished file, and the descriptor that holds its lock."""
    while True:
        partial = target.with_name(f"{start_of(target.name)}{uuid4().hex}.tmp")
        opened = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            os.close(opened)
            return partial, None
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        if partial.exists():  # nobody took it for a leftover before it was locked
            return partial, opened
        os.close(opened)
