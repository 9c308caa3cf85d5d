"""Orthogonal inducing points beside the ordinary ones, as constructor parameters say."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data.rows import Rows
from ..features.inducing import InducingFeatures
from ..features.points import choose_points
from .parameters import OrthogonalParameters
from .plan import USUAL_BATCH, Plan, given_number, n_others
from .sparse_model import both_kinds, input_unit, make_features, make_kernel
from .warm_start import fitted_number

COVARIANCES = {"svgp": None, "solve": "free", "odvgp": "prior"}
"""Of q at orthogonal points, by the name of a family; None: there are no such points."""


@dataclass(eq=False, repr=False, kw_only=True)
class WithOrthogonalPoints(OrthogonalParameters):
    """Models that may have orthogonal points, before the family in the order of bases."""

    @abstractmethod
    def _covariance_there(self) -> str | None:
        """Of q at the orthogonal points: "free" or "prior"; None: there are no such points."""

    def _is_decoupled(self: Any) -> bool:
        """Whether the mean there is learned by coefficients of kernel functions."""
        return self._covariance_there() == "prior" and not self.whiten

    def _batch_needed(self) -> int | None:
        return USUAL_BATCH if self._is_decoupled() else None

    def _prior_blocks(self, features: InducingFeatures) -> tuple[bool, ...]:
        is_prior = self._covariance_there() == "prior"
        return tuple(b > 0 and is_prior for b in range(len(features.blocks)))

    def _n_points(
        self: Any, n_rows: int, n_given: int, n_untrained: int, start: Any, shares: bool = False
    ) -> tuple[int, int]:
        if self._covariance_there() is None:
            return super()._n_points(n_rows, n_given, n_untrained, start)  # type: ignore[misc]
        M, _ = super()._n_points(n_rows, n_given, n_untrained, start, True)  # type: ignore[misc]
        if start is not None:
            others = getattr(start.model.features, "others", None)
            if others is None:
                raise ValueError(
                    "warm_start=True goes on from a model without orthogonal points, but they are "
                    "asked for now; set that back, or fit with warm_start=False."
                )
            return M, fitted_number(self, "n_orthogonal", len(others))
        if self.orthogonal_points is not None:
            given = len(self.orthogonal_points)
            return M, given_number(self.n_orthogonal, "n_orthogonal", given)
        return M, n_others(self, n_rows - n_untrained, n_given - n_untrained, M)

    def _features(
        self: Any, X: Tensor, rows: Rows, n_latents: int, plan: Plan, fitted: Any, generator: Any
    ) -> InducingFeatures:
        if self._covariance_there() is None:
            return super()._features(X, rows, n_latents, plan, fitted, generator)  # type: ignore[misc]
        network, width = self._network(X, generator)
        most = self._make_likelihood().most_prior_variance
        kernel = make_kernel(self._split_kernel()[0], network, X, rows, most)
        method = self.inducing_points if isinstance(self.inducing_points, str) else "kmeans"

        def choose(n_points: int) -> Tensor:
            return choose_points(
                method, X, n_points, kernel, network.eval(), generator, rows.weight
            )

        given = [
            self._start_points(name, X, fitted) for name in ("inducing_points", "orthogonal_points")
        ]
        best_first = method == "conditional_variance"
        sizes, shuffles = (plan.n_inducing, plan.n_orthogonal), None if best_first else generator
        points, others = both_kinds(choose, sizes, given, len(X), shuffles)
        arguments = (kernel, network, points, input_unit(X, rows), width)
        return make_features(arguments, others, n_latents, self._is_decoupled())
