"""What cannot be exported is refused by name."""

from __future__ import annotations

from typing import Any


class CannotExport(NotImplementedError):  # noqa: N818
    """A part of a model has no ONNX graph."""

    def __init__(self, part: Any) -> None:
        name = part if isinstance(part, str) else type(part).__name__
        super().__init__(
            f"ONNX export does not support {name}. Save the model by model.save(path) instead, or "
            "fit one of the supported models: see skgpstoch.onnx.export."
        )
