"""Check that likelihood, loss and solver go together, and choose the solver for "auto"."""

from __future__ import annotations

from sklearn.gaussian_process import kernels as sk

from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise, Gaussian
from ..losses import Loss

FULL_BATCH_ROWS = 1000  # most rows for which "auto" uses all rows at each step


def check_choices(likelihood: Likelihood, loss: Loss, white: sk.WhiteKernel | None) -> None:
    """Raise a ValueError where likelihood, loss and noise do not agree."""
    loss.check(likelihood)
    if loss.bounds_evidence and not likelihood.has_bound:
        raise ValueError(
            f"likelihood={likelihood!r} has no lower bound on the marginal likelihood. Use "
            "loss='log'."
        )
    if white is not None and not isinstance(likelihood, Gaussian):
        raise ValueError(
            "kernel must not contain a WhiteKernel, which is the noise of "
            f"likelihood='gaussian', got likelihood={likelihood!r}."
        )
    follows = loss.covariance(likelihood) == "prior"
    if white is not None and follows and white.hyperparameter_noise_level.fixed:
        raise ValueError(
            "kernel must not contain a fixed WhiteKernel with the square loss, whose noise "
            "variance follows from beta."
        )


def check_input_noise(likelihood: Likelihood, loss: Loss) -> None:
    """Raise a ValueError where noise cannot depend on the inputs."""
    if not isinstance(likelihood, AdditiveNoise) or loss.covariance(likelihood) == "prior":
        raise ValueError(
            "noise='input' needs additive noise and a loss that depends on the noise, got "
            f"{likelihood!r} and {loss!r}."
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
