"""Groups of constructor parameters of regression on finite features.

They are data, like those of :mod:`skgpstoch.estimators.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .parameters import (
    ACTIVATION,
    AUTO,
    POSITIVE,
    POSITIVE_INTEGER,
    NetworkParameters,
    TargetParameters,
    TrainingParameters,
)


@dataclass(eq=False, repr=False, kw_only=True)
class FiniteParameters(TargetParameters, NetworkParameters, TrainingParameters):
    """Finite features, and the noise.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        Kernel on the features. None: their inner product, with the inputs and a constant added to
        the features. A DotProduct is linear in the features alone. RBF and Matern (nu = 0.5, 1.5,
        2.5 or inf), their products with one another and with constants, and sums of all these use
        random Fourier features. A top-level WhiteKernel is the noise. Hyper-parameters refer to the
        scaled y.
    hidden_layer_sizes : tuple of int, default=(128, 128)
        Widths of the network's layers; () uses the inputs themselves. Inputs to a network are
        standardised internally.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="relu"
        Activation after every layer, including the last.
    n_components : int or "auto", default="auto"
        Number of random Fourier features; "auto" is 5 for each row, between 100 and 1,000.
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined. Each is validated on a fold of its own. "auto"
        is 10,000/n_samples, at least 1 and at most 5, if `kernel` and `feature_map` are None and
        `early_stopping` is True, else 1. With one network and few rows, only a few held-out rows
        determine the noise.
    batch_size : int or "auto", default="auto"
        Number of rows per minibatch; "auto" is n_samples/64, between 128 and 512.
    max_iter : int or "auto", default="auto"
        Number of epochs; "auto" makes n_samples steps, but at least 1,000 (200 for very few rows)
        and at most 8,000.
    solver : {"adam", "adadelta"}, default="adam"
        Optimiser.
    learning_rate_init : float, default=0.01
        Learning rate, or its maximum with learning_rate="one-cycle".
    early_stopping : bool, default=True
        Whether to keep the iterate that predicts held-out rows best, by their negative log
        predictive density; the closing pass then uses these rows too. False: keep the iterate with
        the best exact marginal likelihood, which overfits networks unless there are very many rows;
        see the user guide.
    validation_fraction : float, default=0.1
        Fraction of the rows that a fold holds out. With several networks, at least 50 rows are held
        out in all, or all rows if there are fewer.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`. None: train to the end, as the
        one-cycle schedule needs.
    noise : {"auto", "validation", "profiled", "learned"}, default="auto"
        How to find the noise variance: "validation", from held-out rows; "profiled", from the
        running marginal likelihood; "learned", by gradient steps. "auto" is "validation" for
        networks with early stopping, else "profiled"; both also choose the signal variance (the
        scale of the kernel). The noise of a fixed WhiteKernel stays as it is.
    noise_variance : float, default=0.1
        Initial noise variance, relative to the scaled target.

    Attributes
    ----------
    posterior_ : torch.nn.Module
        The features and the posterior of their weights, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on the features, including its scale.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units.
    """

    hidden_layer_sizes: Any = (128, 128)
    activation: str = "relu"
    n_components: int | str = "auto"
    n_estimators: int | str = "auto"
    solver: str = "adam"
    learning_rate_init: float = 0.01
    early_stopping: bool | str = True
    noise: str = "auto"
    noise_variance: float = 0.1

    _first_parameters: ClassVar[tuple[str, ...]] = ("hidden_layer_sizes", "n_components")
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "activation": ACTIVATION,
        "n_components": [POSITIVE_INTEGER, AUTO],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "solver": [StrOptions({"adam", "adadelta"})],
        "noise": [StrOptions({"auto", "validation", "profiled", "learned"})],
        "noise_variance": [POSITIVE],
    }
    _shape_parameters: ClassVar[tuple[str, ...]] = ("activation", "n_components", "n_estimators")
