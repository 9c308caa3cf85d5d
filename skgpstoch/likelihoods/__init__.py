"""Likelihoods p(y | f): what is observed, given the latent function.

The base class, and likelihoods of real-valued y = f + ε, of classes and of counts. Expectations are
computed in log space; the unit is nats.
"""

from __future__ import annotations

from .base import Likelihood, make_likelihood
from .classes import Bernoulli, Categorical
from .counts import Poisson
from .heavy_tailed import Laplace, StudentT
from .one_vs_rest import OneVsRest
from .probabilities import ClassLikelihood
from .real import AdditiveNoise, Gaussian
from .shared_precision import SharedStudentT

__all__ = [
    "AdditiveNoise",
    "Bernoulli",
    "Categorical",
    "ClassLikelihood",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "OneVsRest",
    "Poisson",
    "SharedStudentT",
    "StudentT",
    "make_likelihood",
]


for _name in __all__[:-1]:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
