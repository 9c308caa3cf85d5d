"""Data in memory, and row sources, which read rows in chunks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .chunk_rows import ChunkRows
    from .parquet_rows import ParquetRows
    from .sequence_rows import SequenceRows

__all__ = ["ChunkRows", "ParquetRows", "SequenceRows"]

FILES = {"ChunkRows": "chunk_rows", "ParquetRows": "parquet_rows", "SequenceRows": "sequence_rows"}


def __getattr__(name: str) -> Any:
    """Import a row source on first use, because most users need none of them."""
    if name in FILES:
        found = getattr(import_module(f".{FILES[name]}", __name__), name)
        found.__module__ = __name__  # pickles name the public path
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
