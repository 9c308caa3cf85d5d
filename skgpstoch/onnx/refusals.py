"""The error that names a part of a model that cannot be exported."""

from __future__ import annotations

from typing import Any

USUAL_CURE = (
    "Save the model with its method save or with joblib.dump, or fit one of the models "
    "that skgpstoch.onnx.export supports (see its documentation)."
)


class CannotExport(NotImplementedError):  # noqa: N818
    """Raised if a part of a model has no ONNX graph; a NotImplementedError that names the part."""

    def __init__(self, part: Any, cure: str = USUAL_CURE) -> None:
        name = part if isinstance(part, str) else type(part).__name__
        super().__init__(f"ONNX export does not support {name}. {cure}")
