"""Scalable, stochastic Gaussian processes with the scikit-learn interface, on PyTorch."""

from . import kernels, likelihoods, metrics
from .estimators.stored_predictions import predict_to
from .estimators.wrappers import (
    diagnose,
    log_predictive_density,
    predict_distribution,
    predict_interval,
    predict_std,
    sample_y,
)
from .losses import ExpectedLogLikelihood, LogLoss, SquareLoss
from .methods.automatic.automatic_classifier import AutoGaussianProcessClassifier
from .methods.automatic.automatic_regressor import AutoGaussianProcessRegressor
from .methods.automatic.constant_variance import ConstantVarianceRegressor
from .methods.automatic.stacking import StackedDensityRegressor
from .methods.bsgd import BSGDGaussianProcessRegressor
from .methods.convolutional import ConvolutionalGPClassifier, ConvolutionalGPRegressor
from .methods.deep import DeepGPClassifier, DeepGPRegressor
from .methods.deep_kernel_ensemble.estimators import (
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
)
from .methods.dlm.estimators import DLMClassifier, DLMRegressor
from .methods.drop_in.classifier import GaussianProcessClassifier
from .methods.drop_in.regressor import GaussianProcessRegressor
from .methods.fitc import FITCRegressor
from .methods.gpcv.admm import ADMMGaussianProcessRegressor
from .methods.minimax import MinimaxGaussianProcessRegressor
from .methods.nngp.classifier import NNGPClassifier
from .methods.nngp.estimators import NNGPRegressor
from .methods.qsgp.qsgp import QSGPClassifier, QSGPRegressor
from .methods.qsgp.rvm import QSRVMClassifier, QSRVMRegressor
from .methods.scgd import SCGDGaussianProcessRegressor
from .methods.solvegp import SolveGPClassifier, SolveGPRegressor
from .methods.svgp import SVGPClassifier, SVGPRegressor
from .persistence.file import load
from .persistence.registry import trusted_types
from .training.interrupts import on_interrupt

__all__ = [
    "ADMMGaussianProcessRegressor",
    "AutoGaussianProcessClassifier",
    "AutoGaussianProcessRegressor",
    "BSGDGaussianProcessRegressor",
    "ConstantVarianceRegressor",
    "ConvolutionalGPClassifier",
    "ConvolutionalGPRegressor",
    "DLMClassifier",
    "DLMRegressor",
    "DeepGPClassifier",
    "DeepGPRegressor",
    "DeepKernelEnsembleClassifier",
    "DeepKernelEnsembleRegressor",
    "ExpectedLogLikelihood",
    "FITCRegressor",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
    "LogLoss",
    "MinimaxGaussianProcessRegressor",
    "NNGPClassifier",
    "NNGPRegressor",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSRVMClassifier",
    "QSRVMRegressor",
    "SCGDGaussianProcessRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
    "SolveGPClassifier",
    "SolveGPRegressor",
    "SquareLoss",
    "StackedDensityRegressor",
    "diagnose",
    "load",
    "log_predictive_density",
    "on_interrupt",
    "predict_distribution",
    "predict_interval",
    "predict_std",
    "predict_to",
    "sample_y",
]
__version__ = "0.1.0"

for _name in __all__:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__

TRUSTED_TYPES = trusted_types(
    metrics.NegCRPSScorer,
    metrics.NegCoverageErrorScorer,
    metrics.NegLogPredictiveDensityScorer,
    likelihoods.Bernoulli,  # those with parameters, which are tensors, skops cannot keep in a grid
    likelihoods.Categorical,
    likelihoods.NegativeBinomial,
    likelihoods.Poisson,
    kernels.TiedKernel,
)
"""Names of our classes that skops finds in files: `skops.io.load(path, trusted=TRUSTED_TYPES)`."""
