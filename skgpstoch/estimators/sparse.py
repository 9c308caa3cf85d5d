"""Constructor, model, solvers, streams and fitted attributes of the sparse variational family."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_array
from torch import Tensor, nn

from .. import kernels
from ..data.arrays import Scaling
from ..features.inducing import InducingFeatures
from ..features.points import INITIALIZATIONS, choose_points
from ..likelihoods.base import Likelihood
from ..likelihoods.real import Gaussian
from ..losses import ExpectedLogLikelihood, Loss, TighterBound, make_loss
from ..objectives.adam import GradientObjective
from ..objectives.base import Objective
from ..objectives.lbfgs import FullBatchObjective
from ..objectives.natural import ProfiledObjective, RunningObjective
from ..objectives.sparse import ConstantMean, SparseModel, SparsePosterior
from ..objectives.variational import VariationalObjective
from ..training.optimizers import SCHEDULES, Schedule, constant, make_optimizer
from .base import BaseGP
from .network_kernel import DeepKernelMixin
from .partial_fit import StreamsMixin

MAX_INDUCING = 512  # of "auto"; half of it unless q(w) is known, half of it for few rows


FEW_ROWS = 1000  # up to which, too, "auto" maximises the bound of all rows


FEW_POINTS = 20


ROWS_PER_POINT = 4  # at least, of "auto", where q's covariance is learned by gradients


LBFGS_TOL = 1e-6  # nats per row, gained by ten iterations, that are worth ten more


SCALE_ROWS = 2000  # that the default kernel's length-scales are started from


@dataclass(eq=False, repr=False)
class SparseGP(DeepKernelMixin, StreamsMixin, BaseGP):
    """What regressors and classifiers of the sparse variational family share.

    A dataclass, so that the parameters are written once: its fields are those of the constructor.
    """

    kernel: sk.Kernel | None = None
    _: KW_ONLY
    n_inducing: int | str = "auto"
    inducing_points: Any = "kmeans"
    learn_inducing_points: bool = True
    mean: str = "constant"
    whiten: bool = True
    hidden_layer_sizes: Any = ()
    activation: str = "relu"
    feature_map: nn.Module | None = None
    solver: str = "auto"
    averaging: float | str = "auto"
    batch_size: int | str = "auto"
    max_iter: int | str = "auto"
    learning_rate_init: float = 0.1
    learning_rate: str = "one-cycle"
    weight_decay: float | str = "auto"
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int | None = None
    tol: float = 0.0
    warm_start: bool = False
    device: str | torch.device | None = None
    dtype: str = "float32"
    checkpoint_dir: Any = None
    verbose: int = 0
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, list]] = {
        **BaseGP._parameter_constraints,
        **DeepKernelMixin._parameter_constraints,
        "likelihood": [str, Likelihood],
        "loss": [str, Loss],
        "beta": [Interval(Real, 0, None, closed="neither")],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "inducing_points": [StrOptions(set(INITIALIZATIONS)), "array-like"],
        "learn_inducing_points": ["boolean"],
        "mean": [StrOptions({"zero", "constant"})],
        "whiten": ["boolean"],
        "bound": [StrOptions({"titsias", "log1p"})],
        "solver": [StrOptions({"auto", "collapsed", "lbfgs", "natural", "adam"})],
        "averaging": [Interval(Real, 0, 1, closed="right"), StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "n_orthogonal": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "orthogonal_covariance": [StrOptions({"free", "prior"})],
        "orthogonal_points": ["array-like", None],
    }

    # ---- what "auto" means -------------------------------------------------------------------

    @abstractmethod
    def _make_likelihood(self) -> Likelihood:
        """The likelihood that the parameters ask for, for one output."""

    @abstractmethod
    def _make_loss(self) -> Loss:
        """What is trained for."""

    def _kl_weight(self) -> float:
        """β."""
        return 1.0

    def _has_network(self) -> bool:
        return self.feature_map is not None or bool(self._layers())

    def _holds_out(self) -> bool:
        return self._has_network() if self.early_stopping == "auto" else bool(self.early_stopping)

    def _evaluates(self) -> bool:
        return self._holds_out() or self.solver_ == "lbfgs"

    def _resolve(self, n_rows: float) -> None:
        """Set `solver_`, and see that the parameters agree."""
        if self.feature_map is not None and self._layers():
            raise ValueError(
                f"hidden_layer_sizes={self.hidden_layer_sizes!r} and feature_map are two networks; "
                "give one of them."
            )
        likelihood, loss = self._make_likelihood(), self._make_loss()
        loss.check(likelihood)
        self._check_solver(likelihood, loss)
        white = self._split_kernel()[1]
        if white is not None and not isinstance(likelihood, Gaussian):
            raise ValueError(
                f"kernel has a WhiteKernel, the noise of likelihood='gaussian', but the likelihood "
                f"is {likelihood!r}."
            )
        follows = loss.covariance(likelihood) == "prior"
        if white is not None and follows and white.hyperparameter_noise_level.fixed:
            raise ValueError(
                "kernel has a fixed WhiteKernel, but the noise variance of the square loss follows "
                "from beta."
            )
        self.solver_ = self.solver
        if self.solver == "auto":
            if loss.is_noisy():
                self.solver_ = "adam"  # Newton's steps need curvatures
            elif loss.is_conjugate(likelihood) and n_rows <= FEW_ROWS:
                self.solver_ = "lbfgs"
            else:
                has_noise = loss.site_noise(likelihood) is not None
                self.solver_ = "collapsed" if has_noise else "natural"

    def _check_solver(self, likelihood: Likelihood, loss: Loss) -> None:
        """Raise a ValueError where the solver has no use for the loss."""
        if self.solver == "collapsed" and loss.site_noise(likelihood) is None:
            raise ValueError(
                "solver='collapsed' needs likelihood='gaussian' and the loss 'elbo', or additive "
                f"noise and the loss 'square', got {likelihood!r} and {loss!r}; solver='natural' "
                "is its counterpart."
            )
        if self.solver == "lbfgs" and loss.covariance(likelihood) == "gradient":
            raise ValueError(
                f"solver='lbfgs' needs a loss with a closed form for the best covariance, which "
                f"{loss!r} has not with {likelihood!r}; use 'natural' or 'adam'."
            )

    def _check_streams(self) -> None:
        if self.solver == "lbfgs":
            raise ValueError("partial_fit needs minibatches, but solver='lbfgs' has none.")

    def _training_dtype(self) -> str:
        return "float64" if self.solver_ == "lbfgs" else self.dtype

    def _schedule(self) -> Schedule:
        return constant if self.solver_ == "lbfgs" else SCHEDULES[self.learning_rate]

    def _patience(self) -> tuple[float, float]:
        if self.solver_ == "lbfgs" and self.n_iter_no_change is None:
            return 2, max(self.tol, LBFGS_TOL)
        return super()._patience()

    def _budget(self, n_rows: int) -> tuple[int, int]:
        if self.solver_ == "lbfgs":
            return 20 if self.max_iter == "auto" else int(self.max_iter), n_rows
        b = min(512 if self.batch_size == "auto" else int(self.batch_size), n_rows)
        if self.max_iter != "auto":
            return int(self.max_iter), b
        n_steps = int(np.clip(30 * n_rows / b, 500, 3000))
        return math.ceil(n_steps / math.ceil(n_rows / b)), b

    def _optimizer(self, objective: Objective) -> torch.optim.Optimizer | None:
        name = "lbfgs" if self.solver_ == "lbfgs" else "adam"
        return make_optimizer(name, objective.param_groups(), self.learning_rate_init)

    def _n_points(self, n_rows: int) -> int:
        """M."""
        if self._starts_warm():
            return self._same_number("n_inducing", len(self._start_model().features.points))
        if not isinstance(self.inducing_points, str):
            return self._same_number("n_inducing", len(np.asarray(self.inducing_points)))
        likelihood = self._make_likelihood()
        conjugate = isinstance(likelihood, Gaussian)
        most = MAX_INDUCING // (1 if conjugate else 2) // (1 if n_rows > FEW_ROWS else 2)
        if self._make_loss().covariance(likelihood) == "gradient":  # of which S has M²/2 parameters
            most = min(most, max(FEW_POINTS, n_rows // ROWS_PER_POINT))
        M = min(most, n_rows) if self.n_inducing == "auto" else int(self.n_inducing)
        if n_rows < M:
            raise ValueError(
                f"n_inducing={self.n_inducing} must be at most the number of rows to train on, "
                f"{n_rows}."
            )
        return M

    def _same_number(self, name: str, n_given: int) -> int:
        """The number of points that there are, which a parameter must not contradict."""
        if getattr(self, name) not in ("auto", n_given):
            raise ValueError(
                f"{name}={getattr(self, name)} must be 'auto' or the number of the points that are "
                f"given or, with warm_start, were fitted before: {n_given}."
            )
        return n_given

    def _start_points(self, name: str, X: Tensor) -> Tensor | None:
        """Points to start from: those of the last fit (warm_start), or a parameter's; or None."""
        given = getattr(self, name)
        if self._starts_warm():
            return getattr(self._start_model().features, name).detach().to(X)
        if given is None or isinstance(given, str):
            return None
        points = check_array(given, dtype=np.float64, input_name=name)
        if points.shape[1] != X.shape[1]:
            raise ValueError(
                f"{name} must have {X.shape[1]} columns, as X has, got {points.shape[1]}."
            )
        return self._x_scaling.tensor(points, X.dtype, X.device)

    # ---- the model ---------------------------------------------------------------------------

    def _input_scaling(self, X: np.ndarray) -> Scaling:
        """Standard for the default kernel and our networks; else centred where that is harmless."""
        expression, _ = self._split_kernel()
        if self.feature_map is not None:
            return Scaling.identity(X.shape[1])
        if expression is None or self._layers():
            return Scaling.standard(X)
        if "DotProduct" in repr(expression):
            return Scaling.identity(X.shape[1])
        return Scaling.centered(X)

    def _kernel_module(self, G: Tensor) -> kernels.Kernel:
        """k, for network outputs like G."""
        expression, _ = self._split_kernel()
        if expression is None:
            spread = G.double().std(0, correction=0)
            usual = spread.median().clamp_min(1e-3)
            # Of a column that hardly varies among these rows, others may lie far away.
            scale = torch.where(spread < 0.1 * usual, usual, spread) * (0.5 * math.sqrt(G.shape[1]))
            shape = sk.Matern(scale.cpu().numpy(), (1e-5, 1e5), nu=1.5)
            expression = sk.ConstantKernel(1.0, (1e-5, 1e5)) * shape
        return kernels.from_sklearn(expression)

    def _features(self, X: Tensor, n_latents: int, generator: torch.Generator) -> InducingFeatures:
        """P, before training."""
        network, width = self._network(X, generator)
        kernel = self._kernel_module(self._embedded(network.eval(), X)).to(X.device)
        M = self._n_points(len(X))
        points = self._start_points("inducing_points", X)
        if points is None:
            points = choose_points(self.inducing_points, X, M, kernel, network, generator)
        return InducingFeatures(kernel, network, points, input_unit(X), width)

    @staticmethod
    @torch.no_grad()
    def _embedded(network: nn.Module, X: Tensor) -> Tensor:
        G = network(X[:SCALE_ROWS])
        return G.reshape(-1, G.shape[-1])

    def _objective(self, X: Tensor, targets: Tensor, generator: torch.Generator) -> Objective:
        n_held_out = int((targets[:, -1] >= 0).sum())  # which come first
        rows, seen = X[n_held_out:], targets[n_held_out:]
        n_targets = math.prod(self._y_shape)
        likelihood = self._with_given_noise(self._make_likelihood().for_outputs(n_targets))
        y, exposure = seen[:, :n_targets].double(), seen[:, n_targets:-1].double()
        likelihood.initialise(y)
        likelihood.to(X.device)
        level = torch.zeros(likelihood.n_latents(n_targets), dtype=X.dtype, device=X.device)
        if self.mean == "constant":
            level = likelihood.initial_mean(y, exposure if exposure.shape[1] else None).to(level)
        features = self._features(rows, len(level), generator)
        model = SparseModel(
            features,
            likelihood,
            ConstantMean(level),
            n_targets,
            self._prior_blocks(features),
            self._make_loss(),
            self._kl_weight(),
        )
        self._set_trainable(model, len(rows))
        if self._starts_warm():
            load_parameters(model, self._start_model())
        return self._build(model.to(X.device), len(rows))

    def _set_trainable(self, model: SparseModel, n_rows: int) -> None:
        """What is learned: all but what is fixed, and points that are as many as the rows."""
        white = self._split_kernel()[1]
        fixed = white is not None and white.hyperparameter_noise_level.fixed
        if fixed or model.loss.covariance(model.likelihood) == "prior":  # which has no use for it
            model.likelihood.requires_grad_(False)
        if self.kernel is None and model.loss.covariance(model.likelihood) == "prior":
            # Its variance only counts in proportion to beta, and more of it fits ever better.
            cast(Any, model.features.kernel).k1.requires_grad_(False)
        model.mean.requires_grad_(self.mean == "constant")
        features = model.features
        features.learn_points(self.learn_inducing_points and len(features.points) < n_rows)
        if self.feature_map is not None:  # its frozen parameters stay so
            pairs = zip(self.feature_map.parameters(), features.network.parameters(), strict=True)
            for user, ours in pairs:
                ours.requires_grad_(user.requires_grad)

    def _with_given_noise(self, likelihood: Likelihood) -> Likelihood:
        """A likelihood with the noise that the kernel's WhiteKernel says, if there is one."""
        if isinstance(likelihood, Gaussian) and self._split_kernel()[1] is not None:
            likelihood.log_noise.data.fill_(math.log(self._initial_noise()))
        return likelihood

    def _prior_blocks(self, features: InducingFeatures) -> tuple[bool, ...]:
        """Whether S_b stays the prior's."""
        return (False,) * len(features.blocks)

    def _build(self, model: SparseModel, n_rows: int) -> VariationalObjective:
        """The solver's objective."""
        options: dict[str, Any] = {
            "weight_decay": self._weight_decay(n_rows),
            "noise_bounds": self._noise_bounds(),
        }
        objective: VariationalObjective
        if self.solver_ == "lbfgs":
            objective = FullBatchObjective(model, n_rows, **options)
        elif self.solver_ == "adam":
            objective = GradientObjective(model, n_rows, whiten=self.whiten, **options)
        elif model.loss.covariance(model.likelihood) == "gradient":
            objective = ProfiledObjective(model, n_rows, averaging=self.averaging, **options)
        else:
            objective = RunningObjective(
                model,
                n_rows,
                conjugate=self.solver_ == "collapsed",
                averaging=self.averaging,
                **options,
            )
        objective.has_user_module = self.feature_map is not None
        return objective

    # ---- streams -----------------------------------------------------------------------------

    def _stream_objective(
        self, X: Tensor, targets: Tensor, generator: torch.Generator
    ) -> Objective:
        """From the fitted model, or a new one."""
        loss = self._make_loss()
        if loss.covariance(self._make_likelihood()) == "prior":
            raise ValueError(
                f"partial_fit needs a loss that tells of variances, which {loss!r} does not: they "
                "are found by a pass over all rows."
            )
        if not hasattr(self, "posterior_"):
            objective = cast(VariationalObjective, self._objective(X, targets, generator))
            objective.streams = True
            return objective
        model = self._model.copy_for_training(X)
        n_rows = len(X) + self.posterior_.n_rows
        self._set_trainable(model, n_rows)
        objective = self._build(model, n_rows)
        objective.start_from(cast(SparsePosterior, self.posterior_))
        objective.streams = True
        return objective

    # ---- fitted attributes -------------------------------------------------------------------

    @property
    def _model(self) -> SparseModel:
        return cast(SparsePosterior, self.posterior_).model

    def _start_module(self) -> nn.Module:
        return self._start_model()

    def _start_model(self) -> SparseModel:
        """The model that a fit starts from, where it starts from one."""
        model = copy.deepcopy(self._model)
        model.features.unscale()
        return model

    def _set_fitted(self) -> None:
        model = self._model
        points = [p.detach().double().numpy() for p in model.features.all_points()]
        offset, scale = self._x_scaling
        self.inducing_points_ = points[0] * scale + offset
        if len(points) > 1:
            self.orthogonal_points_ = points[1] * scale + offset
        self.likelihood_ = model.likelihood
        self.kernel_ = self._fitted_kernel()
        self.log_marginal_likelihood_value_ = float(self.posterior_.log_evidence().sum())

    def _fitted_kernel(self) -> sk.Kernel:
        """In units of the scaled y, and of X where there is no network."""
        model, (_, white) = self._model, self._split_kernel()
        fitted = kernels.to_sklearn(model.features.kernel)
        if self.kernel is None and not self._has_network():
            matern = fitted.k2
            fitted.k2.length_scale = matern.length_scale * self._x_scaling.scale
        if not isinstance(model.likelihood, Gaussian):
            return fitted
        noise = float(model.likelihood.noise_variance.mean())
        return kernels.join_white_noise(fitted, noise, white)


@dataclass(eq=False, repr=False, kw_only=True)
class VariationalGP(SparseGP):
    """A choice of likelihood and loss."""

    likelihood: str | Likelihood = "auto"
    loss: str | Loss = "elbo"
    beta: float = 1.0
    bound: str = "titsias"

    def _make_loss(self) -> Loss:
        loss = make_loss(self.loss)
        if self.bound == "titsias":
            return loss
        if not isinstance(loss, ExpectedLogLikelihood):
            raise ValueError(f"bound='log1p' needs loss='elbo', got {self.loss!r}.")
        return TighterBound()

    def _kl_weight(self) -> float:
        return float(self.beta)


def input_unit(X: Tensor) -> Tensor:
    """Standard deviation of each column, 1 where it is constant; rows are in random order."""
    scaling = Scaling.standard(X[:SCALE_ROWS].cpu().double().numpy())
    return torch.from_numpy(scaling.scale).to(X)


def load_parameters(module: nn.Module, fitted: nn.Module) -> None:
    """Start from the parameters of a fitted module (warm_start).

    Raises
    ------
    ValueError
        If it has other ones.
    """
    given, wanted = dict(fitted.named_parameters()), dict(module.named_parameters())
    same = given.keys() == wanted.keys()
    if not same or any(given[k].shape != wanted[k].shape for k in wanted):
        raise ValueError(
            "warm_start=True needs a model of the shape that was fitted before, but kernel, "
            "likelihood, the numbers of inducing points, hidden_layer_sizes or feature_map have "
            "changed."
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(given[name])
