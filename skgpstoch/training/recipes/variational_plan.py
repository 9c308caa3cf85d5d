"""What sparse variational models are made of, what goes together, and the plan that follows.

:class:`~skgpstoch.training.recipes.variational.VariationalRecipe` makes the model and its
objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ...data.arrays import Scaling
from ...data.rows import Data
from ...likelihoods.base import Likelihood
from ...likelihoods.by_row import ScaledByRow
from ...likelihoods.real import AdditiveNoise, Gaussian
from ...losses import Loss, make_loss
from ..optimizers import SCHEDULES, constant
from .exact_start import LBFGS_EPOCHS, LBFGS_TOL, auto_tol
from .feature_builder import USUAL_BATCH, FeatureBuilder, FeatureSizes
from .kernel_choice import check_no_noise
from .plan import Folds, Plan, Sizes, Start, Training, epochs
from .recipe import Recipe
from .short_scales import MOST_COLUMNS

COLLAPSED_ROWS = 2000  # most rows for which "auto" is L-BFGS if training starts at an exact optimum
SITES_ROWS = 1000  # the same for likelihoods whose optimal q(w) takes iterations
OPTIMUM_ROWS = 512  # training starts at the optimum of the exact evidence of so many rows
SITES_OPTIMUM_ROWS, FEW_SITES = 256, 100
"""The same for the likelihoods of `SITES_ROWS`, whose bound it is, if they have fewer points.

*Measured* on 60 rows of nine columns with 20 points: without it, 2 of 8 fits of classes and of
negative binomial counts ended at a constant, and 1 of Laplace; with it none. With 500 rows and 50
points one log loss was .48, and is .37. Fits with as many points as "auto" takes found f anyway,
and with noise some of the rows can tell less of the kernel: 1 of 6 fits to 400 rows was worse.
"""


@dataclass(frozen=True, kw_only=True)
class VariationalChoices(Recipe):
    """What a variational model is made of, and how it is trained.

    Parameters
    ----------
    loss : Loss
        Loss of one row.
    features : FeatureBuilder
        Makes the features.
    training : Training
        Parameters of training.
    solver : str, default="auto"
        How q(w) is found.
    averaging : float or "auto", default="auto"
        Weight of the latest minibatch in running averages.
    whiten : bool, default=True
        Whether solver="adam" learns q in whitened coordinates.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f.
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence.
    scales_noise : bool, default=False
        Whether the noise of a row depends on its inputs.
    n_restarts : int, default=0
        Number of additional L-BFGS runs from random hyper-parameters.
    """

    loss: Loss
    features: FeatureBuilder
    training: Training
    solver: str = "auto"
    averaging: float | str = "auto"
    whiten: bool = True
    mean: str = "constant"
    beta: float = 1.0
    scales_noise: bool = False
    n_restarts: int = 0

    @classmethod
    def of(cls, parameters: Any, **decided: Any) -> Self:
        """Take the fields that are not in `decided` from an estimator's parameters."""
        varies = getattr(parameters, "noise", "constant") == "input"
        made = {"training": Training.of(parameters), "scales_noise": varies}
        return super().of(parameters, **made | decided)

    @classmethod
    def chosen(
        cls, parameters: Any, likelihood: Likelihood, features: Callable[[Any], FeatureBuilder]
    ) -> Self:
        """Take all fields, with loss, β and features, from an estimator's parameters."""
        p = parameters
        loss, beta = make_loss(p.loss), float(p.beta)
        return cls.of(p, likelihood=likelihood, loss=loss, beta=beta, features=features(p))

    # ---- parameters that must agree ----------------------------------------------------------

    @property
    def scales_target(self) -> bool:
        return self.normalize_y and isinstance(self.likelihood, AdditiveNoise)

    @property
    def covariance(self) -> str:
        """Where S comes from: "sites", "gradient" or "prior"."""
        return self.loss.covariance(self.likelihood)

    @property
    def has_gaussian_noise(self) -> bool:
        """Whether the loss depends on Gaussian noise that is the same for all rows."""
        is_gaussian = isinstance(self.likelihood, Gaussian) and self.covariance != "prior"
        return is_gaussian and not self.scales_noise

    @property
    def bounds_gaussian_evidence(self) -> bool:
        """Whether the bound is the exact Gaussian evidence if all rows are inducing points."""
        is_bound = self.loss.bounds_evidence and self.beta == 1.0
        return is_bound and self.has_gaussian_noise

    @property
    def is_all_usual(self) -> bool:
        """Whether all minibatch parameters have defaults, so "auto" need not use minibatches."""
        t, usual = self.training, Training()
        names = ("batch_size", "learning_rate_init", "learning_rate")
        return self.averaging == "auto" and all(getattr(t, a) == getattr(usual, a) for a in names)

    @property
    def has_safe_sites(self) -> bool:
        """Whether the optimal q(w) has sites with κ ≥ 0, as for log-concave likelihoods.

        *Measured* on five tables of 150 rows with Student's t, which is not log-concave: L-BFGS
        overfits, and predicts worse than minibatches by .06 nats per row.
        """
        return self.covariance == "sites" and self.likelihood.log_concave

    @property
    def takes_all_rows(self) -> bool:
        """Whether few rows may all be inducing points without a cost."""
        is_plain = self.training.early_stopping is not True
        if self.bounds_gaussian_evidence:
            return is_plain and self.solver in ("auto", "lbfgs")
        return is_plain and self.has_safe_sites and self.solver == "auto" and self.is_all_usual

    def check(self, data: Data) -> None:
        self.check_rows(data)
        check_choices(self.likelihood, self.loss, self.features.kernel.white)
        if data.y_std is not None and self.covariance == "prior":
            raise ValueError(
                "y_std must be None with the square loss, which has no noise variance."
            )
        if self.scales_noise:
            check_input_noise(self.likelihood, self.loss)
        if self.n_restarts and self.solver not in ("auto", "lbfgs"):
            raise ValueError(
                f"n_restarts={self.n_restarts} needs solver='lbfgs', which trains on all rows to "
                f"an optimum, got solver={self.solver!r}."
            )

    # ---- plan --------------------------------------------------------------------------------

    def plan(self, sizes: Sizes, start: Start | None = None) -> Plan:
        t, n_trained, folds = self.training, sizes.n_rows, Folds()
        has_network = self.features.network is not None
        holds_out = has_network if t.early_stopping == "auto" else bool(t.early_stopping)
        if holds_out and not sizes.streams:
            folds = Folds.of(sizes.n_rows, t.validation_fraction)
            n_trained -= folds.n_untrained
        points = self.features.sizes(sizes, sizes.n_rows - n_trained, self, start)
        M, M2, needed = points[:3]
        solver = self.choose_solver(sizes, points, holds_out)
        is_lbfgs = solver == "lbfgs"
        asked = (needed or USUAL_BATCH) if t.batch_size == "auto" else int(t.batch_size)
        b = min(asked, n_trained)
        least, each, most = self.features.steps
        n_steps = int(np.clip(each * n_trained / b, least, most))
        auto = LBFGS_EPOCHS if is_lbfgs else epochs(n_steps, n_trained, b)
        patience, tol = t.n_iter_no_change or math.inf, t.tol
        if is_lbfgs and t.n_iter_no_change is None:
            moves = not (points.are_rows and n_trained == M)
            is_free = points.has_gram and not holds_out
            patience, tol = self.lbfgs_stops(is_free, auto_tol(sizes.n_given, moves))
        plan = Plan(
            solver=solver,
            dtype="float64" if is_lbfgs else t.dtype,
            max_iter=auto if t.max_iter == "auto" else int(t.max_iter),
            batch_size=n_trained if is_lbfgs else b,
            schedule=constant if is_lbfgs else SCHEDULES[t.learning_rate],
            rate=t.learning_rate_init,
            patience=patience,
            tol=tol,
            holds_out=holds_out,
            evaluates=holds_out or is_lbfgs,
            folds=folds,
            n_inducing=M,
            n_orthogonal=M2,
            beta=self.beta,
            n_restarts=self.n_restarts if is_lbfgs else 0,
        )
        if holds_out or start is not None:
            return plan
        if is_lbfgs:
            return self.for_few_rows(plan, points, n_trained)
        return self.for_many_rows(plan, points, n_trained, sizes.n_features)

    def sums_rows(self, plan: Plan) -> bool:
        return plan.solver != "lbfgs"

    def lbfgs_stops(self, is_free: bool, enough: float) -> tuple[float, float]:
        """Return the patience and tolerance of L-BFGS; if `is_free`, it may stop early."""
        # Restarts may begin on plateaus, which an early stop would not let them leave.
        if is_free and self.solver == "auto" and not self.n_restarts:
            return 1, max(self.training.tol, enough)
        return 2, max(self.training.tol, LBFGS_TOL)

    def for_few_rows(self, plan: Plan, points: FeatureSizes, n_trained: int) -> Plan:
        """Return a plan that is quicker if all rows, or many of them, are inducing points."""
        all_rows, chosen = points.are_rows and plan.n_inducing == n_trained, self.solver == "auto"
        is_free = chosen and not self.n_restarts  # restarts have starts of their own
        sought = (*self.training.ends, "stuck") if is_free else ()
        if points.has_gram and self.bounds_gaussian_evidence:
            if all_rows:
                return replace(plan, all_rows="exact", seeks_shorter=sought)
            return replace(plan, start_rows=min(OPTIMUM_ROWS, n_trained)) if chosen else plan
        is_conjugate = self.loss.is_conjugate(self.likelihood)
        has_sites = chosen and points.has_gram and self.has_safe_sites and not is_conjugate
        has_sites = has_sites and not self.scales_noise
        if not has_sites:
            return plan
        # With a smaller β, the bound of all rows overfits.
        bounds = self.beta == 1.0 and self.loss.bounds_evidence and not self.n_restarts
        if all_rows:
            return replace(plan, all_rows="sites", seeks_shorter=sought if bounds else ())
        are_many = plan.n_inducing + plan.n_orthogonal >= FEW_SITES
        if not bounds or (are_many and not is_free):
            return plan
        start_rows = min(SITES_OPTIMUM_ROWS, n_trained)
        return replace(plan, start_rows=start_rows, only_scales=are_many)

    def for_many_rows(
        self, plan: Plan, points: FeatureSizes, n_trained: int, n_features: int
    ) -> Plan:
        """Return a plan whose minibatches start from the length-scales of some rows.

        Not of many columns or of several classes, where the search of few rows takes long.
        """
        if self.solver != "auto" or not points.has_gram or n_features > MOST_COLUMNS:
            return plan
        if self.likelihood.n_latents(1) > 1:
            return plan
        if self.bounds_gaussian_evidence:
            return replace(plan, start_rows=min(OPTIMUM_ROWS, n_trained), only_scales=True)
        bounds = self.beta == 1.0 and self.loss.bounds_evidence and not self.scales_noise
        if not (bounds and self.has_safe_sites):
            return plan
        return replace(plan, start_rows=min(SITES_OPTIMUM_ROWS, n_trained), only_scales=True)

    def choose_solver(self, sizes: Sizes, points: FeatureSizes, holds_out: bool) -> str:
        """Return the solver, "lbfgs" for few rows."""
        shares_noise = not (sizes.has_known_noise or self.scales_noise)
        n = math.inf if sizes.streams else sizes.n_rows
        needs_minibatches = points.batch_needed is not None
        solver = choose_solver(
            self.solver, n, self.likelihood, self.loss, shares_noise, needs_minibatches
        )
        if self.solver != "auto" or holds_out or not (points.has_gram and self.is_all_usual):
            return solver
        if solver == "natural":
            return "lbfgs" if self.has_safe_sites and n <= SITES_ROWS else solver
        is_collapsed = solver == "collapsed" and self.covariance == "sites"
        return "lbfgs" if is_collapsed and n <= COLLAPSED_ROWS else solver

    def input_scaling(self, X: np.ndarray, weight: np.ndarray | None) -> Scaling:
        return self.features.input_scaling(X, weight)


# ---- what goes together --------------------------------------------------------------------------


FULL_BATCH_ROWS = 1000  # most rows for which "auto" uses all rows at each step


def check_choices(likelihood: Likelihood, loss: Loss, white: sk.WhiteKernel | None) -> None:
    """Raise a ValueError where likelihood, loss and noise do not agree."""
    loss.check(likelihood)
    if loss.bounds_evidence and not likelihood.has_bound:
        raise ValueError(
            f"likelihood={likelihood!r} has no lower bound on the marginal likelihood. Use "
            "loss='log'."
        )
    check_no_noise(white, likelihood)
    follows = loss.covariance(likelihood) == "prior"
    if white is not None and follows and white.hyperparameter_noise_level.fixed:
        raise ValueError(
            "kernel must not contain a fixed WhiteKernel with the square loss, whose noise "
            "variance follows from beta."
        )


def check_input_noise(likelihood: Likelihood, loss: Loss) -> None:
    """Raise a ValueError where noise cannot depend on the inputs."""
    if not isinstance(likelihood, ScaledByRow) or loss.covariance(likelihood) == "prior":
        raise ValueError(
            "noise='input' needs additive noise or negative binomial counts, and a loss that "
            f"depends on the noise, got {likelihood!r} and {loss!r}."
        )
    if not likelihood.scales_by_row:
        raise ValueError(
            "noise='input' needs a likelihood whose noise can differ between rows: "
            f"{likelihood!r} does not multiply its noise by `times_ratio`."
        )
    if loss.is_noisy() and loss.get_params().get("gradient") == "product":
        raise ValueError("noise='input' needs a gradient other than 'product'.")


def choose_solver(
    asked: str,
    n_rows: float,
    likelihood: Likelihood,
    loss: Loss,
    shares_noise: bool,
    needs_minibatches: bool,
) -> str:
    """Return the solver, chosen if it is "auto".

    Raises
    ------
    ValueError
        If the solver that was asked for cannot be used with the loss.
    """
    collapses = asked in ("auto", "collapsed") and loss.site_noise(likelihood) is not None
    if asked == "collapsed" and not collapses:
        raise ValueError(
            "solver='collapsed' needs likelihood='gaussian' and the loss 'elbo', or "
            f"additive noise and the loss 'square', got {likelihood!r} and {loss!r}. Use "
            "solver='natural'."
        )
    if asked == "collapsed" and not shares_noise:
        raise ValueError(
            "solver='collapsed' needs the same noise for all rows, but y_std is given or "
            "noise='input'. Use solver='natural'."
        )
    if asked == "lbfgs" and loss.covariance(likelihood) == "gradient":
        raise ValueError(
            "solver='lbfgs' needs a loss with a closed form for the best covariance, which "
            f"{loss!r} does not have with {likelihood!r}. Use 'natural' or 'adam'."
        )
    if asked == "lbfgs" and needs_minibatches:
        raise ValueError(
            "solver='lbfgs' cannot be used with hidden_channels, or with posterior='odvgp' "
            "and whiten=False, because their bounds are estimated from random draws."
        )
    if asked != "auto":
        return asked
    if loss.is_noisy():
        return "adam"  # Newton's steps need curvatures
    if loss.is_conjugate(likelihood) and n_rows <= FULL_BATCH_ROWS and not needs_minibatches:
        return "lbfgs"
    return "collapsed" if collapses and shares_noise else "natural"
