"""The parts of docstrings that the sparse variational estimators share."""

from __future__ import annotations

_PARAMETERS = """kernel : sklearn kernel or None, default=None
        An expression of RBF, Matern (nu = 0.5, 1.5, 2.5 or inf), RationalQuadratic, ExpSineSquared,
        DotProduct and ConstantKernel by sums, products and powers. None: a constant times a Matérn
        kernel (nu=1.5) with a length-scale for each input, started from the data.{white}
    n_inducing : int or "auto", default="auto"
        Number M of inducing points, at most n_samples; "auto" is 512{fewer}.
        Up to 1,000 rows it is half of that{learned}.
    inducing_points : {"kmeans", "conditional_variance", "random"} or array-like, default="kmeans"
        Where the points start: centres of clusters, rows of large conditional variance, random
        rows, or these rows, of shape (n_inducing, n_features).
    learn_inducing_points : bool, default=True
        Whether the points are trained.
    mean : {"constant", "zero"}, default="constant"
        Prior mean of f: a learned constant, or 0.
    whiten : bool, default=True
        Whether solver="adam" learns q in whitened coordinates.
    hidden_layer_sizes : tuple of int, default=()
        Widths of the layers of a network below the kernel; none by default.
    activation : {"identity", "relu", "tanh", "logistic", "silu", "gelu"}, default="relu"
        Activation after every layer, the last included.
    feature_map : torch.nn.Module or None, default=None
        Network of your own, (n, d) → (n, D), instead of `hidden_layer_sizes`. It is copied, and
        sees the inputs as they are.
    solver : {"auto", {collapsed}"lbfgs", "natural", "adam"}, default="auto"
        {running}"natural": natural-gradient or Newton steps; "lbfgs": all rows at each step;
        "adam": q is learned like all else. {chosen}; `solver_` says which.
    averaging : float or "auto", default="auto"
        Weight of a minibatch in the running averages; "auto" looks back on 5 rows for
        each inducing point, 2,500 at least.
    batch_size : int or "auto", default="auto"
        Rows of a minibatch; "auto" is 512. L-BFGS has all rows.
    max_iter : int or "auto", default="auto"
        Epochs; "auto" makes 500 to 3,000 steps. Of L-BFGS, tens of iterations: 20 by default.
    learning_rate_init : float, default=0.1
        Learning rate of Adam, or its maximum with "one-cycle"; networks have a tenth of it, and all
        else three tenths where q's covariance has no closed form.
    learning_rate : {"one-cycle", "constant", "theory"}, default="one-cycle"
        Schedule; "theory" is t^(−3/4).
    weight_decay : float or "auto", default="auto"
        Decoupled decay of the network's parameters; "auto" is 2000/n_samples, at most 0.3.
    early_stopping : bool or "auto", default="auto"
        Keep the iterate that predicts held-out rows best; they rejoin the closing pass. "auto":
        where there is a network. Otherwise the last iterate is kept.
    validation_fraction : float, default=0.1
        Fraction of the rows that is held out.
    n_iter_no_change : int or None, default=None
        Stop after this many epochs without an improvement by `tol`; None: train to the end (L-BFGS:
        until ten iterations gain less than 1e-6 nats per row).
    tol : float, default=0.0
        Improvement that counts, in nats per row.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the last one.
    device : {"cpu", "cuda", "cuda:N", "auto"} or None, default=None
        Where to compute; None is the CPU, "auto" a GPU where there is one.
    dtype : {"float32", "float64"}, default="float32"
        Of the data during training; L-BFGS, factorisations and predictions are always float64.
    checkpoint_dir : path or None, default=None
        Folder to save the training in. The same `fit`, called again after it was killed, resumes
        from there to the same result.
    verbose : int, default=0
        Whether to print each epoch.
    random_state : int, RandomState instance or None, default=None
        Seed; an int makes fits reproducible to the last bit on the same device."""


_REGRESSION_LIKELIHOOD = """
    likelihood : str or Likelihood, default="auto"
        "gaussian", "student_t", "laplace", or "poisson" for counts; or an instance of a class of
        :mod:`skgpstoch.likelihoods`. "auto" is "gaussian"."""


_CLASS_LIKELIHOOD = """
    likelihood : str or Likelihood, default="auto"
        "bernoulli" (logistic), "softmax" or "robustmax"; or an instance of a class of
        :mod:`skgpstoch.likelihoods`. "auto" is "bernoulli" for two classes, else "softmax"."""


_FEWER = """ for a Gaussian
        likelihood and 256 for others"""


_LEARNED = """; and a quarter of the rows at most, or 20,
        where q's covariance has no closed form, as for the loss "log\""""


_RUNNING = """"collapsed": running averages of sufficient statistics, for a Gaussian likelihood or
        the square loss; """


_CHOSEN = """"auto" is "lbfgs" up to 1,000 rows and
        "collapsed" above where q has a closed form, "adam" where gradients are sampled, else
        "natural\""""


_CHOSEN_FITC = """"auto" is "lbfgs" up to 1,000 rows, else
        "natural\""""


_LOSS = """
    loss : {"elbo", "log", "square"} or Loss, default=DEFAULT
        What is minimised: the negative evidence lower bound, the negative log predictive density
        or the square loss; or an instance of a class of :mod:`skgpstoch.losses`."""


_BETA = """
    beta : float, default=1.0
        Weight of the Kullback-Leibler divergence; less than 1 trusts the data more."""


_BETAS = """
    beta : float, array-like or "auto", default=1.0
        Weight of the Kullback-Leibler divergence; less than 1 trusts the data more. Of several, the
        one whose fit predicts `validation_fraction` of the rows best; "auto": of n/2, n/8, … down
        to 0.01, as the paper has them, some 10 to 20 fits."""


_BOUND = """
    bound : {"titsias", "log1p"}, default="titsias"
        The bound; "log1p" is tighter, for a Gaussian likelihood and the loss "elbo" alone."""


_DIRECT = """
    hyperparameters : {"joint", "fixed"}, default="joint"
        Whether kernel, noise and points are trained for the loss, or for the evidence lower bound
        beforehand, and q alone for the loss.
    posterior : {"svgp", "solve", "odvgp"}, default="svgp"
        The family of q: with inducing points of one kind, or orthogonal ones beside them, with a
        covariance of q's own there or the prior's. `n_orthogonal` and `orthogonal_points` are for
        the latter two.
    refit : bool, default=True
        Whether the best of several `beta` is fitted again, on all rows.
    n_jobs : int or None, default=None
        Processes that fit for several `beta`, as joblib counts them."""


_BETA_PATH = """
    beta_ : float
        The weight that was used.
    beta_path_ : ndarray of shape (n_betas,)
        Where there was a choice, the weights that were tried; `validation_scores_` then has the
        held-out loss of each, per row. Others may be better where `beta_` is at the end."""


_WHITE = """ A top-level
        WhiteKernel is the noise of the Gaussian likelihood. Variances refer to the scaled y."""


_NORMALIZE = """
    normalize_y : bool, default=True
        Whether the target is standardised inside; results are in its own units. Counts are not."""


_ORTHOGONAL = """
    n_orthogonal : int or "auto", default="auto"
        Number M₂ of orthogonal inducing points; "auto" is `n_inducing`, as far as there are rows.
    orthogonal_points : array-like of shape (n_orthogonal, n_features) or None, default=None
        Where they start; None: as `inducing_points`."""


_ORTHOGONAL_COVARIANCE = """
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether q has a covariance of its own there, or the prior's: ODVGP. With "prior" and
        whiten=False the mean is learned by coefficients of kernel functions, from some columns of
        the covariance matrix at each step, so that M₂ may be much larger than M."""


_ATTRIBUTES = """posterior_ : torch.nn.Module
        Model and q(w), in float64 on the CPU.
    kernel_ : sklearn kernel
        The fitted kernel, on X or on the network's outputs{scaled}.
    likelihood_ : Likelihood
        The fitted likelihood{units}.
    inducing_points_ : ndarray of shape (n_inducing, n_features)
        In the units of X.
    solver_ : str
        The solver that was used.
    log_marginal_likelihood_value_ : float
        The bound on log p(y | X), in nats, summed over all rows{evidence}.
    loss_curve_ : list of float
        What is minimised, per row, at each epoch, as minibatches saw it: nats, or squares.
    validation_scores_ : list of float or None
        Loss of held-out rows at each evaluation, per row: negative log predictive density in nats,
        or square loss, of the scaled y.
    n_iter_, best_iter_ : int
        Epochs done, and the epoch whose iterate was kept.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if X had any."""


_NOISE = """
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Noise variance, in squared units of y; of Gaussian, Student-t and Laplace noise."""


_CLASSES = """
    classes_ : ndarray of shape (n_classes,)
        Labels."""


_ORTHOGONAL_POINTS = """
    orthogonal_points_ : ndarray of shape (n_orthogonal, n_features)
        In the units of X."""


def documented(cls: type) -> type:
    """Fill the shared parts of an estimator's docstring in."""
    names = getattr(cls, "__dataclass_fields__", {})
    regresses, orthogonal = "normalize_y" in names, "n_orthogonal" in names
    direct, chooses_loss = "hyperparameters" in names, "loss" in names
    parameters = _PARAMETERS.replace("{white}", _WHITE if regresses else "")
    parameters = parameters.replace("{fewer}", _FEWER if chooses_loss else "")
    parameters = parameters.replace("{learned}", _LEARNED if chooses_loss else "")
    parameters = parameters.replace("{collapsed}", '"collapsed", ' if chooses_loss else "")
    parameters = parameters.replace("{running}", _RUNNING if chooses_loss else "")
    parameters = parameters.replace("{chosen}", _CHOSEN if chooses_loss else _CHOSEN_FITC)
    parameters += _NORMALIZE if regresses else ""
    if chooses_loss:
        parameters += _REGRESSION_LIKELIHOOD if regresses else _CLASS_LIKELIHOOD
        parameters += _LOSS.replace("DEFAULT", repr(names["loss"].default))
        parameters += (_BETAS if direct else _BETA) + _BOUND
    parameters += _ORTHOGONAL if orthogonal else ""
    parameters += _ORTHOGONAL_COVARIANCE if "orthogonal_covariance" in names else ""
    parameters += _DIRECT if direct else ""
    scaled, units = (
        ("; variances refer to the scaled y", ", in the units of y") if regresses else ("", "")
    )
    attributes = _ATTRIBUTES.replace("{scaled}", scaled).replace("{units}", units)
    attributes = attributes.replace("{evidence}", "" if chooses_loss else "; FITC's own evidence")
    attributes += _NOISE if regresses else _CLASSES
    attributes += _ORTHOGONAL_POINTS if orthogonal else ""
    attributes += _BETA_PATH if direct else ""
    doc = cls.__doc__ or ""
    cls.__doc__ = doc.replace("{parameters}", parameters).replace("{attributes}", attributes)
    return cls
