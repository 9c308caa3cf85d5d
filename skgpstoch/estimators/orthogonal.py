"""Orthogonal inducing points, as constructor parameters say."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..features.inducing import InducingFeatures
from ..features.orthogonal import DecoupledFeatures, OrthogonalFeatures
from ..features.points import choose_points
from .sparse import VariationalGP, input_unit


@dataclass(eq=False, repr=False, kw_only=True)
class WithOrthogonalGP(VariationalGP):
    """Models that may have orthogonal points."""

    n_orthogonal: int | str = "auto"
    orthogonal_points: Any = None

    @abstractmethod
    def _covariance_there(self) -> str | None:
        """Of q at the orthogonal points: "free" or "prior"; None: there are no such points."""

    def _resolve(self, n_rows: float) -> None:
        super()._resolve(n_rows)
        if self._is_decoupled() and self.solver == "auto" and self.solver_ == "lbfgs":
            self.solver_ = "collapsed"
        if self._is_decoupled() and self.solver_ == "lbfgs":
            raise ValueError(
                "solver='lbfgs' needs whiten=True with the prior's covariance at orthogonal "
                "points: without, the price of the mean is a random estimate."
            )

    def _is_decoupled(self) -> bool:
        return self._covariance_there() == "prior" and not self.whiten

    def _prior_blocks(self, features: InducingFeatures) -> tuple[bool, ...]:
        return tuple(
            b > 0 and self._covariance_there() == "prior" for b in range(len(features.blocks))
        )

    def _n_points(self, n_rows: int) -> int:
        M, chosen = super()._n_points(n_rows), isinstance(self.inducing_points, str)
        if self.n_inducing == "auto" and chosen and self._covariance_there() is not None:
            return min(M, max(1, n_rows // 2))
        return M

    def _n_others(self, n_rows: int, M: int) -> int:
        """M₂."""
        if self._starts_warm():
            return self._same_number(
                "n_orthogonal", len(cast(OrthogonalFeatures, self._start_model().features).others)
            )
        if self.orthogonal_points is not None:
            return self._same_number("n_orthogonal", len(np.asarray(self.orthogonal_points)))
        M2 = min(M, max(1, n_rows - M)) if self.n_orthogonal == "auto" else int(self.n_orthogonal)
        if n_rows < M2:
            raise ValueError(
                f"n_orthogonal={self.n_orthogonal} must be at most the number of rows to train on, "
                f"{n_rows}."
            )
        return M2

    def _features(self, X: Tensor, n_latents: int, generator: torch.Generator) -> InducingFeatures:
        if self._covariance_there() is None:
            return super()._features(X, n_latents, generator)
        network, width = self._network(X, generator)
        kernel = self._kernel_module(self._embedded(network.eval(), X)).to(X.device)
        M = self._n_points(len(X))
        M2 = self._n_others(len(X), M)
        inducing, others = self._both_kinds(X, M, M2, kernel, network, generator)
        args = (kernel, network, inducing, input_unit(X), width)
        if self._is_decoupled():
            return DecoupledFeatures(
                *args, orthogonal_points=others, n_outputs=n_latents, n_columns=max(M, 256)
            )
        return OrthogonalFeatures(*args, orthogonal_points=others)

    def _both_kinds(
        self,
        X: Tensor,
        M: int,
        M2: int,
        kernel: Any,
        network: nn.Module,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Z and O: where neither is given, two parts of one set if there are rows for it."""
        inducing = self._start_points("inducing_points", X)
        others = self._start_points("orthogonal_points", X)
        if inducing is None and others is None and len(X) >= M + M2:
            method = self.inducing_points
            points = choose_points(method, X, M + M2, kernel, network, generator)
            if method != "conditional_variance":  # of which the first are the best
                points = points[torch.randperm(M + M2, generator=generator, device=X.device)]
            return points[:M], points[M:]
        if inducing is None:
            inducing = choose_points(self.inducing_points, X, M, kernel, network, generator)
        if others is None:
            method = self.inducing_points if isinstance(self.inducing_points, str) else "kmeans"
            others = choose_points(method, X, M2, kernel, network, generator)
        return inducing, others
