"""An ensemble as one posterior: the mixture of its members', each as likely as the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise
from ..maths.gaussian import Marginals, standard_normal
from ..posteriors.base import Posterior
from .sparse import SparseModel, SparsePosterior


class MixturePosterior(Posterior):
    """(1/K) Σ_k p_k(f | data).

    Parameters
    ----------
    members : sequence of SparsePosterior
        With the same likelihood, but for the noise of rows.
    mean_shrinkage : float, default=1.0
        What the deviations of the members' means from their mean are multiplied by.
    disagreement_scale : float, default=0.0
        What these deviations are multiplied by to be one of f, of every member.
    """

    members: nn.ModuleList

    def __init__(
        self,
        members: Sequence[SparsePosterior],
        mean_shrinkage: float = 1.0,
        disagreement_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.mean_shrinkage = mean_shrinkage
        self.disagreement_scale = disagreement_scale
        self.members = nn.ModuleList(members)
        self.likelihood = members[0].likelihood
        self._n_rows = members[0].n_rows

    @property
    def parts(self) -> list[SparsePosterior]:
        """The members."""
        return cast("list[SparsePosterior]", list(self.members))

    @property
    def model(self) -> SparseModel:
        """That of the first member."""
        return self.parts[0].model

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
        each = Marginals(*(torch.cat(both) for both in zip(*parts, strict=True)))
        return drawn_together(each, self.mean_shrinkage, self.disagreement_scale)

    def covariance(self, X: Tensor) -> Tensor:
        within = torch.stack([part.covariance(X) for part in self.parts]).mean(0)
        factor = self.mean_shrinkage**2 + self.disagreement_scale**2
        return within + factor * self._disagreement(X)

    def between(self, X: Tensor) -> Tensor:
        return self.mean_shrinkage**2 * self._disagreement(X)

    def _disagreement(self, X: Tensor) -> Tensor:
        """Covariance of the members' means, as they are: (P, N, N)."""
        means = torch.stack([part.marginals(X).mean[0].mT for part in self.parts])  # (K, P, N)
        apart = (means - means.mean(0)).permute(1, 2, 0)  # (P, N, K)
        return apart @ apart.mT / len(means)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Joint draws, each of a member drawn before."""
        return self._drawn(X, None, n_samples, generator)

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        if not isinstance(self.likelihood, AdditiveNoise):  # y is drawn given f
            return super().sample_y(X, rows, n_samples, generator)
        return self._drawn(X, rows, n_samples, generator)

    def _drawn(
        self, X: Tensor, rows: Rows | None, n_samples: int, generator: torch.Generator
    ) -> Tensor:
        """Joint draws of f or, of these rows, of y."""
        means = torch.cat([part.marginals(X).mean for part in self.parts])
        K, _, P = means.shape
        apart, device = means - means.mean(0), generator.device
        which = torch.randint(K, (n_samples,), generator=generator, device=device)
        draws = []
        for k, n in enumerate(torch.bincount(which, minlength=K).tolist()):
            if not n:
                continue
            f = self.parts[k].sample(X, n, generator) + (self.mean_shrinkage - 1.0) * apart[k]
            if self.disagreement_scale:
                z = standard_normal((n, K, P), f, generator)
                f = f + self.disagreement_scale / K**0.5 * torch.einsum("skp,knp->snp", z, apart)
            if rows is not None:
                likelihood = cast(AdditiveNoise, self.parts[k].predictive(X, rows)[1])
                mean = means[k] + (self.mean_shrinkage - 1.0) * apart[k]
                f = likelihood.sample_around(f, mean, generator)
            draws.append(f)
        return torch.cat(draws)[which.argsort(stable=True).argsort()]


def drawn_together(q: Marginals, mean_shrinkage: float, disagreement_scale: float) -> Marginals:
    """Means nearer to their mean over the first axis, and variances larger by where they were."""
    centre = q.mean.mean(0)
    apart = q.mean - centre
    mean = q.mean if mean_shrinkage == 1.0 else centre + mean_shrinkage * apart
    if not disagreement_scale:
        return Marginals(mean, q.var)
    return Marginals(mean, q.var + disagreement_scale**2 * apart.square().mean(0))


def joint_likelihood(parts: Sequence[Likelihood]) -> Likelihood:
    """The same for all components, but for the noise of rows."""
    ratios = [getattr(part, "ratio", None) for part in parts]
    if ratios[0] is None:
        return parts[0]
    return cast(AdditiveNoise, parts[0]).scaled(torch.stack(cast("list[Tensor]", ratios)))
