"""Fitted models as ONNX graphs in float64, for serving without Python or torch."""

from .export import export, to_onnx
from .refusals import CannotExport

__all__ = ["CannotExport", "export", "to_onnx"]
