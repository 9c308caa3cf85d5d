"""Where inducing points start."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor, nn

from ..data.arrays import Scaling
from ..kernels import Kernel
from ..maths.pivoted_cholesky import pivoted_cholesky

CANDIDATE_ROWS = 20  # rows that inducing points are chosen from, for each point


INITIALIZATIONS = ("kmeans", "conditional_variance", "random")


@torch.no_grad()
def choose_points(
    method: str,
    X: Tensor,
    n_points: int,
    kernel: Kernel,
    network: nn.Module,
    generator: torch.Generator,
    weight: Tensor | None = None,
) -> Tensor:
    """Inducing points from the rows X (N, d), N ≥ n_points: (n_points, d).

    Parameters
    ----------
    method : {"kmeans", "conditional_variance", "random"}
        Centres of clusters; rows, each of which is the one of largest variance given those before
        it (Burt, Rasmussen & van der Wilk, 2020); or random rows. As many points as rows are the
        rows themselves.
    X : Tensor of shape (N, d)
        Rows in random order.
    n_points : int
        M.
    kernel, network : Kernel and nn.Module
        k and g, for "conditional_variance".
    generator : torch.Generator
        For "kmeans".
    weight : Tensor of shape (N,) or None, default=None
        How often each row counts, for "kmeans".
    """
    candidates = X[: max(CANDIDATE_ROWS * n_points, 2000)]
    if n_points == len(X) or method == "random":
        return X[:n_points].clone()
    if method == "conditional_variance":
        G = network(candidates).reshape(len(candidates), -1)
        return candidates[largest_conditional_variances(kernel, G, n_points)]
    rows = candidates.cpu().double().numpy()
    counts = None if weight is None else weight[: len(rows)].cpu().double().numpy()
    offset, unit = Scaling.standard(rows, counts)
    centres = centres_of_clusters((rows - offset) / unit, n_points, generator, counts)
    return torch.from_numpy(centres * unit + offset).to(X)


def centres_of_clusters(
    rows: np.ndarray, n_clusters: int, generator: torch.Generator, counts: np.ndarray | None = None
) -> np.ndarray:
    """Of k-means on rows (N, d), each of which counts for some: (n_clusters, d)."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    kmeans = MiniBatchKMeans(
        n_clusters, init="random", n_init=1, max_iter=10, batch_size=4096, random_state=seed
    )
    # Of fewer distinct rows than points this one does not warn: no filter, which threads share.
    return kmeans.fit(rows, sample_weight=counts).cluster_centers_


def largest_conditional_variances(kernel: Kernel, X: Tensor, n_points: int) -> Tensor:
    """Pivots of an incomplete Cholesky decomposition of k(X, X), O(N·M²): indices (n_points,)."""
    X = X.double()
    _, pivots = pivoted_cholesky(kernel.diag(X), lambda i: kernel(X[i][None], X)[0], n_points)
    return pivots
