"""What appendix G.2 of the SOLVE-GP paper says of layers, measured.

Shi, Titsias & Mnih (2020) do not whiten q in deep models, "because we find it hurts performance",
and choose the inducing patches of deeper layers from projections of images by random filters
(Glorot & Bengio's). Here layers are white, and these patches come from what their mean functions
make of images. Both ways from the same start, for as many steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from skgpstoch import ConvolutionalGPClassifier, DeepGPRegressor
from skgpstoch.likelihoods.base import regression_likelihood
from skgpstoch.models.layers import GPLayer
from skgpstoch.models.posteriors.blocks import VariationalWeights, free_roots, whitened_moments
from skgpstoch.training.recipes.images import HiddenImages, glorot_filters
from skgpstoch.training.recipes.layers import Layers
from skgpstoch.training.recipes.variational import VariationalRecipe

from ._common import add_data, gaussian_scores, load_split, parser, set_threads, write_csv

SEEDS = range(2)
RATES = (0.01, 0.03)
EPOCHS, PATCH_EPOCHS = 80, 80
DIGITS = 300  # rows to train on
CHANNELS = ((4,), (4, 4))


# ---- layers that are not white -------------------------------------------------------------------
class UnwhitenedLayer(GPLayer):
    """A layer whose means and roots are those of u = Lw."""

    @classmethod
    @torch.no_grad()
    def of(cls, layer: GPLayer) -> UnwhitenedLayer:
        """The same q(w) at the start."""
        shares = len(layer.roots[0]) == 1
        made = cls(layer.features, layer.mean_map, float(layer.noise), layer.prior_blocks, shares)
        factors = [torch.linalg.inv(inverse).tril() for _, inverse in layer.features.factors()]
        whole = torch.block_diag(*factors)
        made.means.copy_(whole @ layer.means.double())
        for L, root, white in zip(factors, made.roots, layer.roots, strict=True):
            root.copy_(L @ white.double())
        return made

    def weights(self, factors: Any = None) -> VariationalWeights:
        if factors is None:  # with their gradients, which features give with rows alone
            factors = self.features.basis(self.features.inducing_points[:0]).factors
        roots = [root.tril() for root in self.roots]
        means = self.means.split(self.features.blocks)
        white = [
            whitened_moments(m, R, *pair) for m, R, pair in zip(means, roots, factors, strict=True)
        ]
        kept = free_roots([R for _, R in white], self.prior_blocks)
        return VariationalWeights(torch.cat([m for m, _ in white]), kept, self.features.blocks)

    def moments(self, H: Tensor) -> tuple[Tensor, Tensor]:
        basis = self.features.basis(H)
        q = self.weights(basis.factors).marginals(basis.phi, basis.residual())
        return q.mean[0] + H @ self.mean_map, q.var[0] + self.noise


class UnwhitenedLayers(Layers):
    """Layers that are not white."""

    def inner_layer(self, *args: Any) -> UnwhitenedLayer:
        return UnwhitenedLayer.of(super().inner_layer(*args))


class UnwhitenedDeepGPRegressor(DeepGPRegressor):
    """The same estimator, of such layers."""

    def _recipe(self) -> VariationalRecipe:
        likelihood = regression_likelihood(self.likelihood)
        return VariationalRecipe.chosen(self, likelihood, UnwhitenedLayers.of)


# ---- the published start of inducing patches -----------------------------------------------------
class RandomFilters(HiddenImages):
    """Images whose inducing patches are chosen from those of random filters, in every channel."""

    def filters(self, mean_map: Tensor, generator: torch.Generator) -> Tensor:
        return glorot_filters(mean_map, generator)


class RandomFiltersClassifier(ConvolutionalGPClassifier):
    """The same estimator, with that start."""

    def _recipe(self) -> VariationalRecipe:
        recipe = super()._recipe()
        hidden: Any = recipe.features.hidden
        given = {field.name: getattr(hidden, field.name) for field in fields(hidden)}
        return replace(recipe, features=replace(recipe.features, hidden=RandomFilters(**given)))


# ---- measures ------------------------------------------------------------------------------------
def layers(data: Path, name: str, rate: float) -> Iterator[dict[str, Any]]:
    """Fit two layers of SOLVE-GP by Adam alone, white and not."""
    for seed in SEEDS:
        split = load_split(data, name, seed)
        for cls, whiten in ((DeepGPRegressor, True), (UnwhitenedDeepGPRegressor, False)):
            model = cls(
                posterior="solve", solver="adam", whiten=whiten, n_inducing=50, n_orthogonal=50,
                learning_rate_init=rate, learning_rate="constant", batch_size=256,
                max_iter=EPOCHS, random_state=seed,
            )  # fmt: skip
            start = time.process_time()
            model.fit(split.X_train, split.y_train)
            used = time.process_time() - start
            scores = gaussian_scores(split.y_test, *model.predict(split.X_test, return_std=True))
            steps = EPOCHS * -(-len(split.X_train) // 256)
            yield {
                "what": "whitening", "set": name, "variant": "white" if whiten else "not white",
                "rate": rate, "seed": seed, "bound": model.elbo_ / len(split.X_train),
                "score": -scores.nlpd, "steps": steps, "ms_per_step": 1e3 * used / steps,
            }  # fmt: skip


def patches() -> Iterator[dict[str, Any]]:
    """Start inducing patches of digits in both ways."""
    X, y = load_digits(return_X_y=True)
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:DIGITS], order[DIGITS:]
        for channels in CHANNELS:
            for cls in (ConvolutionalGPClassifier, RandomFiltersClassifier):
                model = cls(
                    hidden_channels=channels, posterior="solve", n_inducing=30, n_orthogonal=30,
                    patch_correlation="none", global_kernel=None, max_iter=PATCH_EPOCHS,
                    random_state=seed,
                )  # fmt: skip
                start = time.process_time()
                model.fit(X[train], y[train])
                used = time.process_time() - start
                log_p = np.log(model.predict_proba(X[test]))[np.arange(len(test)), y[test]]
                yield {
                    "what": "patches", "set": f"digits, {len(channels) + 1} layers", "seed": seed,
                    "variant": "means" if cls is ConvolutionalGPClassifier else "random filters",
                    "bound": model.log_marginal_likelihood_value_ / len(train),
                    "score": log_p.mean(), "accuracy": model.score(X[test], y[test]), "s": used,
                }  # fmt: skip


def main() -> None:
    arguments = parser(__doc__, "bench_solvegp_layers.csv")
    add_data(arguments)
    args = arguments.parse_args()
    set_threads(args.threads)
    runs = [*(layers(args.data, "concrete", rate) for rate in RATES), patches()]
    write_csv(args.output, chain.from_iterable(runs))


if __name__ == "__main__":
    main()
