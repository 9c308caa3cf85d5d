"""An ensemble as one posterior: the mixture of its members', each as likely as the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise
from ..maths.gaussian import Marginals
from .base import Posterior
from .sparse import SparseModel, SparsePosterior


class MixturePosterior(Posterior):
    """(1/K) Σ_k p_k(f | data).

    Parameters
    ----------
    members : sequence of SparsePosterior
        With the same likelihood, but for the noise of rows.
    spread : float, default=1.0
        What the deviations of the members' means from their mean are multiplied by.
    """

    members: nn.ModuleList

    def __init__(self, members: Sequence[SparsePosterior], spread: float = 1.0) -> None:
        super().__init__()
        self.spread = spread
        self.members = nn.ModuleList(members)
        self.likelihood = members[0].likelihood

    @property
    def parts(self) -> list[SparsePosterior]:
        """The members."""
        return cast("list[SparsePosterior]", list(self.members))

    @property
    def model(self) -> SparseModel:
        """That of the first member."""
        return self.parts[0].model

    @property
    def n_rows(self) -> float:
        return self.parts[0].n_rows

    def log_evidence(self) -> Tensor:
        """The mean of the members', a bound on the logarithm of the mean evidence: (1,) nats."""
        return torch.stack([part.log_evidence() for part in self.parts]).mean(0)

    def marginals(self, X: Tensor) -> Marginals:
        return self._joined([part.marginals(X) for part in self.parts])

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        pairs = [part.predictive(X, rows) for part in self.parts]
        return self._joined([q for q, _ in pairs]), joint_likelihood([p for _, p in pairs])

    def _joined(self, parts: Sequence[Marginals]) -> Marginals:
        """Components of the mixture, (1, N, P) each."""
        mean, var = (torch.cat(both) for both in zip(*parts, strict=True))
        return Marginals(drawn_together(mean, self.spread), var)

    def covariance(self, X: Tensor) -> Tensor:
        means = torch.stack([part.marginals(X).mean[0].mT for part in self.parts])  # (K, P, N)
        spread = self.spread * (means - means.mean(0)).permute(1, 2, 0)  # (P, N, K)
        within = torch.stack([part.covariance(X) for part in self.parts]).mean(0)
        return within + spread @ spread.mT / len(means)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws, each of a member drawn before."""
        return self._drawn(X, n_samples, generator, lambda part, n: part.sample(X, n, generator))

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        if not isinstance(self.likelihood, AdditiveNoise):  # y cannot be shifted
            return super().sample_y(X, rows, n_samples, generator)
        return self._drawn(
            X, n_samples, generator, lambda part, n: part.sample_y(X, rows, n, generator)
        )

    def _drawn(
        self,
        X: Tensor,
        n_samples: int,
        generator: torch.Generator,
        draw: Callable[[SparsePosterior, int], Tensor],
    ) -> Tensor:
        means = torch.cat([part.marginals(X).mean for part in self.parts])  # (K, N, P)
        shifts = drawn_together(means, self.spread) - means
        K, device = len(self.members), generator.device
        which = torch.randint(K, (n_samples,), generator=generator, device=device)
        counts = torch.bincount(which, minlength=K).tolist()
        draws = [
            draw(part, n) + shift
            for part, n, shift in zip(self.parts, counts, shifts, strict=True)
            if n
        ]
        return torch.cat(draws)[which.argsort(stable=True).argsort()]


def drawn_together(means: Tensor, spread: float) -> Tensor:
    """Nearer to their mean over the first axis."""
    centre = means.mean(0)
    return means if spread == 1.0 else centre + spread * (means - centre)


def joint_likelihood(parts: Sequence[Likelihood]) -> Likelihood:
    """The same for all components, but for the noise of rows."""
    ratios = [getattr(part, "ratio", None) for part in parts]
    if ratios[0] is None:
        return parts[0]
    return cast(AdditiveNoise, parts[0]).scaled(torch.stack(cast("list[Tensor]", ratios)))
