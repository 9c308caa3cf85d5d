"""Estimators of images: what they share with the family, what is theirs, and wrong uses."""

import copy
import pickle

import numpy as np
import pytest
import torch
from conftest import fitted_once
from families import by_default, slow_cases
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from skgpstoch import (
    ConvolutionalGPClassifier,
    ConvolutionalGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.models.patch_layers import PatchLayer
from skgpstoch.training.recipes.plan import Sizes

QUICK = {"n_inducing": 16, "max_iter": 8, "random_state": 0}
BARE = {"location_kernel": None, "global_kernel": None}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(n_class=4, return_X_y=True)
    return X[:150], y[:150], X[300:500], y[300:500]


@pytest.fixture(scope="module")
def bars():
    """Images with a short bar somewhere: its direction does not depend on where it is."""
    rng = np.random.default_rng(0)
    X, y = np.zeros((240, 8, 10)), np.arange(240) % 2
    for image, upright in zip(X, y, strict=True):
        i, j = rng.integers(0, 6, 2)
        image[i : i + 3, j] = 1.0 if upright else image[i : i + 3, j]
        image[i, j : j + 3] = image[i, j : j + 3] if upright else 1.0
    return X.reshape(240, 80), y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("posterior", "global_kernel"),
    [("svgp", "auto"), ("svgp", None), ("solve", "auto"), ("odvgp", None)],
)
@by_default("svgp-auto", "odvgp")
@slow_cases("odvgp")
def test_digits(posterior, global_kernel, digits):
    X, y, X_new, y_new = digits
    options = {"posterior": posterior, "global_kernel": global_kernel, **QUICK, "max_iter": 20}
    model = ConvolutionalGPClassifier(**options).fit(X, y)
    assert model.score(X_new, y_new) > 0.8
    assert model.inducing_points_.shape == (16, 9)
    assert model.inducing_places_.shape == (16, 2)
    assert model.patch_weights_.shape == (6, 6)
    assert (model.image_shape_, model.patch_shape_, model.stride_) == ((8, 8, 1), (3, 3), 1)
    assert hasattr(model, "global_points_") == (global_kernel is not None)
    assert hasattr(model, "orthogonal_points_") == (posterior != "svgp")


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "loss"), [("natural", "log"), ("adam", "elbo")])
@by_default("log")
def test_solvers_and_losses(solver, loss, digits):
    X, y, X_new, y_new = digits
    model = ConvolutionalGPClassifier(solver=solver, loss=loss, **{**QUICK, "max_iter": 25})
    assert model.fit(X, y).score(X_new, y_new) > 0.9


@pytest.mark.slow
def test_what_is_learned_does_not_depend_on_where_it_is(bars):
    """Trained on bars on the left, right about those on the right, which no other kernel is."""
    X, y = bars
    on_left = X.reshape(-1, 8, 10)[:, :, :5].sum((1, 2)) > X.reshape(-1, 8, 10)[:, :, 5:].sum(
        (1, 2)
    )
    options = {"image_shape": (8, 10), "patch_weights": "uniform", **BARE, **QUICK}
    model = ConvolutionalGPClassifier(**{**options, "max_iter": 60}).fit(X[on_left], y[on_left])
    plain = SVGPClassifier(**{**QUICK, "max_iter": 60}).fit(X[on_left], y[on_left])
    assert model.score(X[~on_left], y[~on_left]) > plain.score(X[~on_left], y[~on_left]) + 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Errors at neighbouring rows")  # 12 points are few
def test_patches_that_are_images_give_the_models_of_rows():
    """The same estimates, step by step, where the kernel is the same."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 6))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(120)
    kernel = 1.0 * sk.RBF(2.0) + sk.WhiteKernel(0.1)
    common = {"kernel": kernel, "random_state": 0, "dtype": "float64", "max_iter": 5}
    common["learn_inducing_points"] = False
    image = {"image_shape": (2, 3), "patch_shape": (2, 3), "patch_weights": "uniform", **BARE}
    X -= X.mean()
    for solver in ("collapsed", "lbfgs", "adam"):
        same = {**common, "solver": solver, "inducing_points": X[:12]}
        plain = SVGPRegressor(**same).fit(X, y)
        ours = ConvolutionalGPRegressor(**same, **image).fit(X, y)
        for a, b in zip(ours.predict(X, True), plain.predict(X, True), strict=True):
            assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert ours.log_marginal_likelihood_value_ == pytest.approx(
            plain.log_marginal_likelihood_value_, abs=1e-2
        )


@pytest.mark.slow
def test_more_points_are_a_better_bound():
    """SVGP(Z) ≤ SVGP(Z ∪ O), everything else given."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:200], (y[:200] >= 5).astype(float)
    first = ConvolutionalGPRegressor(n_inducing=20, **BARE, max_iter=1, random_state=0).fit(X, y)
    points = first.inducing_points_
    kernel = sk.ConstantKernel(first.kernel_.k1.constant_value, "fixed") * sk.RBF(
        first.kernel_.k2.length_scale, "fixed"
    ) + sk.WhiteKernel(0.1, "fixed")
    given = {"kernel": kernel, "learn_inducing_points": False, "patch_weights": "uniform", **BARE}
    few = ConvolutionalGPRegressor(inducing_points=points[:10], **given)
    many = ConvolutionalGPRegressor(inducing_points=points, **given)
    with pytest.warns(UserWarning, match="Raise n_inducing, now"):
        bounds = [m.fit(X, y).log_marginal_likelihood_value_ for m in (few, many)]
    assert bounds[0] < bounds[1]


@pytest.mark.slow
def test_channels():
    X, y = load_digits(n_class=4, return_X_y=True)
    rgb = np.repeat(X, 3, axis=1)
    model = ConvolutionalGPClassifier(**{**QUICK, "max_iter": 15}, image_shape=(8, 8, 3))
    assert model.fit(rgb[:300], y[:300]).score(rgb[300:500], y[300:500]) > 0.95
    assert model.inducing_points_.shape == (16, 27)
    assert model.patch_weights_.shape == (6, 6)


@pytest.mark.parametrize(
    ("n", "shape", "patch", "stride"),
    [(64, (8, 8, 1), (3, 3), 1), (784, (28, 28, 1), (5, 5), 2), (5, (1, 5, 1), (1, 3), 1),
     (2, (1, 2, 1), (1, 2), 1), (1, (1, 1, 1), (1, 1), 1), (40, (1, 40, 1), (1, 5), 1)],
)  # fmt: skip
def test_what_auto_comes_to(n, shape, patch, stride):
    geometry = ConvolutionalGPRegressor()._recipe().features.geometry(n)
    assert geometry[:3] == (shape, patch, stride)
    assert geometry.n_patches <= 200


@pytest.mark.slow
def test_units_of_pixels_do_not_matter(digits):
    X, y, X_new, _ = digits
    one, other = (
        ConvolutionalGPClassifier(**QUICK, dtype="float64").fit(a * X, y) for a in (1.0, 4.0)
    )
    assert_allclose(one.predict_proba(X_new), other.predict_proba(4.0 * X_new), atol=1e-8)
    assert_allclose(4.0 * one.inducing_points_, other.inducing_points_, atol=1e-8)
    assert other.kernel_.k2.length_scale == pytest.approx(4.0 * one.kernel_.k2.length_scale)


@pytest.mark.slow
def test_predictions_of_rows_do_not_depend_on_others(digits):
    X, y, X_new, _ = digits
    model = fitted_once(ConvolutionalGPClassifier(**QUICK), X, y)
    p = model.predict_proba(X_new)
    assert_allclose(np.vstack([model.predict_proba(X_new[i : i + 1]) for i in range(5)]), p[:5])
    assert_array_equal(model.predict_proba(X_new), p)
    again = clone(model).fit(X, y)
    assert_array_equal(again.predict_proba(X_new), p)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X_new), p)


@pytest.mark.slow
def test_covariances_and_draws(bars):
    X, y = bars
    model = ConvolutionalGPRegressor(image_shape=(8, 10), **{**QUICK, "max_iter": 1})
    model.fit(X, y.astype(float))
    mean, cov = model.predict(X[:20], return_cov=True)
    _, std = model.predict(X[:20], return_std=True)
    assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)
    draws = model.sample_y(X[:20], 200, random_state=0)
    assert np.abs(draws.mean(1) - mean).max() < 6.0 * std.max() / 200**0.5


@pytest.mark.slow
def test_sklearn_composes(digits):
    X, y, _, _ = digits
    model = make_pipeline(MinMaxScaler(), ConvolutionalGPClassifier(**{**QUICK, "max_iter": 3}))
    assert cross_val_score(model, X[:60], y[:60], cv=2).min() > 0.7
    grid = GridSearchCV(model, {"convolutionalgpclassifier__stride": [1, 2]}, cv=2)
    assert grid.fit(X[:60], y[:60]).best_score_ > 0.7


@pytest.mark.slow
def test_warm_start_and_streams(digits):
    X, y, X_new, y_new = digits
    model = ConvolutionalGPClassifier(warm_start=True, **QUICK).fit(X, y)
    before = model.log_marginal_likelihood_value_
    assert model.fit(X, y).log_marginal_likelihood_value_ > before
    with pytest.raises(ValueError, match="stride=2"):
        model.set_params(stride=2).fit(X, y)
    with pytest.raises(ValueError, match="patch_weights='uniform'"):
        model.set_params(stride="auto", patch_weights="uniform").fit(X, y)
    with pytest.raises(ValueError, match="patch_weights"):
        model.partial_fit(X, y)
    stream = ConvolutionalGPClassifier(**QUICK)
    for part in np.array_split(np.arange(150), 3):
        for _ in range(5):
            stream.partial_fit(X[part], y[part], classes=np.arange(4))
    assert stream.score(X_new, y_new) > 0.9


@pytest.mark.slow
def test_a_warm_start_has_the_geometry_that_it_had():
    X = np.random.default_rng(0).random((40, 80))
    options = {**QUICK, "max_iter": 1}
    model = ConvolutionalGPRegressor(warm_start=True, image_shape=(8, 10), **options)
    model.fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"image_shape=\(10, 8\)"):
        model.set_params(image_shape=(10, 8)).fit(X, X[:, 0])
    assert model.image_shape_ == (8, 10, 1)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["solve", "odvgp"])
@slow_cases("odvgp")
def test_a_warm_start_with_orthogonal_patches(posterior, digits):
    X, y, _, _ = (part[:60] for part in digits)
    model = ConvolutionalGPClassifier(warm_start=True, posterior=posterior, **QUICK).fit(X, y)
    before = model.log_marginal_likelihood_value_
    assert model.fit(X, y).log_marginal_likelihood_value_ > before


@pytest.mark.slow
def test_few_images_have_patches_that_are_learned(digits):
    X, y, _, _ = digits
    options = {**QUICK, "n_inducing": 60, "max_iter": 3}
    one = ConvolutionalGPClassifier(**options).fit(X[:40], y[:40])
    other = ConvolutionalGPClassifier(**options, learn_inducing_points=False).fit(X[:40], y[:40])
    assert not np.array_equal(one.inducing_points_, other.inducing_points_)
    assert_array_equal(one.global_points_, other.global_points_)  # as many as there are rows


@pytest.mark.slow
def test_places_tell_the_same_patches_apart():
    rng = np.random.default_rng(0)
    X, where = np.zeros((200, 12, 12)), rng.integers(0, 12, (200, 2))
    X[np.arange(200), *where.T] = 1.0
    y = np.sin(0.5 * where[:, 0]) + np.cos(0.4 * where[:, 1])
    model = ConvolutionalGPRegressor(
        global_kernel=None, n_inducing=60, solver="collapsed", max_iter=30, random_state=0
    )
    model.fit(X[:150].reshape(150, -1), y[:150])
    assert len(model.inducing_points_) == 60
    assert model.score(X[150:].reshape(50, -1), y[150:]) > 0.5


@pytest.mark.parametrize(
    ("posterior", "whiten"), [("svgp", False), ("svgp", True), ("solve", True), ("odvgp", False)]
)
@slow_cases("svgp-True", "odvgp")
def test_images_that_are_all_the_same(posterior, whiten):
    X, y = np.ones((20, 36)), np.arange(20) % 2
    model = ConvolutionalGPClassifier(posterior=posterior, whiten=whiten, **QUICK).fit(X, y)
    assert_allclose(model.predict_proba(X[:1]), [[0.5, 0.5]], atol=0.05)


@pytest.mark.slow
def test_square_loss_has_variances(digits):
    X, _, X_new, _ = digits
    y, y_new = X[:, 20] + X[:, 36], X_new[:, 20] + X_new[:, 36]
    model = ConvolutionalGPRegressor(
        loss="square", solver="collapsed", **{**QUICK, "max_iter": 25}
    ).fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    assert np.mean(np.square((y_new - mean) / std)) < 10
    assert_allclose(np.mean(np.square(36 * model.patch_weights_)), 1.0, rtol=1e-5)


@pytest.mark.slow
def test_images_far_from_all_others(digits):
    X, y, _, _ = digits
    far = np.full((2, 64), 1e200)
    far[1, 1:] = 0.0
    model = fitted_once(ConvolutionalGPClassifier(**QUICK), X, y)
    assert np.isfinite(model.predict_proba(far)).all()
    regressor = ConvolutionalGPRegressor(sk.Matern(10.0, nu=2.5), solver="collapsed", **QUICK)
    regressor.fit(X, y)
    assert np.isfinite(regressor.predict(far, return_std=True)).all()


@pytest.mark.parametrize(
    ("n_features", "params", "stride"),
    [
        (5000, {"image_shape": (1, 5000)}, 5),
        (784, {}, 2),
    ],
)
def test_auto_stride_ends_and_leaves_no_gaps(n_features, params, stride):
    patches = ConvolutionalGPRegressor(**params)._recipe().features
    assert patches.geometry(n_features).stride == stride


def test_too_many_patches_are_refused():
    X = np.zeros((3, 300 * 300))
    with pytest.raises(ValueError, match="Use a stride larger than 1"):
        ConvolutionalGPRegressor(stride=1, **QUICK).fit(X, np.arange(3.0))


def test_responses_of_a_regressor_are_in_units_of_y(digits):
    X, y, _, _ = digits
    options = {**QUICK, "solver": "collapsed", "global_kernel": None, "mean": "zero"}
    model = ConvolutionalGPRegressor(**options).fit(X, 100.0 * y)
    sums = model.patch_responses(X[:9]).sum((1, 2, 3))
    assert_allclose(sums + 100.0 * y.mean(), model.predict(X[:9]), rtol=1e-6)


HIDDEN = {**QUICK, "hidden_channels": [2], "max_iter": 4}


@pytest.fixture(scope="module")
def hidden(digits):
    X, y, _, _ = digits
    return ConvolutionalGPClassifier(**HIDDEN, posterior="solve").fit(X, y)


@pytest.mark.slow
def test_hidden_images(hidden, digits):
    X, _, X_new, y_new = digits
    assert hidden.score(X_new[:60], y_new[:60]) > 0.8
    (layer,) = hidden.hidden_layers_
    assert layer.image_shape == (6, 6, 2)
    assert layer.inducing_points.shape == layer.orthogonal_points.shape == (16, 9)
    assert layer.inducing_points.max() > 5.0  # in the units of X
    assert hidden.inducing_points_.shape == (16, 18)  # of hidden images
    assert hidden.patch_weights_.shape == (4, 4)
    assert hidden.image_shape_ == (8, 8, 1)
    assert hidden.elbo_std_ > 0
    X_new = X_new[:20]
    p = hidden.predict_proba(X_new)
    assert_allclose(p[7], hidden.predict_proba(X_new[7:8])[0], rtol=1e-9)
    assert_allclose(p, pickle.loads(pickle.dumps(hidden)).predict_proba(X_new))
    assert hidden.patch_responses(X[:2]).shape == (2, 4, 4, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"patch_correlation": "none"},
        {"hidden_channels": [2, 3], "global_kernel": None},
        {"solver": "adam", "location_kernel": None},
        {"loss": "log", "posterior": "odvgp"},
    ],
    ids=str,
)
@slow_cases("odvgp", "global_kernel", "adam")
def test_choices_of_hidden_images(params, digits):
    X, y, X_new, y_new = (part[:40] for part in digits)
    model = ConvolutionalGPClassifier(**{**HIDDEN, "max_iter": 2, **params}).fit(X, y)
    assert model.score(X_new, y_new) > 0.5
    again = clone(model).fit(X, y)
    assert_array_equal(model.predict_proba(X_new), again.predict_proba(X_new))


@pytest.mark.slow
def test_regression_with_hidden_images_goes_on(digits):
    X, y, _, _ = (part[:40] for part in digits)
    model = ConvolutionalGPRegressor(**HIDDEN, warm_start=True)
    model.fit(X, y)
    before = model.log_marginal_likelihood_value_
    assert model.fit(X, y).log_marginal_likelihood_value_ > before
    mean, std = model.predict(X[:5], return_std=True)
    same, cov = model.predict(X[:5], return_cov=True)
    assert_allclose(mean, same)
    assert_allclose(std, np.sqrt(np.diag(cov)))
    assert model.sample_y(X[:5], 3).shape == (5, 3)
    for name, value in {"hidden_channels": 3, "kernel": sk.RBF()}.items():
        with pytest.raises(ValueError, match=f"{name}="):
            copy.deepcopy(model).set_params(**{name: value}).fit(X, y)
    shallow = clone(model).set_params(hidden_channels=()).fit(X, y)
    assert not hasattr(shallow, "hidden_layers_")


@pytest.mark.slow
@pytest.mark.parametrize("hidden_channels", [(), (2,)])
@slow_cases("1$")
def test_uniform_weights_stay_uniform(hidden_channels, digits):
    X, y, _, _ = (part[:40] for part in digits)
    options = {**HIDDEN, "hidden_channels": hidden_channels, "patch_weights": "uniform"}
    model = ConvolutionalGPClassifier(**options, warm_start=True).fit(X, y)
    assert np.ptp(model.fit(X, y).patch_weights_) == 0.0
    assert np.ptp(model.partial_fit(X, y).patch_weights_) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("side", "hidden_channels", "most"), [(8, 2, 512), (28, 2, 113)])
@by_default("^8-")
def test_minibatches_count_hidden_patches(side, hidden_channels, most):
    """24 by 24 patches of 28 by 28 pixels are 113 images to a step."""
    rng = np.random.default_rng(0)
    X, seen = rng.normal(size=(130, side * side)), []
    model = ConvolutionalGPRegressor(**{**HIDDEN, "n_inducing": 4, "max_iter": 1})
    draws = PatchLayer.draws

    def watched(self, H, n_rows, noise):
        seen.append(n_rows * torch.is_grad_enabled())
        return draws(self, H, n_rows, noise)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PatchLayer, "draws", watched)
        model.fit(X, X[:, 0])
    assert max(seen) == (65 if most < 130 else 130)  # two minibatches, or one
    assert model._recipe().plan(Sizes(1000, 1000, side * side)).batch_size == most


@pytest.mark.slow
def test_weights_are_repetitions(digits):
    X, y, X_new, _ = digits
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    weighted = ConvolutionalGPClassifier(**QUICK).fit(X, y, sample_weight=weight)
    repeated = ConvolutionalGPClassifier(**QUICK).fit(X.repeat(weight, 0), y.repeat(weight))
    assert_array_equal(weighted.predict_proba(X_new), repeated.predict_proba(X_new))


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"image_shape": (7, 7)}, "image_shape must be .* a product of 64"),
        ({"image_shape": (8.0, 8)}, "image_shape must be positive integers"),
        ({"image_shape": (64,)}, "image_shape must be"),
        ({"patch_shape": (9, 3)}, "patch_shape must be two numbers"),
        ({"patch_shape": (0, 3)}, "patch_shape must be positive integers"),
        ({"patch_shape": (3, 3, 1)}, "patch_shape must be two numbers"),
        ({"stride": 0}, "'stride' parameter"),
        ({"stride": True}, "'stride' parameter"),
        ({"hidden_channels": True}, "'hidden_channels' parameter"),
        ({"patch_shape": (True, 3)}, "patch_shape must be positive integers"),
        ({"posterior": "exact"}, "'posterior' parameter"),
        ({"location_kernel": sk.PairwiseKernel()}, "location_kernel: kernel must be an expression"),
        (
            {"location_kernel": sk.RBF(np.ones(3))},
            "location_kernel has 3 length-scales, but a place has 2",
        ),
        (
            {"global_kernel": sk.RBF(np.ones(9))},
            "global_kernel has 9 length-scales, but an image has",
        ),
        ({"global_kernel": sk.RBF() + sk.WhiteKernel()}, "global_kernel must not contain a White"),
        ({"kernel": sk.RBF() * sk.WhiteKernel()}, "kernel must not contain a White"),
        ({"inducing_points": np.zeros((16, 9))}, "must have 11 columns"),
        ({"inducing_points": "conditional_variance"}, "'inducing_points' parameter"),
        ({"kernel": sk.RBF(np.ones(5))}, "kernel has 5 length-scales, but a patch has 9 numbers"),
        ({"hidden_channels": [2.5]}, "hidden_channels must be positive integers"),
        ({"hidden_channels": [[2, 2]]}, "hidden_channels must be positive integers"),
        ({"hidden_channels": [2], "patch_shape": 7}, "patch_shape must be two numbers"),
        ({"hidden_channels": [2], "solver": "lbfgs"}, "cannot be used with hidden_channels"),
        (
            {"hidden_channels": [2], "inducing_points": np.zeros((16, 20))},
            "inducing_points must be",
        ),
    ],
)
def test_bad_parameters(params, match, digits):
    X, y, X_new, _ = digits
    X, y = X[:100], y[:100]
    model = fitted_once(ConvolutionalGPClassifier(**{**QUICK, "max_iter": 1}), X, y)
    before = model.predict(X_new[:20])
    with pytest.raises((ValueError, TypeError), match=match):
        model.set_params(**params).fit(X, y)
    assert_array_equal(model.predict(X_new[:20]), before)


def test_wrong_number_of_pixels(digits):
    X, y, _, _ = digits
    model = fitted_once(ConvolutionalGPClassifier(**QUICK), X, y)
    with pytest.raises(ValueError, match="63 features"):
        model.predict(X[:, :-1])


def test_constant_images_are_no_error():
    X, y = np.ones((30, 16)), np.arange(30) % 2
    model = ConvolutionalGPClassifier(**QUICK).fit(X, y)
    assert_allclose(model.predict_proba(X[:1]), 0.5, atol=0.05)


@pytest.mark.slow
def test_responses_add_up_to_the_mean(digits):
    X, y, X_new, _ = digits
    for options in ({"global_kernel": None}, {}, {"posterior": "solve"}):
        model = fitted_once(ConvolutionalGPClassifier(**QUICK, **options), X, y)
        found = model.patch_responses(X_new[:7])
        assert found.shape == (7, 6, 6, 4)
        if "global_kernel" in options:
            mean, _ = model.latent_mean_and_variance(X_new[:7])
            rest = mean - found.sum((1, 2))
            assert_allclose(rest, np.broadcast_to(rest[:1], rest.shape), atol=1e-8)


def test_nothing_global_changes(digits):
    X, y, _, _ = digits
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    ConvolutionalGPClassifier(**{**QUICK, "max_iter": 1}).fit(X, y)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("n_first", [1, 5])
@pytest.mark.filterwarnings("ignore::UserWarning")
@slow_cases("1")
def test_streams_with_orthogonal_points_begin_with_few_images(n_first):
    """One image has no orthogonal points of whole images; five left no residual but rounding."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 16))
    y = X[:, 0] + X[:, 5]
    model = ConvolutionalGPRegressor(
        image_shape=(4, 4), patch_shape=2, posterior="solve", random_state=0
    )
    model.partial_fit(X[:n_first], y[:n_first])
    for i in range(n_first, 60, 10):
        model.partial_fit(X[i : i + 10], y[i : i + 10])
    assert model.score(X[60:], y[60:]) > 0.5
