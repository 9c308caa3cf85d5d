"""Groups of constructor parameters of regression on finite features.

They are data, as those of :mod:`skgpstoch.estimators.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .parameters import (
    AUTO,
    POSITIVE,
    POSITIVE_INTEGER,
    KernelParameters,
    NetworkParameters,
    TrainingParameters,
    TransformedTargetParameters,
    WarmStartParameters,
)


@dataclass(eq=False, repr=False, kw_only=True)
class FiniteParameters(
    TransformedTargetParameters,
    NetworkParameters,
    KernelParameters,
    TrainingParameters,
    WarmStartParameters,
):
    """Finite features, and the noise.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the features. None: their inner product, with the inputs and a constant among
        them. A DotProduct is linear on the features alone; RBF and Matern (nu = 0.5, 1.5, 2.5 or
        inf), their products with one another and with constants, and sums of all these use random
        Fourier features. A top-level WhiteKernel is the noise. Hyper-parameters refer to the
        scaled y.
    hidden_layer_sizes : tuple of int, default=(128, 128)
        Widths of the network's layers; () for the inputs themselves. Inputs to a network are
        standardised inside.
    n_components : int or "auto", default="auto"
        Number of random Fourier features; "auto" is 5 for each row, between 100 and 1,000.
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined, each of which is validated on a fold of its
        own. "auto" is 10,000/n_samples, at least 1 and at most 5, where `kernel` and `feature_map`
        are None. With one network and few rows, the few that are held out choose the noise.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is n_samples/64, between 128 and 512.
    max_iter : int or "auto", default="auto"
        Epochs; "auto" makes n_samples steps, between 1,000 (200 for very few rows) and 8,000.
    solver : {"adam", "adadelta"}, default="adam"
        Optimiser.
    learning_rate_init : float, default=0.01
        Learning rate, or its maximum with "one-cycle".
    early_stopping : bool, default=True
        Keep the iterate that predicts held-out rows best (their negative log predictive density);
        they rejoin the closing pass. Otherwise the iterate of the best exact marginal likelihood
        is kept, which overfits networks unless rows are very many: see the user guide.
    validation_fraction : float, default=0.1
        Fraction of the rows in a fold that is held out; with several networks, 50 rows in all are,
        or all that there are, if that is more.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end, as
        the one-cycle schedule wants.
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units.
    noise : {"auto", "validation", "profiled", "learned"}, default="auto"
        Where the noise variance comes from: rows held out, the running marginal likelihood, or
        gradient steps. "auto" is "validation" for networks with early stopping, and "profiled"
        otherwise; both choose the signal variance (the scale of the kernel) as well. The noise of a
        WhiteKernel that is fixed stays as it is.
    noise_variance : float, default=0.1
        Initial noise variance, relative to the scaled target.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        Features and weights' posterior, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on the features, its scale included.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units.
    """

    hidden_layer_sizes: Any = (128, 128)
    n_components: int | str = "auto"
    n_estimators: int | str = "auto"
    solver: str = "adam"
    learning_rate_init: float = 0.01
    early_stopping: bool | str = True
    normalize_y: bool = True
    noise: str = "auto"
    noise_variance: float = 0.1

    _first_parameters: ClassVar[tuple[str, ...]] = ("hidden_layer_sizes", "n_components")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "n_components": [POSITIVE_INTEGER, AUTO],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "solver": [StrOptions({"adam", "adadelta"})],
        "normalize_y": ["boolean"],
        "noise": [StrOptions({"auto", "validation", "profiled", "learned"})],
        "noise_variance": [POSITIVE],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = (
        "n_components",
        "n_estimators",
        "normalize_y",
    )
