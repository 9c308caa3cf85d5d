"""Likelihoods p(y | f): the distribution of the targets y, given the latent function f.

The module has the base class :class:`Likelihood` and likelihoods for real-valued targets
y = f + ε, for classes and for counts. Expectations are computed in log space, in nats.
"""

from __future__ import annotations

from ..maths.gaussian import Marginals as Marginals  # for likelihoods of the user's
from .base import Likelihood, make_likelihood
from .classes import Categorical
from .counts import Poisson
from .heavy_tailed import Laplace, StudentT
from .logistic import Bernoulli, OneVsRest
from .negative_binomial import NegativeBinomial
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
    "NegativeBinomial",
    "OneVsRest",
    "Poisson",
    "SharedStudentT",
    "StudentT",
    "make_likelihood",
]


for _name in __all__:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
