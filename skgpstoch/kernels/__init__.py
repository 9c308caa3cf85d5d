"""Covariance functions: scikit-learn's kernel expressions as torch modules."""

from .expressions import (
    RBF,
    Constant,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Kernel,
    Matern,
    Product,
    Radial,
    RationalQuadratic,
    Sum,
    UnsupportedKernelError,
    WhiteNoise,
    check_length_scales,
    from_sklearn,
    scaled,
    to_sklearn,
)
from .tied import Tied, TiedKernel
from .white_noise import contains, join_white_noise, split_noise, split_white_noise

__all__ = [
    "RBF",
    "Constant",
    "DotProduct",
    "ExpSineSquared",
    "Exponentiation",
    "Kernel",
    "Matern",
    "Product",
    "Radial",
    "RationalQuadratic",
    "Sum",
    "Tied",
    "TiedKernel",
    "UnsupportedKernelError",
    "WhiteNoise",
    "check_length_scales",
    "contains",
    "from_sklearn",
    "join_white_noise",
    "scaled",
    "split_noise",
    "split_white_noise",
    "to_sklearn",
]

for _name in __all__:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
