"""Patches: the identities of methods.md F.2, and covariances by blocks."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sk
from torch.testing import assert_close

from skgpstoch.kernels import from_sklearn, isotropic
from skgpstoch.models.features.inducing import Covariances, InducingFeatures
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.features.patches import (
    Geometry,
    PatchCovariances,
    SinglePatches,
    gather,
)
from skgpstoch.models.features.sums import SumFeatures
from skgpstoch.training.recipes.images import choose_patches
from skgpstoch.training.recipes.points import first_of_each

F64 = torch.float64
GREY = Geometry((5, 6, 1), (3, 2))
COLOUR = Geometry((4, 5, 2), (2, 3), stride=1)
STRIDED = Geometry((7, 6, 1), (3, 3), stride=2)
KERNELS = {
    "rbf": 1.3 * sk.RBF(1.7),
    "matern12": sk.Matern(2.0, nu=0.5) * 0.7,
    "matern32": sk.Matern(1.4, nu=1.5),
    "matern52": 2.0 * sk.Matern(1.4, nu=2.5),
    "sum": sk.RBF(1.5) + 0.3 * sk.RationalQuadratic(),
    "linear": sk.DotProduct(0.0, "fixed"),
}


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def make(geometry=GREY, kernel="rbf", place=False, M=7, seed=3):
    location = from_sklearn(sk.Matern(2.5, nu=1.5)) if place else None
    covariances = PatchCovariances(from_sklearn(KERNELS[kernel]), geometry, location)
    with torch.no_grad():
        covariances.relative_weights.copy_(normal(geometry.n_patches, seed=seed))
    points = normal(M, geometry.size, seed=seed + 1)
    places = 5.0 * torch.rand(M, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)
    H, W, C = geometry.image_shape
    return covariances, normal(4, H * W * C), torch.cat([points, places], 1) if place else points


def patches_by_hand(X, geometry):
    """By loops over pixels."""
    H, W, C = geometry.image_shape
    (h, w), s = geometry.patch_shape, geometry.stride
    images = X.reshape(len(X), H, W, C)
    found = []
    for i in range(0, H - h + 1, s):
        for j in range(0, W - w + 1, s):
            patch = images[:, i : i + h, j : j + w]
            found.append(patch.flatten(1))
    return torch.stack(found, 1)


def full(covariances, G, Z):
    """[[k_f, k_fu], [k_uf, k_uu]], by the definition."""
    whole = covariances
    z, t = whole.split(Z)
    P = whole.patches(G)
    N, J, L = P.shape
    rows = torch.cat([P.reshape(-1, L), z])
    K = whole.kernel(rows)
    if whole.location is not None:
        K = K * whole.location(torch.cat([whole.places.repeat(N, 1), t]))
    mix = torch.zeros(N + len(z), len(rows), dtype=F64)
    for n in range(N):
        mix[n, n * J : (n + 1) * J] = whole.weights
    mix[N:, N * J :] = torch.eye(len(z), dtype=F64)
    return mix @ K @ mix.mT


# ---- geometry --------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", [GREY, COLOUR, STRIDED])
def test_patches_are_those_of_loops(geometry):
    X = normal(3, int(np.prod(geometry.image_shape)))
    covariances = PatchCovariances(from_sklearn(sk.RBF()), geometry)
    patches = covariances.patches(X)
    assert patches.shape == (3, geometry.n_patches, geometry.size)
    assert_close(patches, patches_by_hand(X, geometry), rtol=0, atol=0)


def test_patches_are_those_of_unfold():
    X = normal(3, 42)
    images = X.view(3, 1, 7, 6)
    expected = torch.nn.functional.unfold(images, 3, stride=2).mT
    assert_close(PatchCovariances(from_sklearn(sk.RBF()), STRIDED).patches(X), expected)


def test_places_are_centres():
    assert STRIDED.places().tolist()[0] == [1.0, 1.0]
    assert STRIDED.places().tolist()[-1] == [5.0, 3.0]
    assert len(COLOUR.places()) == COLOUR.n_patches


# ---- covariances -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("geometry", [GREY, COLOUR])
def test_covariances_are_those_of_the_sum(geometry, kernel, place, monkeypatch):
    monkeypatch.setattr(isotropic, "BLOCK_VALUES", 200)
    covariances, X, Z = make(geometry, kernel, place)
    expected, N = full(covariances, X, Z), len(X)
    tolerance = {"rtol": 1e-7 if kernel == "matern12" else 1e-10, "atol": 1e-8}
    assert_close(covariances.gram(X), expected[:N, :N], **tolerance)
    assert_close(covariances.prior(X), expected[:N, :N].diagonal(), **tolerance)
    assert_close(covariances.cross(X, Z), expected[:N, N:], **tolerance)
    assert_close(covariances.among(Z), expected[N:, N:], **tolerance)
    assert_close(covariances.among(Z, Z[:3]), expected[N:, N : N + 3], **tolerance)
    assert float(torch.linalg.eigvalsh(expected.detach()).min()) > -1e-9


@pytest.mark.parametrize("of_images", [False, True])
@pytest.mark.parametrize("place", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
def test_backward_is_that_of_autograd(kernel, place, of_images, monkeypatch):
    monkeypatch.setattr(isotropic, "BLOCK_VALUES", 200)
    covariances, X, Z = make(GREY, kernel, place)
    X.requires_grad_(of_images)
    Z.requires_grad_(True)
    wanted = [*covariances.parameters(), Z, *([X] if of_images else [])]
    a, b = normal(4, 7, seed=8), normal(4, seed=9)
    ours = (a * covariances.cross(X, Z)).sum() + (b * covariances.prior(X)).sum()
    K = full(covariances, X, Z)
    theirs = (a * K[:4, 4:]).sum() + (b * K[:4, :4].diagonal()).sum()
    found, expected = (torch.autograd.grad(value, wanted) for value in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_memory_does_not_grow_with_pairs_of_patches():
    """What is kept for gradients is of the order of the patches."""
    covariances, X, Z = make(Geometry((12, 12, 1), (3, 3)), M=20)
    X, kept = X.repeat(10, 1), []
    Z.requires_grad_(True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        covariances.cross(X, Z).sum() + covariances.prior(X).sum()
    assert max(kept) <= len(X) * 100 * (9 + 2)


def test_float32_is_close():
    covariances, X, Z = make(GREY, "rbf", True)
    for f in (lambda X, Z: covariances.cross(X, Z), lambda X, Z: covariances.prior(X)):
        single = f(X.float(), Z.float())
        assert single.dtype == torch.float32
        assert_close(single.double(), f(X, Z), rtol=1e-4, atol=1e-5)


def test_no_rows():
    for kernel in ("rbf", "linear"):
        covariances, X, Z = make(kernel=kernel)
        assert covariances.cross(X[:0], Z).shape == (0, 7)
        assert covariances.prior(X[:0]).shape == (0,)


# ---- limits ------------------------------------------------------------------------------------


def test_a_patch_that_is_the_image():
    geometry = Geometry((3, 2, 1), (3, 2))
    covariances = PatchCovariances(from_sklearn(KERNELS["rbf"]), geometry)
    X, Z = normal(4, 6), normal(3, 6, seed=1)
    plain = Covariances(from_sklearn(KERNELS["rbf"]))
    for name, args in (("cross", (X, Z)), ("prior", (X,)), ("gram", (X,)), ("among", (Z,))):
        assert_close(getattr(covariances, name)(*args), getattr(plain, name)(*args))


def test_a_single_weight_picks_its_patch():
    covariances, X, Z = make()
    with torch.no_grad():
        covariances.relative_weights.zero_()[4] = GREY.n_patches
    patch = covariances.patches(X)[:, 4]
    assert_close(covariances.cross(X, Z), covariances.kernel(patch, Z))
    assert_close(covariances.gram(X), covariances.kernel(patch))


def test_linear_responses_are_linear_in_the_weighted_patch():
    covariances, X, _ = make(kernel="linear")
    mean = torch.einsum("p,npl->nl", covariances.weights, covariances.patches(X))
    assert_close(covariances.gram(X), mean @ mean.mT)


def test_constant_images_have_the_variance_of_a_response():
    covariances, _, _ = make()
    with torch.no_grad():
        covariances.relative_weights.fill_(1.0)
    X = torch.full((2, 30), 0.3, dtype=F64)
    assert_close(covariances.prior(X), torch.full((2,), 1.3, dtype=F64))


def test_all_patches_as_points_leave_nothing():
    covariances, X, _ = make()
    Z = covariances.patches(X).flatten(0, 1)
    features = InducingFeatures(covariances, torch.nn.Identity(), Z, torch.ones(6, dtype=F64), 6)
    features.jitter = None
    basis = features.basis(X)
    assert float(basis.residual().detach().max()) < 1e-8
    assert_close(basis.phi @ basis.phi.mT, covariances.gram(X), rtol=1e-7, atol=1e-8)


def test_uniform_weights_are_blind_to_shifts():
    geometry = Geometry((8, 8, 1), (3, 3))
    covariances = PatchCovariances(from_sklearn(KERNELS["rbf"]), geometry, None, False)
    image = torch.zeros(8, 8, dtype=F64)
    image[3:5, 3:5] = normal(2, 2)
    X = torch.stack([image, image.roll((1, -1), (0, 1))]).flatten(1)
    K = covariances.gram(X)
    assert_close(K, K[:1, :1].expand(2, 2))
    assert not covariances.relative_weights.requires_grad


def test_opposite_weights_negate_the_cross_covariance():
    covariances, X, Z = make(place=True)
    before = covariances.cross(X, Z), covariances.gram(X)
    with torch.no_grad():
        covariances.relative_weights.neg_()
    assert_close(covariances.cross(X, Z), -before[0])
    assert_close(covariances.gram(X), before[1])


def test_limits_of_the_location_kernel():
    """k_loc ≡ 1 is none; k_loc = δ is a function of its own at each place."""
    covariances, X, _ = make(place=True)
    plain = PatchCovariances(covariances.kernel, GREY)
    plain.relative_weights = covariances.relative_weights
    covariances.location = from_sklearn(sk.Matern(1e9, (1e-9, 1e10), nu=1.5))
    assert_close(covariances.gram(X), plain.gram(X), rtol=1e-6, atol=1e-9)
    covariances.location = from_sklearn(sk.Matern(1e-9, (1e-10, 1.0), nu=1.5))
    P, w = plain.patches(X), plain.weights
    additive = sum(w[p] ** 2 * plain.kernel(P[:, p]) for p in range(GREY.n_patches))
    assert_close(covariances.gram(X), additive)


# ---- sums of functions -------------------------------------------------------------------------


def parts(orthogonal=False):
    covariances, X, Z = make(place=True)
    plain = Covariances(from_sklearn(0.7 * sk.RBF(4.0)))
    found = []
    for c, points in ((covariances, Z), (plain, X + 0.1)):
        one = torch.ones(points.shape[1], dtype=F64)
        args = (c, torch.nn.Identity(), points[: len(points) // 2 + 1], one, len(one))
        others = points[len(points) // 2 + 1 :]
        part = (
            OrthogonalFeatures(*args, orthogonal_points=others)
            if orthogonal
            else InducingFeatures(*args)
        )
        part.jitter = None
        found.append(part)
    return found, X


@pytest.mark.parametrize("orthogonal", [False, True])
def test_features_of_a_sum(orthogonal):
    """PPᵀ is the sum of the parts', and so is ρ."""
    found, X = parts(orthogonal)
    whole = SumFeatures(found)
    basis, single = whole.basis(X), [part.basis(X) for part in found]
    assert_close(basis.phi @ basis.phi.mT, sum(b.phi @ b.phi.mT for b in single))
    assert_close(basis.residual(), sum(b.residual() for b in single))
    expected = sum(p.residual_covariance(X, b.phi) for p, b in zip(found, single, strict=True))
    assert_close(whole.residual_covariance(X, basis.phi), expected)
    assert len(whole.blocks) == 1 + orthogonal
    assert whole.n_features == basis.phi.shape[1] == sum(p.n_features for p in found)
    for (K, R), size in zip(whole.factors(), whole.blocks, strict=True):
        assert_close(R @ K @ R.mT, torch.eye(size, dtype=F64), rtol=0, atol=1e-8)


def test_freezing_a_sum_changes_nothing():
    found, X = parts()
    whole = SumFeatures(found)
    before = whole.basis(X)
    whole.freeze()
    after = whole.basis(X)
    assert_close(before.phi, after.phi)
    whole.scale_variance(2.0)
    whole.reopen()
    assert_close(whole.basis(X).prior, before.prior)


# ---- responses and points ----------------------------------------------------------------------


@pytest.mark.parametrize("place", [False, True])
def test_single_patches_add_up_to_the_image(place):
    covariances, X, Z = make(place=place)
    single = SinglePatches(covariances)
    rows = single.rows_of(X)
    assert_close(single.cross(rows, Z).view(len(X), -1, 7).sum(1), covariances.cross(X, Z))
    variances = covariances.weights.square() * 1.3
    assert_close(single.prior(rows).view(len(X), -1), variances.expand(len(X), -1))


def test_first_of_each():
    rows = torch.tensor([[2.0, 1.0], [0.0, 0.0], [2.0, 1.0], [3.0, 3.0], [0.0, 0.0]])
    assert first_of_each(rows).tolist() == [0, 1, 3]


@pytest.mark.parametrize("method", ["kmeans", "random"])
@pytest.mark.parametrize("place", [False, True])
def test_chosen_patches(method, place):
    covariances, _, _ = make(place=place)
    X = (normal(50, 30) > 1.0).double()
    generator = torch.Generator().manual_seed(0)
    Z = choose_patches(method, covariances, X, 12, generator)
    assert Z.shape == (12, 8 if place else 6)
    assert len(first_of_each(Z)) == 12
    if method == "random":
        known = covariances.patches(X).flatten(0, 1)
        assert all(bool((known == z[:6]).all(1).any()) for z in Z)


def test_fewer_patches_than_points():
    covariances, _, _ = make()
    X = torch.zeros(10, 30, dtype=F64)
    assert len(choose_patches("kmeans", covariances, X, 5, torch.Generator())) == 1


def test_patches_are_gathered_with_their_gradient():
    X, columns = normal(3, 30).requires_grad_(), GREY.columns()
    weights = normal(3, *columns.shape, seed=1)
    assert_close(gather(X, columns), X[:, columns])
    found, expected = (
        torch.autograd.grad((weights * patches.sin()).sum(), X)[0]
        for patches in (gather(X, columns), X[:, columns])
    )
    assert_close(found, expected)
