"""Scalable, stochastic Gaussian processes with the scikit-learn interface, on PyTorch."""

from .bsgd import BSGDGaussianProcessRegressor
from .minimax import MinimaxGaussianProcessRegressor
from .scgd import SCGDGaussianProcessRegressor

__all__ = [
    "BSGDGaussianProcessRegressor",
    "MinimaxGaussianProcessRegressor",
    "SCGDGaussianProcessRegressor",
]
__version__ = "0.1.0"
