"""Choose where inducing points start: at given, previously fitted, or chosen points."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor, nn

from ... import kernels
from ...data.arrays import Scaling, named_array
from ...data.equal_rows import digests
from ...data.inner_fits import fitted_inside
from ...maths.pivoted_cholesky import pivoted_cholesky
from ...models.features.inducing import InducingFeatures
from .recipe import Problem

INITIALIZATIONS = ("kmeans", "conditional_variance", "random")
CANDIDATE_ROWS = 20  # candidate rows for each inducing point
UNITS = 10.0  # the unit of points is a length-scale, but at most so many standard deviations


def scaled_points(name: str, points: Any, problem: Problem) -> Tensor | None:
    """Return the user's points, scaled as X is; None if none are given.

    Raises
    ------
    ValueError
        If they do not have as many columns as X.
    """
    if points is None or isinstance(points, str):
        return None
    X = problem.X
    points = named_array(points, name)
    if points.shape[1] != X.shape[1]:
        raise ValueError(f"{name} must have {X.shape[1]} columns, as X has, got {points.shape[1]}.")
    return problem.x_scaling.tensor(points, X.dtype, X.device)


def fitted_points(features: Any, X: Tensor) -> list[Tensor | None]:
    """Return the points of fitted features, on the device and in the dtype of X."""
    return [points.detach().to(X) for points in features.all_points()]


def arrays_of_points(features: InducingFeatures) -> list[np.ndarray]:
    """Return every set of points as an array."""
    return [points.detach().double().numpy() for points in features.all_points()]


@torch.no_grad()
def choose_points(
    method: str,
    X: Tensor,
    n_points: int,
    kernel: kernels.Kernel,
    network: nn.Module,
    generator: torch.Generator,
    weight: Tensor | None = None,
    unit: Tensor | None = None,
) -> Tensor:
    """Choose inducing points (n_points, d) from the rows X (N, d), with N ≥ n_points.

    Parameters
    ----------
    method : {"kmeans", "conditional_variance", "random"}
        Centres of clusters; rows chosen one by one, each with the largest prior variance given
        those before it (Burt, Rasmussen & van der Wilk, 2020); or random rows. If there are as many
        points as rows, the points are the rows.
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
    unit : Tensor of shape (d,) or None, default=None
        Scale of each column, for "kmeans"; None is its standard deviation.
    """
    candidates = X[: max(CANDIDATE_ROWS * n_points, 2000)]
    if n_points == len(X) or method == "random":
        return X[:n_points].clone()
    if method == "conditional_variance":
        G = network(candidates).reshape(len(candidates), -1)
        return candidates[largest_conditional_variances(kernel, G, n_points)]
    rows = candidates.cpu().double().numpy()
    counts = None if weight is None else weight[: len(rows)].cpu().double().numpy()
    offset, scale = Scaling.robust(rows, counts)
    scale = scale if unit is None else unit.cpu().double().numpy()
    centres = centres_of_clusters((rows - offset) / scale, n_points, generator, counts)
    return torch.from_numpy(centres * scale + offset).to(X)


def first_of_each(rows: Tensor) -> Tensor:
    """Return the index of the first occurrence of each distinct row, in order."""
    first = np.unique(digests([rows.cpu().numpy()]), return_index=True)[1]
    return torch.from_numpy(np.sort(first)).to(rows.device)


def centres_of_clusters(
    rows: np.ndarray, n_clusters: int, generator: torch.Generator, counts: np.ndarray | None = None
) -> np.ndarray:
    """Return the centres (n_clusters, d) of k-means on rows (N, d), weighted by `counts`."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    kmeans = MiniBatchKMeans(
        n_clusters, init="random", n_init=1, max_iter=10, batch_size=4096, random_state=seed
    )
    # Unlike KMeans, this does not warn if distinct rows are fewer than points. A warning filter
    # would affect other threads.
    return fitted_inside(kmeans, rows, sample_weight=counts).cluster_centers_


def largest_conditional_variances(kernel: kernels.Kernel, X: Tensor, n_points: int) -> Tensor:
    """Return the first pivots (n_points,) of a pivoted Cholesky factorisation of k(X, X).

    This takes O(N·M²) time.
    """
    X = X.double()
    _, pivots = pivoted_cholesky(kernel.diag(X), lambda i: kernel(X[i][None], X)[0], n_points)
    return pivots


def unit_of_kernel(kernel: kernels.Kernel, most: Tensor) -> Tensor:
    """Return the shortest length-scale of each column, (d,), at most ten times `most`.

    If the kernel has no length-scales, return `most`.
    """
    shapes = (kernels.Radial, kernels.RationalQuadratic)
    parts = [part for part in kernel.modules() if isinstance(part, shapes)]
    unit = UNITS * most if parts else most
    for part in parts:
        unit = torch.minimum(unit, part.length_scale.detach().to(unit))
    return unit
