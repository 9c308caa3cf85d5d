"""The parts of docstrings that the finite-kernel regressors share."""

from __future__ import annotations

_PARAMETERS = """kernel : sklearn kernel or None, default=None
        Kernel on the features. None: their inner product, with the inputs and a constant among
        them. A DotProduct is linear on the features alone; RBF and Matern (nu = 0.5, 1.5, 2.5 or
        inf), their products with one another and with constants, and sums of all these use random
        Fourier features. A top-level WhiteKernel is the noise. Hyper-parameters refer to the
        scaled y.
    hidden_layer_sizes : tuple of int, default=(128, 128)
        Widths of the network's layers; () for the inputs themselves. Inputs to a network are
        standardised inside.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="relu"
        Activation after every layer, the last included.
    feature_map : torch.nn.Module or None, default=None
        Network of your own, (n, d) → (n, D), instead of `hidden_layer_sizes`. It is copied, and
        sees the inputs as they are.
    n_components : int, default=1000
        Number of random Fourier features.
    n_estimators : int or "auto", default="auto"
        Number of networks whose features are joined, each of which is validated on a fold of its
        own. "auto" is 10,000/n_samples, at least 1 and at most 5, where `kernel` and `feature_map`
        are None. With one network and few rows, the few that are held out choose the noise.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is n_samples/64, between 128 and 512.
    max_iter : int or "auto", default="auto"
        Epochs; "auto" makes n_samples steps, between 1,000 (200 for very few rows) and 8,000.
    solver : {"adam", "adadelta"}, default="adam"
        Optimiser.
    learning_rate_init : float, default=0.01
        Learning rate, or its maximum with "one-cycle".
    learning_rate : {"one-cycle", "constant", "theory"}, default="one-cycle"
        Schedule; "theory" is t^(−3/4).
    weight_decay : float or "auto", default="auto"
        Decoupled decay of the network's parameters (Adam); "auto" is 2000/n_samples, at most 0.3.
    early_stopping : bool, default=True
        Keep the iterate that predicts held-out rows best (their negative log predictive density);
        they rejoin the closing pass. Otherwise the iterate of the best exact marginal likelihood
        is kept, which overfits networks unless rows are very many: see the user guide.
    validation_fraction : float, default=0.1
        Fraction of the rows in a fold that is held out.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end, as
        the one-cycle schedule wants.
    tol : float, default=0.0
        Improvement that counts, in nats per row.
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units.
    noise : {"auto", "validation", "profiled", "learned"}, default="auto"
        Where the noise variance comes from: rows held out, the running marginal likelihood, or
        gradient steps. "auto" is "validation" for networks with early stopping, and "profiled"
        otherwise. These two choose the signal variance (the scale of the kernel) as well.
    noise_variance : float, default=0.1
        Initial noise variance, relative to the scaled target.
    warm_start : bool, default=False
        Whether `fit` starts from the features of the last one.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Of the data during training; predictions and factorisations are always float64.
    checkpoint_dir : path or None, default=None
        Folder to save the training in. The same `fit`, called again after it was killed, resumes
        from there to the same result.
    verbose : int, default=0
        Whether to print each epoch.
    random_state : int, RandomState instance or None, default=None
        Seed; an int makes fits reproducible to the last bit on the same device."""


_ATTRIBUTES = """posterior_ : torch.nn.Module
        Features and weights' posterior, in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel on the features, its scale included.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y.
    log_marginal_likelihood_value_ : float
        Exact log p(y | X) of all rows, in nats, for y in its own units.
    loss_curve_ : list of float
        Training loss of every epoch, nats per row of the scaled y.
    validation_scores_ : list of float or None
        Held-out negative log predictive density at each evaluation, nats per row of the scaled y.
    n_iter_, best_iter_ : int
        Epochs done, and the epoch whose iterate was kept; 0 is the start.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any."""


def documented(cls: type) -> type:
    """Fill the shared parts of an estimator's docstring in."""
    doc = cls.__doc__ or ""
    doc = doc.replace("{parameters}", _PARAMETERS).replace("{attributes}", _ATTRIBUTES)
    cls.__doc__ = doc
    return cls
