"""Parameters that the estimators of NNGP share."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, cast

from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from ...estimators.conditioning import evidence_in_units
from ...estimators.parameters import POSITIVE, POSITIVE_INTEGER
from ...maths.indexed import library
from ...models.posteriors.neighbours import knows_joint
from ...persistence.failures import tell_failures
from ...persistence.fields import whole

PREDICTING = 128  # neighbours of predictions, unless the user says how many
FREE_JOINT = 256  # n_neighbors of a fit that may be set to less before it is saved


def predicting(n_neighbors_predict: int | str | None) -> int:
    """Return how many rows predictions are given, at most."""
    return n_neighbors_predict if isinstance(n_neighbors_predict, Integral) else PREDICTING


def approximates(search: str) -> bool:
    """Tell whether the search for neighbours may miss some; raise an ImportError if it cannot."""
    if search == "approximate":
        library()
    return search == "approximate"


def asked(model: Any, posterior: Any) -> Any:
    """Return the posterior that searches rows, and as many of them, as the model now says."""
    given, is_approximate = model.n_neighbors_predict, approximates(model.search)
    n_neighbors = posterior.n_neighbors if given == "auto" else predicting(given)
    if (n_neighbors, is_approximate) == (posterior.n_neighbors, posterior.is_approximate):
        return posterior
    model._validate_params()  # it was set after the fit
    return posterior.with_neighbors(n_neighbors, is_approximate)


def check_rows_kept(model: Any) -> None:
    """Raise a ValueError if rows are kept twice, or factors of more rows than parameters say.

    As in edited files.
    """
    posterior = getattr(model, "posterior_", None)
    n_joint, inputs = getattr(posterior, "n_joint", 1), getattr(posterior, "inputs", None)
    network = getattr(posterior, "network", None)
    has_none = isinstance(network, nn.Sequential) and not network
    if has_none and (inputs is None or inputs.shape[1]):
        raise ValueError("posterior_ has inputs, but no network that maps them")
    if whole(n_joint) > max(FREE_JOINT, whole(model.n_neighbors)):
        raise ValueError(
            f"posterior_.n_joint is {n_joint}, but n_neighbors is {model.n_neighbors}. Set it as "
            "in the fit"
        )


def listed(model: Any) -> list[str]:
    """Return what scikit-learn's `__dir__` does, without the evidence unless that is known.

    Else completion, and notebooks, which show the values of all attributes, would compute it.
    """
    names = set(object.__dir__(model))
    if not knows_joint(vars(model).get("posterior_")):
        names.discard("log_marginal_likelihood_value_")
    return [name for name in names if hasattr(model, name)]


@tell_failures
@dataclass(eq=False, repr=False, kw_only=True)
class NeighbourParameters:
    """How many neighbours, and among which rows.

    Parameters
    ----------
    n_neighbors : int, default=32
        Number of neighbours of each row in training; all other rows if there are fewer.
    n_neighbors_predict : int or None, default=None
        Number of neighbours of predictions; None is 128. It can be set on a fitted model.
    search : {"exact", "approximate"}, default="exact"
        How neighbours are found. "approximate" needs faiss and may miss some, in tables of 100,000
        rows or more in many dimensions. It can be set on a fitted model.
    loss : {"auto", "vecchia", "leave_one_out"}, default="auto"
        Neighbours of training: earlier rows in a random order, so that the sum of the losses is a
        density of all rows ("vecchia"), or any other rows ("leave_one_out"). "auto" is "vecchia".
    max_time : float or None, default=None
        Time limit of `fit` in seconds; None: no limit.
    """

    n_neighbors: int = 32
    n_neighbors_predict: int | str | None = None
    search: str = "exact"
    loss: str = "auto"
    learning_rate_init: float = 0.1
    dtype: str = "float64"
    max_time: float | None = None

    _first_parameters: ClassVar[tuple[str, ...]] = ("n_neighbors",)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_neighbors": [POSITIVE_INTEGER],
        "n_neighbors_predict": [POSITIVE_INTEGER, None],
        "search": [StrOptions({"exact", "approximate"})],
        "loss": [StrOptions({"auto", "vecchia", "leave_one_out"})],
        "max_time": [POSITIVE, None],
    }

    @property
    def log_marginal_likelihood_value_(self) -> float:
        """The log marginal likelihood, with `n_neighbors` neighbours, in nats for y in its unit."""
        check_is_fitted(self)
        return evidence_in_units(cast(Any, self))
