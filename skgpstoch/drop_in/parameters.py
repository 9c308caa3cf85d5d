"""Constructor parameters that both drop-ins have, scikit-learn's and ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from sklearn.gaussian_process import kernels as sk
from sklearn.utils._param_validation import StrOptions

from ..estimators.parameters import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER


@dataclass(eq=False, repr=False, kw_only=True)
class DropInParameters:
    """What scikit-learn's two classes share, and where and how to compute.

    Parameters
    ----------
    optimizer : "fmin_l_bfgs_b", callable or None, default="fmin_l_bfgs_b"
        How to find the kernel's hyper-parameters. "fmin_l_bfgs_b": L-BFGS within their bounds (our
        own, because SciPy's stops where a covariance matrix cannot be factorised). A callable is
        called as optimizer(obj_func, initial_theta, bounds=bounds), and returns the best theta and
        its value; obj_func(theta, eval_gradient=True) is the negative log marginal likelihood, with
        its gradient if that is asked for. None: keep the kernel as it is.
    n_restarts_optimizer : int, default=0
        Number of additional searches. They start from random hyper-parameters that suit the scale
        of X and y, log-uniform within their bounds; with a callable they start anywhere within the
        bounds. They run in parallel inside a :func:`joblib.parallel_config`.
    copy_X_train : bool, default=True
        Whether to store copies of the training data in `X_train_` and `y_train_`.
    random_state : int, RandomState instance or None, default=None
        Seed of the restarts, and of methods that draw minibatches.
    max_exact : int, default=5000
        Largest number of rows for which method="auto" puts all of them into one matrix, in O(n³)
        time and O(n²) memory.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Device to compute on. None is the CPU; "auto" is a GPU if there is one.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the data during training, if `method_` is one for many rows. Everything else,
        and every other method, is in float64.

    Attributes
    ----------
    method_ : str
        The method that was used.
    method_reason_ : str
        Why this method was used, and remarks on it.
    X_train_ : array-like of shape (n_samples, n_features) or list of object
        The training rows.
    log_marginal_likelihood_value_ : float
        Log marginal likelihood with `kernel_`, in nats, or the approximation or bound that
        `method_` computes.
    feature_importances_ : ndarray of shape (`n_features_in_`,)
        How much f depends on each input: the root mean square derivative of its mean per standard
        deviation of the input. Importances sum to 1, and are computed on access.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the inputs, if X had any.
    """

    kernel: sk.Kernel | None = field(default=None, kw_only=False)
    optimizer: Any = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    copy_X_train: bool = True
    random_state: Any = None
    max_exact: int = 5000
    device: str | torch.device | None = None
    dtype: str = "float32"

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [sk.Kernel, None],
        "optimizer": [StrOptions({"fmin_l_bfgs_b"}), callable, None],
        "n_restarts_optimizer": [NOT_NEGATIVE_INTEGER],
        "copy_X_train": ["boolean"],
        "random_state": ["random_state"],
        "max_exact": [POSITIVE_INTEGER],
        "device": [str, torch.device, None],
        "dtype": [StrOptions({"float32", "float64"})],
    }
