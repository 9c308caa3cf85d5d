"""One-versus-rest likelihood for several classes; import it from :mod:`skgpstoch.likelihoods`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.rows import Rows
from ..maths.gaussian import Marginals
from .base import Gradients, mixture_log_mean
from .classes import Bernoulli
from .probabilities import ClassLikelihood


class OneVsRest(ClassLikelihood):
    """Likelihood for C classes with a separate logistic model of each class against all others.

    The targets y hold class codes, in shape (N, 1). The evidence bound is the sum of the bounds of
    C two-class models, so nothing couples the latent functions. The class probabilities are those
    of the two-class models, normalised to sum to 1.

    Parameters
    ----------
    n_classes : int
        Number C of classes.

    Examples
    --------
    >>> from skgpstoch.likelihoods import OneVsRest
    >>> OneVsRest(3)
    OneVsRest(n_classes=3)
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.one = Bernoulli("logit")

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def for_classes(self, n_classes: int) -> OneVsRest:
        raise ValueError(
            f"likelihood={self!r} is only for estimators that choose it themselves, such as "
            "QSGPClassifier. Use 'softmax' or 'robustmax'."
        )

    def n_latents(self, n_outputs: int) -> int:
        return self.n_classes

    def indicators(self, y: Tensor) -> Tensor:
        """Return 1 in the column of each row's class, else 0: (N, C)."""
        return (y == torch.arange(self.n_classes, device=y.device)).to(y)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return the sum over classes of log g(±f), (..., N, 1) nats."""
        return self.one.log_prob(self.indicators(y), f).sum(-1, keepdim=True)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Return E_q[log p(y | f)] of each row, exact up to rounding: (N,) nats."""
        return self.one.expected_log_prob(self.indicators(y), q)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return the value of each row, and the derivatives of each class's own model."""
        return self.one.expected_gradients(self.indicators(y), q)

    def moments(self, q: Marginals) -> Marginals:
        """Return the probabilities p of the classes, and p(1 − p)."""
        p = torch.softmax(self.one.log_means(q), -1)
        return Marginals(p, p * (1.0 - p))

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the log probability of each row's class, (N,) nats."""
        log_p = torch.log_softmax(self.one.log_means(q), -1)  # (S, N, C)
        return mixture_log_mean((log_p * self.indicators(y)).sum(-1))

    def log_class_probs(self, f: Tensor) -> Tensor:
        """Return log(g(f_c)/Σ g(f_j)) of every class."""
        return torch.log_softmax(F.logsigmoid(f), -1)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a class code for each row of f (..., N, C): (..., N, 1)."""
        p = torch.softmax(F.logsigmoid(f), -1)
        flat = torch.multinomial(p.reshape(-1, self.n_classes), 1, generator=generator)
        return flat.reshape(*f.shape[:-1], 1).to(f)

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return the logit of each class's share, with half a row added to either side."""
        (count,) = rows.total(rows.weighted(self.indicators(rows.y)).sum(0))
        return torch.logit((count + 0.5) / (rows.counted_for() + 1.0))


def logistic_likelihood(n_classes: int) -> ClassLikelihood:
    """Return "bernoulli" for two classes, or :class:`OneVsRest` for more."""
    return Bernoulli("logit") if n_classes == 2 else OneVsRest(n_classes)
