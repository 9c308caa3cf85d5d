"""An ensemble as one posterior: the equally weighted mixture of its members' posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..likelihoods.by_row import ScaledByRow
from ..likelihoods.real import AdditiveNoise
from ..likelihoods.shared_precision import SharedStudentT
from ..likelihoods.skewed import Skewed
from ..maths.gaussian import Marginals, standard_normal
from .posteriors.base import Posterior
from .posteriors.functions import Functions
from .sparse import SparseModel, SparsePosterior, check_same_likelihood


class Spread(NamedTuple):
    """The factor r(s) = a·s^(γ − 1) of deviations at rows where y has the standard deviation s.

    Y becomes m + r(s)(Y − m), where m is the mean of the row; see
    :mod:`skgpstoch.models.calibration.spread`.
    """

    factor: Any  # a, an array or a tensor (P,)
    exponent: float  # γ

    def ratio(self, std: Any) -> Any:
        """Return r of each row, (N, P), given standard deviations of y."""
        return self.factor * std ** (self.exponent - 1.0)


class MixturePosterior(Posterior):
    """The mixture (1/K) Σ_k p_k(f | data) of K members' posteriors.

    Parameters
    ----------
    members : sequence of SparsePosterior
        Posteriors that share a likelihood, except for the noise of rows.
    mean_shrinkage : float, default=1.0
        Factor of the differences between the members' means and their average.
    disagreement_scale : float, default=0.0
        Factor s of these differences: s² times their mean square is added to each member's variance
        of f.
    spread : Spread or None, default=None
        Factor of the deviations of f and of the noise from the mixture's mean; None is 1.
    skew : Tensor of shape (P,) or None, default=None
        Skewness ε of the predictive distributions of y, see :mod:`skgpstoch.likelihoods.skewed`.
    """

    members: nn.ModuleList
    factor: Tensor | None
    skew: Tensor | None

    def __init__(
        self,
        members: Sequence[SparsePosterior],
        mean_shrinkage: float = 1.0,
        disagreement_scale: float = 0.0,
        spread: Spread | None = None,
        skew: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("factor", None if spread is None else spread.factor)
        self.exponent = 1.0 if spread is None else spread.exponent
        self.register_buffer("skew", skew)
        self.mean_shrinkage = mean_shrinkage
        self.disagreement_scale = disagreement_scale
        self.members = nn.ModuleList(members)
        self.likelihood = members[0].likelihood
        self._n_rows = members[0].n_rows

    def check_parts(self) -> None:
        """Raise a ValueError if members are no sparse models, or of other likelihoods."""
        for part in self.members:
            if not isinstance(part, SparsePosterior):
                raise ValueError(f"a {type(self).__name__} has a {type(part).__name__} as a member")
        check_same_likelihood(self, *self.members)

    @property
    def parts(self) -> list[SparsePosterior]:
        """The members."""
        return cast("list[SparsePosterior]", list(self.members))

    @property
    def model(self) -> SparseModel:
        """The model of the first member."""
        return self.parts[0].model

    def log_evidence(self) -> Tensor:
        """Return the mean of the members' bounds, a bound on the log mean evidence: (1,) nats."""
        return torch.stack([part.log_evidence() for part in self.parts]).mean(0)

    @property
    def spread(self) -> Spread | None:
        """Factor of deviations; None if they stay as they are."""
        return None if self.factor is None else Spread(self.factor, self.exponent)

    def marginals(self, X: Tensor) -> Marginals:
        if self.spread is not None:
            return self.predictive(X, nothing_known(X))[0]
        return self._joined([part.marginals(X) for part in self.parts])

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        q, likelihood = self._mixed(X)
        if self.spread is not None:
            q, likelihood = respread(q, cast(AdditiveNoise, likelihood), self.spread)
        likelihood = likelihood.of(rows)
        if self.skew is not None:
            likelihood = Skewed(cast(SharedStudentT, likelihood), self.skew)
        return q, likelihood

    def _mixed(self, X: Tensor) -> tuple[Marginals, Likelihood]:
        """Return the mixture before deviations are spread, without known errors of rows."""
        pairs = [part.predictive(X, nothing_known(X)) for part in self.parts]
        return self._joined([q for q, _ in pairs]), joint_likelihood([p for _, p in pairs])

    def _ratio(self, X: Tensor) -> Tensor | None:
        """Return the factor of deviations, (N, P)."""
        if self.spread is None:
            return None
        q, likelihood = self._mixed(X)
        return ratio_of(self.spread, q, cast(AdditiveNoise, likelihood))

    def _joined(self, parts: Sequence[Marginals]) -> Marginals:
        """Join components of the mixture, (1, N, P) each."""
        each = Marginals(*(torch.cat(both) for both in zip(*parts, strict=True)))
        return drawn_together(each, self.mean_shrinkage, self.disagreement_scale)

    def covariance(self, X: Tensor) -> Tensor:
        within = torch.stack([part.covariance(X) for part in self.parts]).mean(0)
        factor = self.mean_shrinkage**2 + self.disagreement_scale**2
        return self._spread_covariance(X, within + factor * self._disagreement(X))

    def between(self, X: Tensor) -> Tensor:
        return self._spread_covariance(X, self.mean_shrinkage**2 * self._disagreement(X))

    def _spread_covariance(self, X: Tensor, cov: Tensor) -> Tensor:
        """Return r_i·cov_ij·r_j, (P, N, N)."""
        if (ratio := self._ratio(X)) is None:
            return cov
        return ratio.mT[:, :, None] * cov * ratio.mT[:, None, :]

    def _disagreement(self, X: Tensor) -> Tensor:
        """Return the covariance of the members' means, before spreading: (P, N, N)."""
        means = torch.stack([part.marginals(X).mean[0].mT for part in self.parts])  # (K, P, N)
        apart = (means - means.mean(0)).permute(1, 2, 0)  # (P, N, K)
        return apart @ apart.mT / len(means)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw f jointly; each draw is from a randomly chosen member."""
        return self._drawn(X, None, n_samples, generator)

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        if not isinstance(self.likelihood, ScaledByRow):  # y is drawn given f
            return super().sample_y(X, rows, n_samples, generator)
        draws = self._drawn(X, rows, n_samples, generator)
        if self.skew is None:
            return draws
        q, likelihood = self.predictive(X, rows)
        return cast(Skewed, likelihood).map(q)(draws)

    def _drawn(
        self, X: Tensor, rows: Rows | None, n_samples: int, generator: torch.Generator
    ) -> Tensor:
        """Draw f jointly or, if `rows` are given, y before it is made skew."""
        means, ratio = self._means(X), self._ratio(X)
        K, _, P = means.shape
        var = means if rows is None else self.marginals(X).var  # (K, N, P)
        which, counts = self._members_drawn(n_samples, generator)
        draws = []
        for k, n in counts:
            f, z = self.parts[k].sample(X, n, generator), None
            if self.disagreement_scale:
                z = standard_normal((n, K, P), f, generator)
            f, mean = self._moved(f, z, k, means, ratio)
            if rows is not None:
                noise = cast(ScaledByRow, self.parts[k].predictive(X, nothing_known(X))[1])
                noise = noise if ratio is None else noise.scaled(times(noise.ratio, ratio))
                q = Marginals(mean, var[k])
                f = cast(ScaledByRow, noise.of(rows)).sample_around(f, q, generator)
            draws.append(f)
        return torch.cat(draws)[which]

    @torch.no_grad()
    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        K, P = len(self.parts), self.parts[0].weights.mean.shape[1]
        which, counts = self._members_drawn(n_samples, generator)
        like, drawn = self.parts[0].weights.mean, []
        for k, n in counts:
            f = self.parts[k].functions(n, generator)
            z = standard_normal((n, K, P), like, generator) if self.disagreement_scale else None
            drawn.append((f, z, k))

        def values(X: Tensor) -> Tensor:
            means, ratio = self._means(X), self._ratio(X)
            return torch.cat([self._moved(f(X), z, k, means, ratio)[0] for f, z, k in drawn])[which]

        return values

    def _means(self, X: Tensor) -> Tensor:
        """Return the means of the members, (K, N, P)."""
        return torch.cat([part.marginals(X).mean for part in self.parts])

    def _members_drawn(
        self, n_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, list[tuple[int, int]]]:
        """Choose a random member for each draw.

        Return the index that puts draws, which come member by member, in random order; and each
        chosen member with its number of draws.
        """
        K = len(self.parts)
        which = torch.randint(K, (n_samples,), generator=generator, device=generator.device)
        counts = enumerate(torch.bincount(which, minlength=K).tolist())
        return which.argsort(stable=True).argsort(), [(k, n) for k, n in counts if n]

    def _moved(
        self, f: Tensor, z: Tensor | None, k: int, means: Tensor, ratio: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Turn draws (S, N, P) of the k-th member into the mixture's; return their mean too."""
        centre = means.mean(0)
        apart = means - centre
        shift = (self.mean_shrinkage - 1.0) * apart[k]
        f, mean = f + shift, means[k] + shift
        if z is not None:  # (S, K, P)
            scale = self.disagreement_scale / len(means) ** 0.5
            f = f + scale * torch.einsum("skp,knp->snp", z, apart)
        if ratio is None:
            return f, mean
        return centre + ratio * (f - centre), centre + ratio * (mean - centre)


def nothing_known(X: Tensor) -> Rows:
    """Return rows for X without exposures or known errors."""
    return Rows(X[:, :1])


def ratio_of(spread: Spread, q: Marginals, likelihood: AdditiveNoise) -> Tensor:
    """Return r of each row, (N, P)."""
    std = likelihood.moments(q).mixture_moments()[1].sqrt()
    return cast(Tensor, spread.ratio(std)).to(std)


def times(ratio: Tensor | None, other: Tensor) -> Tensor:
    """Return the product of two scales of the noise, the first of which may be 1."""
    return other if ratio is None else ratio * other


def respread(
    q: Marginals, likelihood: AdditiveNoise, spread: Spread
) -> tuple[Marginals, AdditiveNoise]:
    """Return q(f) and the noise of Y' = m + r(Y − m), for the mean m of each row.

    Outliers still reach no further than errors of held-out rows: their limit stays as it is.
    """
    r, mean = ratio_of(spread, q, likelihood), q.mean.mean(0)
    q = Marginals(mean + r * (q.mean - mean), r.square() * q.var)
    return q, likelihood.scaled(times(likelihood.ratio, r))


def drawn_together(q: Marginals, mean_shrinkage: float, disagreement_scale: float) -> Marginals:
    """Shrink means towards their average over the first axis, and add their spread to variances."""
    centre = q.mean.mean(0)
    apart = q.mean - centre
    mean = q.mean if mean_shrinkage == 1.0 else centre + mean_shrinkage * apart
    if not disagreement_scale:
        return Marginals(mean, q.var)
    return Marginals(mean, q.var + disagreement_scale**2 * apart.square().mean(0))


def joint_likelihood(parts: Sequence[Likelihood]) -> Likelihood:
    """Return the components' common likelihood, joined over the noise of rows."""
    ratios = [getattr(part, "ratio", None) for part in parts]
    if ratios[0] is None:
        return parts[0]
    return cast(ScaledByRow, parts[0]).scaled(torch.stack(cast("list[Tensor]", ratios)))
