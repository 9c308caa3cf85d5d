"""QSRVM: relevance vector machines on dictionaries of any size.

Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001; Evans & Nair,
"Quadruply stochastic Gaussian processes", 2020, sec. I.3. Here f = Φw with a function φ_i = k(·,
x_i) for each training row, w_i ~ N(0, 1/s_i), and every s_i is learned. With H = ΦᵀΛΦ + diag(s) and
γ_i = 1 − s_i[H⁻¹]_ii, the share of w_i that the data determine, the evidence is stationary at
(MacKay's update)

    s_i = γ_i/μ_i²,   σ² = ‖y − Φμ‖²/(n − Σγ_i).

Most s_i diverge to infinity. Their functions are removed; the others are the relevance vectors.
Functions are visited one block at a time, as in :mod:`skgpstoch.objectives.blockwise`, with the H
of the block. Once one block can hold all remaining functions, it does, and the method is Tipping's
algorithm. From then on, functions whose deletion raises the evidence (:func:`superfluous`) are
removed too. The posterior of up to 2,000 remaining functions is exact for a Gaussian likelihood.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from scipy.special import gammaln
from scipy.stats import entropy
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from ...data.arrays import Scaling
from ...data.devices import all_hold
from ...data.findings import Finding
from ...data.rows import Rows
from ...estimators.classifier import Classifier
from ...estimators.docs import public_estimator
from ...estimators.regressor import Regressor
from ...likelihoods.base import Likelihood
from ...likelihoods.logistic import logistic_likelihood
from ...likelihoods.real import Gaussian
from ...maths.linalg import NotPositiveDefiniteError, cholesky
from ...models.features.basis_functions import KernelBasis
from ...models.posteriors.chevron import ChevronModel, ChevronPosterior, block_kl
from ...objectives.blockwise import (
    BasisObjective,
    Block,
    BlockwiseObjective,
    Sweep,
    unit_diagonal,
)
from ...training.optimizers import one_cycle
from ...training.recipes.basis import BasisRecipe, KernelFunctions
from ...training.recipes.error_findings import judged_rows
from ...training.recipes.findings import UNTRAINED
from ...training.recipes.fitted import Fitted
from ...training.recipes.fitted_errors import marginals_at
from ...training.recipes.kernel_choice import KernelChoice
from ...training.recipes.plan import Plan, Sizes, Start, Training
from ...training.recipes.recipe import Problem
from .parameters import BasisParameters, BasisRegressionParameters
from .stochastic_rvm import INFINITE, StochasticRelevance

PRUNED = 1e-4  # γ_i below which a function goes
FAR = 1e-3  # nats per row that a step gains
SETTLED = 1e-2  # of log s_i, by which none moves any more; twice that where there are classes
SUPERFLUOUS = 50  # functions, of which one may go at a time
RELEVANCE_BLOCK = 1024  # basis functions of a step, of "auto"
RELEVANCE_SWEEPS = 500  # at most, of "auto"
START_ROWS = 64  # that the first s_i are found from
LATENT_VARIANCE = 1.0
"""Most prior variance of a latent f at the start. Of a function that only one row sees, any s_i has
the same evidence, so that it stays large if it starts so. *Measured* (log loss of 200 rows) from
k(x, x), then from 1: breast cancer .24, .28, then .16, .15; hastie_10_2 .76, 2.02, 1.06, then .67,
1.62, .69; three draws of moons .34, .31, .24, then .32, .30, .24."""
NEWTON_STEPS = 50  # of the closing posterior at most
MOST_ROUNDS = 10  # of its blocks, where it has several
CLOSED = 1e-7  # nats per row gained by a step after which there is none
MOST_PRECISION = 1e12
HALF = 0.5  # of the rows, beyond which relevant ones are too many for intervals
STOCHASTIC_BLOCK = 256  # basis functions of a step of AdaGrad, of "auto"
STOCHASTIC_ROWS = 1024  # of such a step, of "auto", and of the control variate
STOCHASTIC_STEPS = 10_000
MOST_RELEVANT = 2_000  # relevance vectors whose covariance is kept as a whole


class RelevanceObjective(BlockwiseObjective):
    """Block-wise steps for q(w), and MacKay's steps for the precisions of the block."""

    active: Tensor  # (m, P): functions that are not pruned
    determined: Tensor  # γ at the last visit, (m, P)

    def __init__(self, model: ChevronModel, X: Tensor, rows: Rows, **options: Any) -> None:
        super().__init__(model, X, rows, **options)
        most = math.inf if isinstance(model.likelihood, Gaussian) else LATENT_VARIANCE
        model.s.fill_(start_precision(model, X, most))
        model.start_from_prior_()
        self.register_buffer("active", torch.ones_like(model.std, dtype=torch.bool))
        self.register_buffer("determined", torch.zeros_like(model.std))
        self.last = model.std.new_zeros(())
        self.square = model.std.new_zeros(())  # ‖y − Φμ‖², (P,)
        self.largest = 0  # block
        self.is_whole = False  # whether one has all functions that are left
        self.is_settled = False

    def has_converged(self) -> bool:
        return self.is_whole and self.is_settled

    def forward(self, X: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
        self.largest = max(self.largest, len(X))
        alive = self.active.any(1).nonzero()[:, 0]
        self.is_whole = len(alive) <= self.largest
        left = alive if self.is_whole else X[self.active[X].any(1)]
        done = self.is_whole and self.sweep is not None  # by the first step of the sweep
        self.is_settled = self.is_settled or not len(alive)
        if len(left) and not done:
            super().forward(left, rows, generator)
        return self.last

    def move(self, sweep: Sweep, after: Sweep, block: Block, rho: float, std: Tensor) -> None:
        before = self.sites(sweep)[0]
        super().move(sweep, after, block, rho, std)
        model, members = self.model, block.members
        self.last, self.is_settled = self.sites(sweep)[0], False
        if rho < self.rate(self.n_sweeps) and float(before - self.last) > FAR:
            return  # the best weights are elsewhere
        # Of the best weights, not of what pruning leaves before the others have made up for it.
        mean = model.moments(sweep.h, sweep.v).mean[0]
        errors = (sweep.rows.y.double() - mean).square()
        self.square = sweep.share * sweep.rows.weighted(errors).sum(0)
        W, std = self.weights(members)
        s, mu = model.s[members].double(), W[..., 0]
        var = inverse_diagonal(block.H).mT
        gamma = (1.0 - s * var).clamp(0.0, 1.0)
        keep = (gamma > PRUNED) & self.active[members]
        if sweep.share == 1.0 and self.is_whole:  # else what is superfluous is not known
            keep &= ~superfluous(s, mu, var, keep)
        found = (gamma / mu.square().clamp_min(1.0 / MOST_PRECISION)).clamp_max(MOST_PRECISION)
        found = torch.where(keep, found, MOST_PRECISION)
        sweep.kl -= block_kl(W, std, s, members)
        sweep.h[..., 0] -= (block.phi @ torch.where(keep, 0.0, mu).to(block.phi)).mT.double()
        W, kept = torch.where(keep[..., None], W, 0.0), torch.where(keep, std, found.rsqrt())
        change = (kept.square() - std.square()).to(block.phi)
        sweep.v = (sweep.v + (block.phi.square() @ change).mT.double()).clamp_min(0.0)
        sweep.kl += block_kl(W, kept, found, members)
        model.columns[members], model.std[members] = W.to(model.columns), kept.to(model.std)
        model.s[members] = found.to(model.s)
        limit = SETTLED if isinstance(model.likelihood, Gaussian) else 2.0 * SETTLED
        stays = torch.where(keep, (found / s).log().abs(), 0.0).amax() < limit
        self.is_settled = all_hold([stays, (keep == self.active[members]).all()])
        self.active[members] = keep
        self.determined[members] = torch.where(keep, gamma, 0.0).to(self.determined)

    def weights(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and scales of some functions, in float64."""
        return self.model.columns[members].double(), self.model.std[members].double()

    @torch.no_grad()
    def set_noise(self, sweep: Sweep) -> None:
        """σ² = ‖y − Φμ‖²/(n − Σγ)."""
        free = (self.rows.n_effective - self.determined.double().sum(0)).clamp_min(1.0)
        noise = (self.square / free).clamp(*self.noise_bounds)
        cast(Gaussian, self.model.likelihood).log_noise.copy_(noise.log())

    @torch.no_grad()
    def solution(self, X: Tensor, rows: Rows) -> ChevronPosterior:
        """Keep only the relevance vectors; return the posterior given their precisions."""
        model, keep = self.model, self.active.any(1)
        if not bool(keep.any()):
            keep[self.determined.sum(1).argmax()] = True
        R, whole = int(keep.sum()), int(keep.sum()) <= MOST_RELEVANT
        kernel, points = copy.deepcopy(model.basis.kernel), model.basis.points[keep].double()
        closing = ChevronModel(
            KernelBasis(kernel, points, is_diagonal=True),
            copy.deepcopy(model.likelihood),
            model.shift.detach().double().clone(),
            R if whole else 0,
            torch.float64,
            learns_precision=True,
        )
        closing.s.copy_(model.s[keep])
        closing.start_from_prior_()
        closing.columns[..., 0] = model.columns[keep, :, 0].double()
        rest = BlockwiseObjective(
            closing,
            self.X.double(),
            self.rows.to(torch.float64),
            n_swept=len(self.X) if whole else self.n_swept,
            rate=lambda sweep: 1.0,
            learns_noise=False,
        )
        sweep = rest.begin(torch.Generator(X.device).manual_seed(0))
        blocks = torch.arange(R, device=X.device).split(max(R if whole else RELEVANCE_BLOCK, 1))
        values = [torch.inf]
        while len(values) <= (NEWTON_STEPS if whole else MOST_ROUNDS):
            values.append(float(torch.stack([rest.step(sweep, b, b) for b in blocks])[-1]))
            if values[-2] - values[-1] < CLOSED:
                break
        if not bool(closing.columns.isfinite().all()):
            raise NotPositiveDefiniteError(
                "The covariance of the weights of the relevance vectors is not finite, "
                "because values of the kernel are too large. Scale X (StandardScaler)."
            )
        return ChevronPosterior(closing, self.rows.n_effective)


@torch.no_grad()
def start_precision(model: ChevronModel, X: Tensor, most: float = math.inf) -> float:
    """Return the s of all functions for which the prior variance is about k(x, x), or `most`."""
    one = torch.ones(len(model.std), 1, dtype=X.dtype, device=X.device)
    prior, squares = model.basis.missing_variance(X[:START_ROWS], one)
    return float((squares / prior.clamp_max(most)).mean())


def inverse_diagonal(H: Tensor) -> Tensor:
    """[H⁻¹]_ii, (P, |I|)."""
    scaled, d = unit_diagonal(H)
    L = cholesky(scaled, "posterior precision of a block of weights")
    return d[..., 0].square() * torch.cholesky_inverse(L).diagonal(dim1=1, dim2=2)


def superfluous(s: Tensor, mu: Tensor, var: Tensor, among: Tensor) -> Tensor:
    """Tell which functions of each output to delete: those that gain most evidence, (|I|, P).

    Let the precision S = 1/Σ_ii − s and Q = μ_i/Σ_ii describe what the rest of the model says about
    a function. With the function, the evidence is greater by ½[log s − log(s + S) + Q²/(s + S)],
    which is greatest at an infinite s if Q² ≤ S (Faul & Tipping, "Analysis of sparse Bayesian
    learning", 2002). Only one function, or 2 %, are deleted at once, because of two similar
    functions only one should go.
    """
    S, Q = (1.0 / var - s).clamp_min(0.0), mu / var
    gain = torch.where(
        among & (Q.square() <= S), (s + S).log() - s.log() - Q.square() / (s + S), -torch.inf
    )
    most = max(1, int(among.sum(0).amax()) // SUPERFLUOUS)
    return (gain >= gain.topk(most, 0).values[-1]) & (gain > 0.0)


@dataclass(frozen=True, kw_only=True)
class RelevanceRecipe(BasisRecipe):
    """One function for each row, most of which are removed."""

    n_dense: int | str = 0  # while training; the closing posterior has all columns
    learns_precision: bool = True
    block: int = RELEVANCE_BLOCK
    sweeps: int = RELEVANCE_SWEEPS
    patience: float = math.inf

    blockwise: ClassVar[type[BlockwiseObjective]] = RelevanceObjective

    def attributes(self, fitted: Fitted) -> dict[str, Any]:
        assert fitted.data is not None
        X, model = fitted.data.X, fitted.posterior.model
        relevance = row_numbers(model.basis.points, X, fitted.x_scaling)
        weights, level = model.columns[..., 0].numpy(), model.shift.double().numpy()
        offset, scale = fitted.y_scaling
        if len(scale) == len(level):  # there is one latent function for each target
            weights, level = weights * scale, level * scale + offset
        single = weights.shape[1] == 1 and fitted.y_shape == ()
        return super().attributes(fitted) | {
            "relevance_": relevance,
            "relevance_vectors_": X[relevance],
            "dual_coef_": weights[:, 0] if single else weights,
            "intercept_": float(level[0]) if single else level,
        }

    def remedy(self, plan: Plan) -> str:
        return "Give a kernel with smaller length-scales, or a larger n_subset to learn them from."

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        R, n = fitted.posterior.model.basis.n_components, fitted.posterior.n_rows
        n_iter, most = fitted.history.n_iter, fitted.plan.max_iter
        is_auto = self.training.max_iter == "auto"
        sweeps = Finding("sweeps", "max_iter", n_iter, most, category=ConvergenceWarning)
        share = R / n
        relevant = Finding("relevant rows", "X", share, HALF, category=ConvergenceWarning)
        if is_auto and n_iter == most and self.n_swept(math.ceil(n)) == n:
            sweeps = sweeps._replace(
                severity="problem",
                text=f"The set of relevance vectors did not converge in {n_iter} sweeps.",
                advice="Raise max_iter.",
            )
        elif is_auto and share > HALF:
            relevant = relevant._replace(
                severity="problem",
                text=f"{R} of {n:g} rows are relevance vectors, so there are too few rows for "
                "this kernel. Do not trust the intervals.",
                advice="Use QSGPRegressor or QSGPClassifier, which need fewer rows, or give a "
                "kernel with larger length-scales.",
            )
        yield from (sweeps, relevant)
        yield from of_description(fitted, self.is_trained(fitted))


@dataclass(frozen=True, kw_only=True)
class StochasticRelevanceRecipe(RelevanceRecipe):
    """The published steps, from sampled rows and functions, for the precisions too."""

    n_dense: int | str = 10
    block: int = STOCHASTIC_BLOCK

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        plan, t = super().plan(sizes, start), self.training
        steps = math.ceil(plan.n_inducing / plan.batch_size)
        return replace(
            plan,
            solver="adagrad",
            max_iter=math.ceil(STOCHASTIC_STEPS / steps) if t.max_iter == "auto" else plan.max_iter,
            schedule=one_cycle,
            patience=t.n_iter_no_change or math.inf,
        )

    def solve(self, model: ChevronModel, problem: Problem) -> BasisObjective:
        asked, start = self.training.batch_size, start_precision(model, problem.X)
        return StochasticRelevance(
            model,
            problem.X,
            problem.rows,
            start=start,
            limit=INFINITE * start,
            most_whole=MOST_RELEVANT,
            batch_size=STOCHASTIC_ROWS if asked == "auto" else int(asked),
            n_control=STOCHASTIC_ROWS,
            generator=problem.generator,
            **self.learning(model, problem),
        )

    def training_findings(self, fitted: Fitted) -> Iterator[Finding]:
        _, *others = super().training_findings(fitted)
        yield from others  # steps that follow noise have no end of their own


def of_description(fitted: Fitted, is_trained: bool) -> Iterator[Finding]:
    """Yield whether classes are described better than by their shares, if vectors are counted.

    To say which R of n rows are the vectors of a function takes log C(n, R) nats, beside the log
    loss of the rows. What tells of chance alone is no shorter than the entropy of the shares.
    """
    data, model = fitted.whole, fitted.posterior.model
    if data is None or data.weight is not None or not model.likelihood.for_classes_only:
        return
    rows, n = judged_rows(data.X), len(data)
    y, (_, q) = (
        torch.from_numpy(fitted.scaled_targets(data)[rows]),
        marginals_at(fitted, data, rows),
    )
    with torch.no_grad():
        loss = -float(model.likelihood.log_predictive(y, q).mean())
    R = (model.s < MOST_PRECISION).sum(0).numpy()
    choice = float((gammaln(n + 1.0) - gammaln(R + 1.0) - gammaln(n - R + 1.0)).sum()) / n
    shares = np.bincount(data.y[:, 0].astype(np.int64)) / n
    found = Finding("description", "X", loss + choice, float(entropy(shares)))
    if found.value > found.limit:
        found = found._replace(
            severity="problem" if is_trained else "note",
            text=f"{model.basis.n_components} relevance vectors describe classes of {n} rows no "
            f"better than shares of classes do, in {found.value:.2g} nats a row, {choice:.2g} of "
            f"them for which rows they are, instead of {found.limit:.2g}. New rows may be "
            "predicted worse than by the shares.",
            advice="Use QSGPClassifier, SVGPClassifier or more rows." if is_trained else UNTRAINED,
        )
    yield found


def row_numbers(points: Tensor, X: np.ndarray, scaling: Scaling) -> np.ndarray:
    """Return the row number in X of each scaled point; of equal rows, the first."""
    seen = scaling.tensor(X, torch.float64, torch.device("cpu")).numpy() + 0.0  # −0 becomes 0
    first: dict[bytes, int] = {}
    for i, row in enumerate(seen):
        first.setdefault(row.tobytes(), i)
    return np.array([first[row.tobytes()] for row in points.numpy() + 0.0])


@dataclass(eq=False, repr=False, kw_only=True)
class QSRVMParameters(BasisParameters):
    """Parameters that regressor and classifier share.

    Parameters
    ----------
    kernel : sklearn kernel or None, default=None
        The kernel, whose hyper-parameters are where training starts: any of scikit-learn's that has
        a torch version here. A top-level WhiteKernel is the noise. None: a constant times an RBF
        kernel with a length-scale for each input, or a single one for more than 64 inputs.
    solver : {"newton", "adagrad"}, default="newton"
        "newton": MacKay's updates after exact steps for a block of functions. "adagrad": stochastic
        gradients of the evidence lower bound, for the precisions too, as in [2]_: 10,000 steps of
        1,024 rows and 256 functions; `learning_rate_init` is relative to AdaGrad's rate. "adagrad"
        serves to check the paper. It keeps three times as many vectors (on sinc, 22 of 100 rows
        instead of 8, and 36 of 200 instead of 12), and takes 40 s instead of 1 s.
    max_iter : int or "auto", default="auto"
        Number of sweeps over the remaining functions ("adagrad": over all functions). "auto" is
        500, but at most as many as make 2,000 steps. With "newton", training stops earlier when one
        block has all remaining functions, no function is removed any more, and no precision moves
        by more than 1 %, or 2 % for a classifier.
    n_iter_no_change : int or None, default=None
        Stop after this many sweeps without an improvement by `tol`. None: never, because the bound
        is worse for a while whenever a function is removed.

    Attributes
    ----------
    relevance_ : ndarray of shape (n_relevance,)
        Row numbers of the relevance vectors in X.
    relevance_vectors_ : ndarray of shape (n_relevance, n_features)
        The relevance vectors: these rows of X.
    dual_coef_ : ndarray of shape (n_relevance,) or (n_relevance, n_outputs)
        Weights of the relevance vectors, in the units of y. The latent mean is `kernel(X,
        relevance_vectors_) @ dual_coef_ + intercept_`, where the kernel is `kernel_` without its
        WhiteKernel.
    intercept_ : float or ndarray of shape (n_outputs,)
        The prior mean.
    """

    solver: str = "newton"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "solver": [StrOptions({"newton", "adagrad"})]
    }


def rvm_recipe(p: QSRVMRegressor | QSRVMClassifier, likelihood: Likelihood) -> RelevanceRecipe:
    """Return a function for each row, and a likelihood."""
    recipe = RelevanceRecipe if p.solver == "newton" else StochasticRelevanceRecipe
    return recipe.of(
        p,
        likelihood=likelihood,
        kernel=KernelChoice.of(p.kernel),
        basis=KernelFunctions(most=math.inf, is_diagonal=True),
        # What is pruned too late is not pruned at all.
        training=Training.of(p, learning_rate="constant"),
    )


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSRVMRegressor(BasisRegressionParameters, QSRVMParameters, Regressor):
    """Relevance vector regression, on dictionaries of any size.

    A sparse model: a Gaussian process whose mean and variance need only a few of the training rows.
    Far from these rows its variance falls back to the noise alone, as in every finite model.

    See Also
    --------
    QSGPRegressor : Without pruning.

    References
    ----------
    .. [1] M. Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001.
    .. [2] T. Evans, P. Nair, "Quadruply stochastic Gaussian processes", 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skgpstoch import QSRVMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-10, 10, (100, 1))
    >>> y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(100)
    >>> model = QSRVMRegressor(random_state=0).fit(X, y)
    >>> len(model.relevance_) < 20
    True
    """

    def _recipe(self) -> RelevanceRecipe:
        return rvm_recipe(self, Gaussian())


@public_estimator
@dataclass(eq=False, repr=False, kw_only=True)
class QSRVMClassifier(QSRVMParameters, Classifier):
    """Relevance vector classification, on dictionaries of any size.

    Two classes use the logistic likelihood; more classes use one model for each class against the
    others.

    Of few rows with many inputs, the choice of vectors follows single labels, and probabilities of
    new rows are too certain: for 200 rows of ``make_hastie_10_2``, log losses are .67, 1.62 and .69
    in three draws, and .54, .57 and .48 for :class:`QSGPClassifier`.

    See Also
    --------
    QSGPClassifier : Without pruning.

    References
    ----------
    .. [1] M. Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 2001.
    .. [2] T. Evans, P. Nair, "Quadruply stochastic Gaussian processes", 2020.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skgpstoch import QSRVMClassifier
    >>> X, y = make_moons(100, noise=0.1, random_state=0)
    >>> model = QSRVMClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.98)
    True
    >>> len(model.relevance_) < 20
    True
    """

    def _recipe(self) -> RelevanceRecipe:
        return rvm_recipe(self, logistic_likelihood(len(self.classes_)))
