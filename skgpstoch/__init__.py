"""Scalable, stochastic Gaussian processes with the scikit-learn interface, on PyTorch."""

from .bsgd import BSGDGaussianProcessRegressor
from .minimax import MinimaxGaussianProcessRegressor
from .scgd import SCGDGaussianProcessRegressor
from .solvegp import SolveGPClassifier, SolveGPRegressor
from .svgp import SVGPClassifier, SVGPRegressor

__all__ = [
    "BSGDGaussianProcessRegressor",
    "MinimaxGaussianProcessRegressor",
    "SCGDGaussianProcessRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
    "SolveGPClassifier",
    "SolveGPRegressor",
]
__version__ = "0.1.0"
