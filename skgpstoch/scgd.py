"""Exact stochastic marginal likelihood on finite-dimensional kernels: SCGD, MINIMAX, BSGD.

Shoham & Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS".
With features Z (n, D), F = ZᵀZ + λI, noise σ² and ridge λ (the paper has λ = σ²),

    2·NLML = ‖Zw − y‖²/σ² + (λ/σ²)‖w‖² + log|F| + (n−D)·log σ² + D·log(σ²/λ) + n·log 2π,   w = F⁻¹Zᵀy

is a sum over rows but for log|F|. The three methods differ in what they put in its place:

    SCGD     ⟨F̃⁻¹, F⟩ with a running estimate F̃ of F, held constant by the gradient      (sec. 3.2)
    MINIMAX  log|A| + μ·max_{‖B‖≤1} ⟨B, A − F⟩/‖A‖, with A and B learned as well           (sec. 3.1)
    BSGD     log|F_S| of the minibatch S alone, which is biased                            (sec. 4.2)

Minibatch sums over b rows are scaled by n/b, and every loss is per row: divided by 2n.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from ._finite_regressor import FiniteGPRegressor

from ._objective import surrogate
from .evidence import most_likely, spectrum
from .features import FeatureMap
from .finite import FiniteObjective
from .gaussian import LOG_2PI

PROFILE_EVERY = 25  # steps between updates of a profiled noise, each an O(D³) eigendecomposition
PROFILE_WARM_UP = 200  # steps before the first, when the features still say little about the noise
PROFILE_DAMPING = 0.25


class SCGDObjective(FiniteObjective):
    """SCGD: the gradient of log|F| is that of ⟨F̃⁻¹, F⟩ with F̃ the running estimate of F.

    The averages are of G = ZᵀZ and c = Zᵀy, to which the present λI is added exactly, and they include
    the present minibatch: with few rows or b_t near 1, as in the paper's experiments, F̃ would
    otherwise miss most directions of the present features.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`FiniteObjective`.
    weights : {"profiled", "learned"}
        w = F̃⁻¹c̃, or a parameter that is trained like the others.
    """

    def __init__(self, *args: Any, weights: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        K, D, P = self.running.cross.shape
        self.w = nn.Parameter(torch.zeros(K, D, P)) if weights == "learned" else None

    def loss(self, Z: Tensor, Y: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            value, gradients = self.value_and_gradients(Z, Y, b)
        return surrogate(value, *gradients)

    def value_and_gradients(
        self, Z: Tensor, Y: Tensor, b: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """NLML per row with F̃ and the gradients by Z, and where they are learned w and log σ²."""
        noise, ridge, n = self.noise_variance, self.ridge, self.n_rows[:, None]  # (P,), (P,), (K, 1)
        estimate = self.running.total(self.n_rows)
        L = self.factor(estimate.gram, ridge)  # (K, P, D, D)
        F_inv = torch.cholesky_inverse(L)
        w = (F_inv @ estimate.cross.mT[..., None])[..., 0].mT if self.w is None else self.w
        log_det = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (K, P)

        D = Z.shape[2]
        precision = (1.0 / noise).to(Z)
        r = Z @ w.to(Z) - Y  # (K, b, P)
        fit = r.square().sum(1) / (b * noise)  # (K, P)
        penalty = w.double().square().sum(1) * ridge / noise  # (K, P)
        log_scales = (n - D) * noise.log() + D * (noise / ridge).log()
        value = 0.5 * (fit + (penalty + log_det + log_scales) / n + LOG_2PI).sum(1).mean()

        dZ = ((r * precision) @ w.mT.to(Z) + Z @ F_inv.sum(1).to(Z)) / b[..., None]
        gradients = [(Z, dZ)]
        if self.w is not None:
            dw = Z.mT @ (r * precision) / b[..., None] + w * (ridge / noise) / n[..., None]
            gradients.append((self.w, dw.to(self.w)))
        if self.noise == "learned":  # λ = σ²
            trace = F_inv.diagonal(dim1=-2, dim2=-1).sum(-1) * ridge
            d_log_noise = 0.5 * ((trace + n - D) / n - fit)
            gradients.append((self.log_noise, d_log_noise.mean(0)))
        return value, gradients

    def step_end(self) -> None:
        steps = self.running.n_steps
        if self.noise == "profiled" and steps >= PROFILE_WARM_UP and steps % PROFILE_EVERY == 0:
            s = spectrum(self.running.total(self.n_rows))
            self.set_noise(*most_likely(s), damping=PROFILE_DAMPING)
        super().step_end()


class SCGDGaussianProcessRegressor(FiniteGPRegressor):
    """SCGD."""

    _parameter_constraints: dict[str, list] = {
        **FiniteGPRegressor._parameter_constraints,
        "averaging": [
            Interval(Real, 0, 1, closed="right"),
            StrOptions({"auto", "theory"}),
        ],
        "weights": [StrOptions({"profiled", "learned"})],
    }

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        hidden_layer_sizes: Any = (128, 128),
        activation: str = "relu",
        feature_map: nn.Module | None = None,
        n_components: int = 1000,
        n_estimators: int | str = "auto",
        averaging: float | str = "auto",
        weights: str = "profiled",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        solver: str = "adam",
        learning_rate_init: float = 0.01,
        learning_rate: str = "one-cycle",
        weight_decay: float | str = "auto",
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | None = None,
        tol: float = 0.0,
        normalize_y: bool = True,
        noise: str = "auto",
        noise_variance: float = 0.1,
        warm_start: bool = False,
        device: str | torch.device | None = None,
        dtype: str = "float32",
        checkpoint_dir: Any = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            kernel,
            hidden_layer_sizes=hidden_layer_sizes,
            activation=activation,
            feature_map=feature_map,
            n_components=n_components,
            n_estimators=n_estimators,
            batch_size=batch_size,
            max_iter=max_iter,
            solver=solver,
            learning_rate_init=learning_rate_init,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            normalize_y=normalize_y,
            noise=noise,
            noise_variance=noise_variance,
            warm_start=warm_start,
            device=device,
            dtype=dtype,
            checkpoint_dir=checkpoint_dir,
            verbose=verbose,
            random_state=random_state,
        )
        self.averaging = averaging
        self.weights = weights

    def _method(self, features: FeatureMap, targets: Tensor, **options: Any) -> SCGDObjective:
        return SCGDObjective(
            features, targets, weights=self.weights, averaging=self.averaging, **options
        )
