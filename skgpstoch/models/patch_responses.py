"""Split the f of an image model into the responses of patches in its last layer (F9)."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor

from ..data.arrays import row_blocks
from ..data.devices import block_rows
from .features.base import FeatureMap
from .features.inducing import InducingFeatures
from .features.patches import PatchCovariances, SinglePatches
from .features.sums import SumFeatures
from .layers import DeepFeatures
from .sparse import SparsePosterior


def parts_of(features: FeatureMap) -> list[InducingFeatures]:
    """Return the features of patch responses, and those of whole images if there are any."""
    last = features.last if isinstance(features, DeepFeatures) else features
    return last.each if isinstance(last, SumFeatures) else [cast(InducingFeatures, last)]


def responses_of(posterior: SparsePosterior, X: Tensor) -> Tensor:
    """Return the mean response E w_p g(x^[p]) of every patch, (N, J, P)."""
    deep, S = posterior.model.features, 1
    parts = parts_of(deep)
    blocks = posterior.weights.mean.split(deep.blocks)
    m = torch.cat([block[:n] for block, n in zip(blocks, parts[0].blocks, strict=True)])
    features = copy.deepcopy(parts[0])
    features.covariances = single = SinglePatches(cast(PatchCovariances, features.covariances))
    J, found = single.whole.geometry.n_patches, []
    for block in row_blocks(len(X), max(1, block_rows(X.device, features.n_features) // J)):
        H = X[block]
        if isinstance(deep, DeepFeatures):
            S = deep.n_nodes
            H = deep.propagate(H, S)[-1]
        basis = features.basis(single.rows_of(H))
        mean = basis.phi @ m
        mean = mean if basis.shift is None else mean + basis.shift
        found.append(mean.view(S, -1, J, mean.shape[1]).mean(0))
    return torch.cat(found)
