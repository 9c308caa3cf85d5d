"""Layers from images to images: the identities of methods.md, F.3."""

import math

import pytest
import torch
from families import by_default
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from torch import nn

from skgpstoch.kernels import from_sklearn
from skgpstoch.models.features.inducing import InducingFeatures
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.features.patches import Geometry, PatchCovariances
from skgpstoch.models.layers import DeepFeatures
from skgpstoch.models.patch_layers import PatchLayer, centre_map

GEOMETRY = Geometry((5, 6, 2), (3, 2))
KERNEL = ConstantKernel(0.5) * RBF(2.0)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(geometry=GEOMETRY, C=3, orthogonal=False, **kwargs):
    """A layer whose q(w) is something."""
    L = geometry.size
    arguments = (from_sklearn(KERNEL), nn.Identity(), normal(6, L), torch.ones(L).double(), L)
    if orthogonal:
        features = OrthogonalFeatures(*arguments, orthogonal_points=normal(4, L, seed=7))
    else:
        features = InducingFeatures(*arguments)
    blocks = (False,) * len(features.blocks)
    W = centre_map(geometry, C).double()
    made = PatchLayer(features, W, 1e-3, blocks, geometry=geometry, **kwargs)
    with torch.no_grad():
        made.means.copy_(normal(*made.means.shape, seed=1))
        for root in made.roots:
            root.copy_(0.5 * torch.eye(root.shape[-1]) + 0.2 * normal(*root.shape, seed=2))
    return made.requires_grad_(False)


def images(N, geometry=GEOMETRY, seed=5):
    return normal(N, math.prod(geometry.image_shape), seed=seed)


def test_the_mean_is_the_pixel_in_the_middle():
    made = make(C=3)
    X = images(2)
    a = (made.patches(X) @ made.mean_map).view(2, *made.image_shape)
    whole = X.view(2, 5, 6, 2)
    assert_allclose(a[..., :2], whole[:, 1:4, 1:6])
    assert (a[..., 2] == 0).all()
    assert made.n_pixels == a[0].numel()


@pytest.mark.slow
@pytest.mark.parametrize("orthogonal", [False, True])
@by_default("True")
def test_draws_have_the_moments_of_patches_and_the_covariance_of_shared_weights(orthogonal):
    made = make(orthogonal=orthogonal)
    X, S, C = images(2), 40_000, 3
    mean, var = made.moments(X)
    drawn = made.draws(X, 2, normal(S, 2, made.n_normals, seed=9)).unflatten(0, (S, 2))
    assert ((drawn.mean(0) - mean).abs() / (var / S).sqrt()).max() < 4.5
    # Of an image and channel P S Pᵀ + diag(ρ + s²); others are independent of it.
    basis, weights = made.features.basis(made.patches(X[:1])), made.weights()
    of_first = drawn[:, 0].view(S, -1, C)
    for c in range(C):
        roots = [R[0] for R in weights.roots]
        half = basis.phi @ torch.block_diag(*roots)
        expected = half @ half.mT + torch.diag(basis.residual() + made.noise)
        assert_allclose(
            torch.cov(of_first[..., c].mT), expected, atol=6 * float(expected.max()) / S**0.5
        )
    across = torch.corrcoef(torch.stack([of_first[:, 0, 0], of_first[:, 0, 1], drawn[:, 1, 0]]))
    assert (across - torch.eye(3)).abs().max() < 0.03


def test_rows_of_a_deeper_layer_are_those_of_a_first_one():
    made = make()
    X, noise = images(3), normal(4, 3, made.n_normals)
    assert_allclose(made.draws(X, 3, noise), made.draws(X.repeat(4, 1), 3, noise))
    same = made.draws(X, 3, noise[:, :1])
    fixed = made.draws(X, 3, noise[:, :1].expand(-1, 3, -1))
    assert_allclose(same, fixed)


def test_patches_drawn_one_by_one_have_the_same_marginals():
    one, other = make(), make(shares_weights=False)
    X = images(3)
    for a, b in zip(one.moments(X), other.moments(X), strict=True):
        assert_allclose(a, b)
    assert other.n_normals == other.n_pixels < one.n_normals
    drawn = other.draws(X, 3, torch.zeros(1, 3, other.n_normals).double())
    assert_allclose(drawn, other.moments(X)[0])


def test_single_pixels_that_stay_as_they_are_make_a_shallow_model():
    geometry, second = Geometry((5, 6, 1), (1, 1)), Geometry((5, 6, 1), (3, 2))
    nothing = from_sklearn(ConstantKernel(1e-24, "fixed") * RBF(1.0))
    features = InducingFeatures(nothing, nn.Identity(), normal(4, 1), torch.ones(1).double(), 1)
    layer = PatchLayer(features, torch.eye(1).double(), 0.0, (False,), geometry=geometry)
    responses = PatchCovariances(from_sklearn(KERNEL), second)
    arguments = (responses, nn.Identity(), normal(7, 6, seed=4), torch.ones(6).double(), 6)
    last = InducingFeatures(*arguments)
    X = images(3, geometry)
    deep, shallow = DeepFeatures([layer], last).basis(X), last.basis(X)
    assert_allclose(deep.phi.detach(), shallow.phi.detach().repeat(64, 1), atol=1e-8)
    assert_allclose(deep.prior.detach(), shallow.prior.detach().repeat(64), rtol=1e-8)


@pytest.mark.slow
def test_joint_draws_of_images_share_their_functions():
    made = make()
    X = images(1).repeat(2, 1)
    drawn = torch.stack([made.draw(X, torch.Generator().manual_seed(i)) for i in range(800)])
    mean, var = made.moments(X)
    assert ((drawn.mean(0) - mean).abs() / (var / 800).sqrt()).max() < 4.5
    assert_allclose(drawn.var(0), var, rtol=0.35)
    basis = made.features.basis(made.patches(X[:1]))
    explained = (1.0 - (basis.residual() + made.noise).repeat_interleave(3) / var[0]).mean()
    together = torch.stack([torch.corrcoef(drawn[:, :, i].mT)[0, 1] for i in range(36)]).mean()
    assert abs(together - explained) < 0.1  # the same image twice: residuals differ


def test_independent_draws_are_not_a_bound_and_shared_weights_are():
    """y ~ N(Σ_p h_p, σ²), J patches that are the same, y = 0: methods.md, F.3."""
    J, noise = 100, 1e4
    geometry = Geometry((1, J, 1), (1, 1))
    kernel = from_sklearn(ConstantKernel(1.0) * RBF(1.0))
    Z = torch.zeros(1, 1).double()
    evidence = -0.5 * (math.log(2 * math.pi * (J**2 + noise)))

    def bound(shares):
        features = InducingFeatures(kernel, nn.Identity(), Z, torch.ones(1).double(), 1)
        W = torch.zeros(1, 1).double()
        layer = PatchLayer(
            features, W, 0.0, (False,), geometry=geometry, shares_weights=shares
        ).requires_grad_(False)
        # The best q: S = 1/(1 + J²/σ²) given all patches together; the prior where they are not.
        layer.roots[0].fill_((1 + J**2 / noise) ** -0.5 if shares else 1.0)
        drawn = layer.draws(torch.zeros(1, J).double(), 1, normal(20_000, 1, layer.n_normals))
        sums = drawn.sum(1)
        expected = -0.5 * (math.log(2 * math.pi * noise) + sums.square() / noise).mean()
        return float(expected - layer.kl())

    assert bound(True) < evidence + 0.01
    assert bound(False) > evidence + 0.2
    assert_allclose(evidence, -5.871, atol=1e-3)
    assert_allclose(bound(False), -5.529, atol=0.01)
