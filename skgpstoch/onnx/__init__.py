"""Export fitted models as ONNX graphs in float64, for serving without Python or torch.

Import the module with `import skgpstoch.onnx`; it needs the package onnx.
"""

from importlib.util import find_spec

if find_spec("onnx") is None:
    raise ImportError("skgpstoch.onnx needs onnx. Install it with `pip install onnx`.")

from .converter import register_converters
from .export import export, to_onnx
from .graph import CannotExport

__all__ = ["CannotExport", "export", "register_converters", "to_onnx"]

for _name in __all__:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
