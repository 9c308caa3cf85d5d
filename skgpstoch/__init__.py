"""Scalable, stochastic Gaussian processes with the scikit-learn interface, on PyTorch."""

from .scgd import SCGDGaussianProcessRegressor

__all__ = ["SCGDGaussianProcessRegressor"]
__version__ = "0.1.0"
