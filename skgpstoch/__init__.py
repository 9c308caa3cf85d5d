"""Scalable, stochastic Gaussian processes with the scikit-learn interface, on PyTorch."""

from .bsgd import BSGDGaussianProcessRegressor
from .dlm import DLMClassifier, DLMRegressor
from .fitc import FITCRegressor
from .losses import ExpectedLogLikelihood, LogLoss, SquareLoss
from .minimax import MinimaxGaussianProcessRegressor
from .scgd import SCGDGaussianProcessRegressor
from .solvegp import SolveGPClassifier, SolveGPRegressor
from .svgp import SVGPClassifier, SVGPRegressor

__all__ = [
    "BSGDGaussianProcessRegressor",
    "DLMClassifier",
    "DLMRegressor",
    "ExpectedLogLikelihood",
    "FITCRegressor",
    "LogLoss",
    "MinimaxGaussianProcessRegressor",
    "SCGDGaussianProcessRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
    "SolveGPClassifier",
    "SolveGPRegressor",
    "SquareLoss",
]
__version__ = "0.1.0"
