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
    """C classes, each with a logistic model of its own against all others; y holds codes, (N, 1).

    The bound is the sum of those of C classifications of two classes, so that nothing couples the
    latent functions; probabilities are theirs, normalised.

    Parameters
    ----------
    n_classes : int
        C.

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
        """1 in the column of a row's class, else 0: (N, C)."""
        return (y == torch.arange(self.n_classes, device=y.device)).to(y)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """The sum over classes of log g(±f), (..., N, 1)."""
        return self.one.log_prob(self.indicators(y), f).sum(-1, keepdim=True)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Exact."""
        return self.one.expected_log_prob(self.indicators(y), q)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Of each class's own."""
        return self.one.expected_gradients(self.indicators(y), q)

    def moments(self, q: Marginals) -> Marginals:
        """Probabilities of the classes, and p(1 − p)."""
        p = torch.softmax(self.one.log_means(q), -1)
        return Marginals(p, p * (1.0 - p))

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """Log probability of a row's class."""
        log_p = torch.log_softmax(self.one.log_means(q), -1)  # (S, N, C)
        return mixture_log_mean((log_p * self.indicators(y)).sum(-1))

    def log_class_probs(self, f: Tensor) -> Tensor:
        """log of g(f_c)/Σ g(f_j)."""
        return torch.log_softmax(F.logsigmoid(f), -1)

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """A code for each row of f (..., N, C): (..., N, 1)."""
        p = torch.softmax(F.logsigmoid(f), -1)
        flat = torch.multinomial(p.reshape(-1, self.n_classes), 1, generator=generator)
        return flat.reshape(*f.shape[:-1], 1).to(f)

    def initial_mean(self, rows: Rows) -> Tensor:
        """Logit of each class's share, half a row added to either side."""
        (count,) = rows.total(rows.weighted(self.indicators(rows.y)).sum(0))
        return torch.logit((count + 0.5) / (rows.counted_for() + 1.0))


def logistic_likelihood(n_classes: int) -> ClassLikelihood:
    """Return the logistic likelihood of two classes, or one for each class of more."""
    return Bernoulli("logit") if n_classes == 2 else OneVsRest(n_classes)
