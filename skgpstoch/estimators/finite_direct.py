"""Finite features for direct loss minimisation: networks, linear ones, random Fourier features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from sklearn.base import is_classifier
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from .. import kernels
from ..data.rows import Data, Rows
from ..features.fourier import KernelFeatures
from ..features.network import ACTIVATIONS, multilayer_perceptron
from ..models.sparse import RowScale, SparseModel
from ..objectives.ensemble import EnsembleObjective
from .parameters import AUTO, POSITIVE_INTEGER
from .plan import FEW_DIRECT, Plan, direct_plan
from .sparse import check_choices
from .sparse_model import start_likelihood, start_mean

LAYERS = (128, 128)
N_WAVES = 8
WEIGHT_DECAY = 0.01
SOME_ROWS = 1000
FEW_VALUES = 8  # of an input, with which it has no waves


def many_valued(X: Tensor) -> Tensor:
    """Numbers of the columns that take more than a few values; rows are in random order."""
    counts = [len(torch.unique(column)) for column in X[:SOME_ROWS].mT]
    columns = [j for j, count in enumerate(counts) if count > FEW_VALUES]
    return torch.tensor(columns, dtype=torch.long, device=X.device)


@dataclass(eq=False, repr=False, kw_only=True)
class WithFiniteFeatures:
    """Models that may have finite features, before the family in the order of bases.

    Parameters
    ----------
    n_components : int, default=1000
        Number of random Fourier features of a `kernel`, with posterior="finite".
    n_estimators : int or "auto", default="auto"
        Number of networks, each blind to a fold of its own, with posterior="finite"; predictions
        are their mixture. "auto" is 8 up to 4,000 rows, then 3, or 6 for classes; 1 without a
        network of ours.
    n_waves : int or "auto", default="auto"
        Waves of each input that takes more than eight values, which the networks see beside it,
        with posterior="finite"; of 0 there are none. "auto" is 8; for up to 4,000 rows of classes,
        which need less detail, every other network has none.
    hidden_layer_sizes : tuple of int or "auto", default="auto"
        Widths of the network's layers; "auto" is (128, 128) with posterior="finite", and none
        below the kernel of others.
    activation : {"auto", "identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="auto"
        Activation after every layer, the last included; "auto" is "gelu" with posterior="finite",
        and "relu" below kernels.
    weight_decay : float or "auto", default="auto"
        Decoupled decay of the network's parameters (Adam); "auto" is 2000/n_samples, at most 0.3,
        below kernels, and 0.01 with posterior="finite".
    """

    hidden_layer_sizes: Any = "auto"
    activation: str = "auto"
    n_components: int = 1000
    n_estimators: int | str = "auto"
    n_waves: int | str = "auto"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "hidden_layer_sizes": ["array-like", POSITIVE_INTEGER, AUTO],
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        "n_components": [POSITIVE_INTEGER],
        "n_estimators": [POSITIVE_INTEGER, AUTO],
        "n_waves": [Interval(Integral, 0, None, closed="left"), AUTO],
    }

    @property
    def _is_finite(self: Any) -> bool:
        return bool(self.posterior == "finite")

    # ---- networks ------------------------------------------------------------------------------

    def _layers(self: Any) -> tuple[int, ...]:
        if isinstance(self.hidden_layer_sizes, str):
            usual = self._is_finite and self.feature_map is None and self.kernel is None
            return LAYERS if usual else ()
        return super()._layers()  # type: ignore[misc]

    def _network(
        self: Any, X: Tensor, generator: torch.Generator, n_members: int = 1
    ) -> tuple[nn.Module, int]:
        layers, activation = self._layers(), self.activation
        if activation == "auto":
            activation = "gelu" if self._is_finite else "relu"
        if self.feature_map is not None or not layers:
            return super()._network(X, generator, n_members)  # type: ignore[misc]
        n_waves = N_WAVES if self.n_waves == "auto" else int(self.n_waves)
        columns = many_valued(X)
        n_waves = n_waves if self._is_finite and len(columns) else 0
        some_plain = self.n_waves == "auto" and is_classifier(self) and len(X) <= FEW_DIRECT
        every = 2 if some_plain else 1
        shape = X.shape[1], layers, activation
        network = multilayer_perceptron(
            *shape, generator, n_members, n_waves=n_waves, columns=columns, every=every
        )
        return network.to(X), layers[-1]

    def _weight_decay(self: Any, n_rows: float) -> float:
        if self._is_finite and self.weight_decay == "auto":
            return WEIGHT_DECAY
        return super()._weight_decay(n_rows)  # type: ignore[misc]

    # ---- the model -----------------------------------------------------------------------------

    def _plan(self: Any, data: Data, n_given: int, start: Any, streams: bool = False) -> Plan:
        if not self._is_finite:
            return super()._plan(data, n_given, start, streams)  # type: ignore[misc]
        if start is not None or self.warm_start:
            raise ValueError("warm_start must be False with posterior='finite', got True.")
        if self.solver not in ("auto", "adam"):
            raise ValueError(
                f"solver must be 'auto' or 'adam' with posterior='finite', got {self.solver!r}."
            )
        self._check_network()
        white = self._split_kernel()[1]
        check_choices(self._make_likelihood(), self._make_loss(), white, data)
        has_layers = self.feature_map is None and bool(self._layers())
        return replace(direct_plan(self, len(data), has_layers), beta=self._kl_weight())

    def _objective(
        self: Any, X: Tensor, rows: Rows, plan: Plan, start: Any, generator: torch.Generator
    ) -> Any:
        if not self._is_finite:
            return super()._objective(X, rows, plan, start, generator)  # type: ignore[misc]
        some = rows[plan.folds.n_untrained :]
        white = self._split_kernel()[1]
        noise = None if white is None else self._initial_noise()
        likelihood = start_likelihood(self._make_likelihood(), some, noise)
        mean = start_mean(self.mean, likelihood, some)
        features = self._finite_map(X, generator, plan.folds.n_folds)
        scale = None
        if self._noise_of_inputs():
            shape = features.n_members, features.n_features, rows.y.shape[1]
            scale = RowScale(rows.y.new_zeros(shape))
        loss = self._make_loss()
        model = SparseModel(features, likelihood, mean, None, loss, plan.beta, scale)
        if not self._learns_noise():
            likelihood.requires_grad_(False)
        mean.requires_grad_(self.mean == "constant")
        self._freeze_network(features.network)
        objective = EnsembleObjective(
            model.to(X.device),
            rows,
            weight_decay=self._weight_decay(rows.n_effective),
            noise_bounds=self._noise_bounds(),
            calibrates=bool(self.calibrate),
        )
        objective.has_user_module = self.feature_map is not None
        return objective

    # ---- streams, and fitted attributes --------------------------------------------------------

    def _check_streams(self: Any) -> None:
        super()._check_streams()  # type: ignore[misc]
        if self._is_finite:
            raise ValueError("partial_fit needs inducing points, got posterior='finite'.")

    def _set_points(self: Any) -> None:
        for name in ("inducing_points_", "orthogonal_points_"):
            self.__dict__.pop(name, None)
        if not self._is_finite:
            super()._set_points()  # type: ignore[misc]

    def _fitted_kernel(self: Any) -> sk.Kernel:
        if not self._is_finite:
            return super()._fitted_kernel()  # type: ignore[misc]
        features = self._model.features
        if isinstance(features, KernelFeatures):
            return kernels.to_sklearn(features.kernel)
        return sk.DotProduct(sigma_0=0.0, sigma_0_bounds="fixed")
