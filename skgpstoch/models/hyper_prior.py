"""The prior on the default kernel's hyper-parameters and on its noise.

With a length-scale for each input, the evidence of few rows is often largest without noise, at a
kernel with some input that distinguishes every row from all others. Predictions are then far too
certain. Therefore

    log σ² ~ N(log v − 1, 2²),   log ℓ_j ~ N(log 3√d, 1),

for v the variance of y and d inputs of variance 1, whose distances grow as √d (Hvarfner, Hellsten &
Nardi, "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024). Training
maximises log p(y | θ) + log p(θ), or a bound on the first term. The first term grows with the
number of rows, the second does not.

*Measured* on nine tables, with three draws of training rows and 500 test rows each: the NLPD with
20, 50 and 200 rows is 4.64, 1.77, .48 without the prior and 1.25, .91, .47 with it; on four other
tables, 280, 1.1, 8,418 and .77, .29, .04. Prior means of log σ² from −4 to −1 and deviations of
log ℓ from .7 to 1.5 came within .1 of this from 50 rows on. A prior that does not penalise long
length-scales was worse: 1.8, 1.1, .48.

Of a deep process it is the last layer's kernel. *Measured* on 60 rows of five tables, two draws
each: the NLPD of DeepGPRegressor is 3.36 without the prior and 3.16 with it, that of SVGPRegressor
3.16; 90 % intervals hold .84 and .88. Direct loss minimisation leaves even less noise: on 60 rows
of seven tables DLMRegressor's NLPD is 3.05 without the prior and 2.66 with it, on 250 rows of six
tables 2.43 and 2.31. Of a loss that weighs KL[q ‖ p] by β, −log p(θ) is weighed by β, too, and
by 1 at most: *measured* on 120 rows with β = 10 and 30, .64 and 1.06, as without a prior; weighed
by β, .71 and 1.28.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..data.rows import Rows

WEAK_NOISE_PRIOR = (-1.0, 2.0)  # mean and deviation of log σ², for y of variance 1
WEAK_SCALE_PRIOR = (math.log(3.0), 1.0)  # mean and deviation of log ℓ/√d, for inputs of variance 1


class HyperPrior(NamedTuple):
    """The prior p(θ), given by the prior means of log σ² of every output, (P,)."""

    log_noise: Tensor

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return the prior for the targets of rows; constant targets may be in any unit."""
        y = rows.y.double()
        variance = rows.mean_told((y - rows.mean_told(y)).square())
        return cls(torch.where(variance > 0.0, variance, 1.0).log() + WEAK_NOISE_PRIOR[0])

    def neg_log(self, log_noise: Tensor, log_length_scale: Tensor) -> Tensor:
        """Return −log p(θ) without its constant, (), at log σ² (P,) and log ℓ (d,)."""
        middle, std = WEAK_SCALE_PRIOR
        relative = log_length_scale - 0.5 * math.log(log_length_scale.numel())
        of_noise = (log_noise - self.log_noise) / WEAK_NOISE_PRIOR[1]
        return 0.5 * (of_noise.square().sum() + ((relative - middle) / std).square().sum())
