"""Likelihoods p(y | f): what is observed, given the latent function.

The base class, those of real-valued y = f + ε, and those of classes and counts. Expectations are in
log space; nats throughout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from .base import Likelihood
from .classes import Bernoulli, Categorical
from .counts import Poisson
from .heavy_tailed import Laplace, StudentT
from .one_vs_rest import OneVsRest
from .real import AdditiveNoise, Gaussian
from .shared_precision import SharedStudentT

__all__ = [
    "AdditiveNoise",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "OneVsRest",
    "Poisson",
    "SharedStudentT",
    "StudentT",
    "make_likelihood",
]


_NAMES: dict[str, Callable[[], Likelihood]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "shared_student_t": SharedStudentT,
    "laplace": Laplace,
    "poisson": Poisson,
    "bernoulli": lambda: Bernoulli("logit"),
    "softmax": Categorical,
    "robustmax": lambda: Categorical(link="robustmax"),
}


def make_likelihood(likelihood: str | Likelihood, among: Sequence[str] | None = None) -> Likelihood:
    """A likelihood by its name, or a deep copy of the one given.

    Parameters
    ----------
    likelihood : str or Likelihood
        "gaussian", "student_t", "shared_student_t", "laplace", "poisson" (of a rate exp(f)),
        "bernoulli" (of a probability 1/(1 + exp(−f))), "softmax" or "robustmax"; or an instance.
    among : sequence of str or None, default=None
        The names that are allowed; None: all of these.

    Returns
    -------
    likelihood : Likelihood
        A new one.

    Raises
    ------
    ValueError
        If there is no likelihood of that name.
    TypeError
        If it is neither a name nor an instance.

    Examples
    --------
    >>> from skgpstoch.likelihoods import make_likelihood
    >>> make_likelihood("poisson")
    Poisson(link='exp')
    """
    if isinstance(likelihood, Likelihood):
        return copy.deepcopy(likelihood)
    among = list(_NAMES) if among is None else list(among)
    wanted = f"likelihood must be a Likelihood or one of {among}, got {likelihood!r}."
    if not isinstance(likelihood, str):
        raise TypeError(wanted)
    if likelihood not in among:
        raise ValueError(wanted)
    return _NAMES[likelihood]()


for _name in __all__[:-1]:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
