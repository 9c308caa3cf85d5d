"""The Displays draw the right numbers (Agg backend)."""

import builtins

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from families import by_default, slow_cases
from matplotlib.colors import to_rgb
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.datasets import load_diabetes, load_digits
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

from skgpstoch import (
    ADMMGaussianProcessRegressor,
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    ConstantVarianceRegressor,
    ConvolutionalGPClassifier,
    ConvolutionalGPRegressor,
    DLMRegressor,
    StackedDensityRegressor,
    load,
)
from skgpstoch import GaussianProcessRegressor as OurProcess
from skgpstoch.display import (
    ADMMConvergenceDisplay,
    FeatureImportancesDisplay,
    InducingPatchesDisplay,
    LearningCurveDisplay,
    PatchResponsesDisplay,
    PredictionIntervalDisplay,
    RegressionCalibrationDisplay,
    ReportDisplay,
    StackingWeightsDisplay,
)
from skgpstoch.metrics import interval_coverage
from skgpstoch.metrics.scores import central_interval

mpl.use("Agg")
import matplotlib.pyplot as plt

pytestmark = pytest.mark.usefixtures("one_kernel")

ALL = [
    LearningCurveDisplay,
    PredictionIntervalDisplay,
    RegressionCalibrationDisplay,
    StackingWeightsDisplay,
]
OF_IMAGES = [InducingPatchesDisplay, PatchResponsesDisplay]
QUICK = {"n_inducing": 8, "max_iter": 3, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    X, y = load_diabetes(return_X_y=True)
    return X[:300], y[:300]


@pytest.fixture(
    params=[
        BayesianRidge(),
        make_pipeline(StandardScaler(), BayesianRidge()),
        GaussianProcessRegressor(DotProduct() + WhiteKernel(), normalize_y=True, optimizer=None),
    ],
    ids=["BayesianRidge", "pipeline", "GaussianProcessRegressor"],
)
def model(request, data):
    return request.param.fit(*data)


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def drawn_intervals(display):
    """(n, 3): actual value, lower and upper end of every bar drawn."""
    bars = [
        segment
        for lines in (display.covered_intervals_, display.missed_intervals_)
        for segment in lines.get_segments()
    ]
    return np.array([[*low, high[1]] for low, high in bars])


# ---------------------------------------------------------------------- PredictionIntervalDisplay
def test_interval_display_draws_every_prediction(model, data):
    X, y = data
    display = PredictionIntervalDisplay.from_estimator(model, X, y, coverage=0.8, subsample=None)
    mean, std = model.predict(X, return_std=True)
    order = np.argsort(y, kind="stable")
    np.testing.assert_array_equal(display.indices_, order)
    lower, upper = mean + norm.ppf(0.1) * std, mean + norm.ppf(0.9) * std
    covered = ((lower <= y) & (y <= upper))[order]
    np.testing.assert_allclose(
        display.covered_points_.get_offsets(), np.c_[y, mean][order][covered], rtol=1e-12
    )
    np.testing.assert_allclose(
        display.missed_points_.get_offsets(), np.c_[y, mean][order][~covered], rtol=1e-12
    )
    bars = np.c_[y, lower, upper][order]
    np.testing.assert_allclose(
        drawn_intervals(display), np.r_[bars[covered], bars[~covered]], rtol=1e-12
    )
    np.testing.assert_array_equal(*display.line_.get_data())
    np.testing.assert_array_equal(display.line_.get_xdata(), [y.min(), y.max()])


def test_intervals_are_those_of_the_model(data):
    """The standard deviations of the exact process leave `alpha` out, its intervals do not."""
    X, y = data
    model = OurProcess(RBF([1.0] * 10, "fixed"), alpha=0.5, normalize_y=True).fit(X, y)
    display = PredictionIntervalDisplay.from_estimator(model, X, y, coverage=0.9)
    np.testing.assert_array_equal(display.y_interval, model.predict_interval(X, coverage=0.9))


def test_interval_display_tells_coverage_of_all_rows(data):
    X, y = data
    display = PredictionIntervalDisplay.from_estimator(
        BayesianRidge().fit(X, y), X, y, coverage=0.5, subsample=20
    )
    interval = central_interval(*BayesianRidge().fit(X, y).predict(X, return_std=True), 0.5)
    observed = interval_coverage(y, interval)
    assert display.observed_coverage == observed
    assert legend_texts(display)[1:] == [
        f"covered ({observed:.1%})",
        f"missed ({1 - observed:.1%})",
    ]
    assert display.ax_.get_legend().get_title().get_text() == "50% intervals"
    assert display.ax_.get_xlabel() == "Actual value"
    assert display.ax_.get_ylabel() == "Predicted value"
    colors = [
        to_rgb(points.get_facecolor()[0, :3])
        for points in (display.covered_points_, display.missed_points_)
    ]
    assert colors[0] != colors[1]


@pytest.mark.parametrize(
    ("subsample", "n_drawn"), [(30, 30), (0.1, 30), (10_000, 300), (None, 300), (1e-9, 1)]
)
def test_interval_display_subsamples_without_replacement(subsample, n_drawn, data):
    y = data[1]
    arguments = (y, y + 1.0, np.ones_like(y))
    display = PredictionIntervalDisplay.from_predictions(*arguments, subsample=subsample)
    rows = display.indices_
    assert len(set(rows)) == len(rows) == n_drawn
    assert np.all(np.diff(y[rows]) >= 0)
    assert len(drawn_intervals(display)) == n_drawn
    again = PredictionIntervalDisplay.from_predictions(*arguments, subsample=subsample)
    np.testing.assert_array_equal(again.indices_, rows)


def test_interval_display_seed_chooses_rows(data):
    y = data[1]
    display = PredictionIntervalDisplay.from_predictions(y, y, np.ones_like(y), subsample=30)
    other = display.plot(subsample=30, random_state=1).indices_.copy()
    np.testing.assert_raises(
        AssertionError, np.testing.assert_array_equal, other, display.plot(subsample=30).indices_
    )


def test_interval_display_of_given_intervals_and_styles():
    display = PredictionIntervalDisplay(
        y_true=np.array([2.0, 1.0]),
        y_mean=np.array([2.0, 3.0]),
        y_interval=np.array([[1.0, 5.0], [2.0, 4.0]]),  # not symmetric: any interval may be shown
    ).plot(
        scatter_kwargs={"marker": "s", "s": 50},
        interval_kwargs={"linewidth": 4},
        line_kwargs={"color": "red"},
    )
    np.testing.assert_array_equal(drawn_intervals(display), [[2, 1, 5], [1, 2, 4]])
    assert display.observed_coverage == 0.5
    assert display.covered_points_.get_sizes() == [50]
    assert display.missed_intervals_.get_linewidth() == [4]
    assert display.line_.get_color() == "red"
    assert display.ax_.get_legend().get_title().get_text() == ""


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"subsample": 0}, ValueError, "subsample == 0"),
        ({"subsample": 1.5}, ValueError, "subsample == 1.5"),
        ({"subsample": "all"}, TypeError, "subsample"),
        ({"coverage": 1.0}, ValueError, "coverage must be a number between 0 and 1, got 1.0"),
    ],
)
def test_interval_display_names_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        PredictionIntervalDisplay.from_predictions([1.0], [1.0], [1.0], **options)


def test_interval_display_shows_one_output():
    Y = np.ones((5, 2))
    with pytest.raises(ValueError, match="shows one output, got 2"):
        PredictionIntervalDisplay.from_predictions(Y, Y, Y)


# ------------------------------------------------------------------- RegressionCalibrationDisplay
def test_calibration_display_draws_the_coverage_of_every_level(model, data):
    X, y = data
    display = RegressionCalibrationDisplay.from_estimator(model, X, y)
    mean, std = model.predict(X, return_std=True)
    levels = np.linspace(0.05, 0.95, 19)
    expected = [interval_coverage(y, central_interval(mean, std, level)) for level in levels]
    np.testing.assert_allclose(display.line_.get_xdata(), levels, rtol=1e-12)
    np.testing.assert_allclose(display.line_.get_ydata(), expected, rtol=1e-12)
    error = np.mean(np.abs(expected - levels))
    assert display.calibration_error == pytest.approx(error, rel=1e-12)
    name = type(model).__name__ if not hasattr(model, "steps") else "BayesianRidge"
    assert legend_texts(display)[-1] == f"{name}\ncalibration error {error:.1%}"


def test_calibration_of_the_truth_is_the_diagonal():
    y = norm.ppf((np.arange(10_000) + 0.5) / 10_000, 3.0, 2.0)
    display = RegressionCalibrationDisplay.from_predictions(
        y, np.full_like(y, 3.0), np.full_like(y, 2.0)
    )
    assert display.calibration_error < 1e-4
    display = RegressionCalibrationDisplay.from_predictions(
        y, np.full_like(y, 3.0), np.full_like(y, 1.0), levels=[0.5, 0.9]
    )
    expected = 2 * norm.cdf(norm.ppf([0.75, 0.95]) / 2) - 1
    np.testing.assert_allclose(display.observed, expected, atol=2e-4)
    assert np.all(display.observed < display.nominal)  # overconfident: below the diagonal


def test_calibration_of_a_distribution_is_that_of_its_intervals(data):
    """Not of normal ones with the same deviations; in a pipeline, too."""
    X, y = data
    model = DLMRegressor(likelihood="shared_student_t", n_inducing=5, max_iter=5, random_state=0)
    model = make_pipeline(StandardScaler(), model).fit(X, y)
    levels = [0.3, 0.8]
    display = RegressionCalibrationDisplay.from_estimator(model, X, y, levels=levels)
    for level, observed in zip(levels, display.observed, strict=True):
        interval = model[-1].predict_interval(model[:-1].transform(X), level)
        assert_allclose(observed, interval_coverage(y, interval), atol=1e-12)
    counts = DLMRegressor(likelihood="poisson", n_inducing=5, max_iter=2, random_state=0)
    counts.fit(X, np.round(y / 50))
    assert RegressionCalibrationDisplay.from_estimator(counts, X, np.round(y / 50)).observed[0] >= 0


def test_calibration_display_pools_outputs():
    y, std = np.zeros((4, 2)), np.ones((4, 2))
    mean = np.tile([0.0, 100.0], (4, 1))
    display = RegressionCalibrationDisplay.from_predictions(y, mean, std)
    np.testing.assert_array_equal(display.observed, 0.5)
    assert display.n_samples == 4


def test_calibration_displays_overlay(data):
    X, y = data
    model = BayesianRidge().fit(X, y)
    first = RegressionCalibrationDisplay.from_estimator(model, X, y, name="one")
    second = RegressionCalibrationDisplay.from_estimator(
        model, X, y, name="two", ax=first.ax_, color="black", linestyle=":"
    )
    assert second.ax_ is first.ax_
    assert second.figure_ is first.figure_
    texts = legend_texts(second)
    assert texts[:2] == ["ideal", "95% sampling band (n = 300)"]  # once, not once per estimator
    assert [text.split("\n")[0] for text in texts[2:]] == ["one", "two"]
    assert len(first.ax_.lines) == 3
    np.testing.assert_array_equal(first.ax_.lines[0].get_data(), [[0, 1], [0, 1]])
    assert second.line_.get_color() == "black"


def test_calibration_band_is_that_of_the_binomial(data):
    y = data[1]
    display = RegressionCalibrationDisplay.from_predictions(y, y, np.ones_like(y))
    (band,) = display.ax_.collections
    vertices = band.get_paths()[0].vertices
    at_half = np.sort(vertices[np.isclose(vertices[:, 0], 0.5), 1])
    half_width = norm.ppf(0.975) * np.sqrt(0.25 / 300)
    np.testing.assert_allclose(at_half, [0.5 - half_width, 0.5 + half_width], rtol=1e-4)
    assert vertices.min() >= 0
    assert vertices.max() <= 1


def test_calibration_display_without_name_reference_or_size():
    display = RegressionCalibrationDisplay(nominal=np.array([0.5]), observed=np.array([0.25]))
    assert legend_texts(display.plot(ref_line=False)) == ["calibration error 25.0%"]
    assert legend_texts(display.plot(name="m")) == ["ideal", "m\ncalibration error 25.0%"]


@pytest.mark.parametrize("levels", [[0.0, 0.5], [0.5, 1.0]])
def test_calibration_levels_lie_inside_the_unit_interval(levels):
    with pytest.raises(ValueError, match=r"levels must be a number between 0 and 1, got [01]\.0"):
        RegressionCalibrationDisplay.from_predictions([1.0], [1.0], [1.0], levels=levels)


# --------------------------------------------------------------------------- LearningCurveDisplay
class _Fitted(BaseEstimator):
    """A fitted estimator with the given attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def fit(self, X, y):
        return self


def test_learning_curve_draws_loss_validation_and_best_epoch():
    estimator = _Fitted(
        loss_curve_=[4.0, 2.0, 1.0, 0.5], validation_scores_=[5.0, 3.0, 2.5, 2.6], best_iter_=3
    )
    display = LearningCurveDisplay.from_estimator(estimator)
    np.testing.assert_array_equal(
        display.loss_line_.get_data(), [[1, 2, 3, 4], [4.0, 2.0, 1.0, 0.5]]
    )
    np.testing.assert_array_equal(
        display.validation_line_.get_data(), [[1, 2, 3, 4], [5.0, 3.0, 2.5, 2.6]]
    )
    np.testing.assert_array_equal(display.best_point_.get_xydata(), [[3, 2.5]])
    assert legend_texts(display) == ["training loss", "validation NLPD", "best epoch (3)"]
    assert display.ax_.get_xlabel() == "Epoch"
    assert display.ax_.get_ylabel() == "Nats per row"


def test_learning_curve_of_a_model_that_was_never_evaluated():
    """After partial_fit alone."""
    display = LearningCurveDisplay(loss_curve=[2.0, 1.0], validation_scores=[]).plot()
    assert display.validation_line_ is None
    np.testing.assert_array_equal(display.loss_line_.get_ydata(), [2.0, 1.0])
    none = LearningCurveDisplay(loss_curve=[], validation_scores=[], best_iter=0).plot()
    assert none.best_point_ is None


def test_learning_curve_spaces_rare_evaluations_evenly():
    display = LearningCurveDisplay(
        loss_curve=np.arange(6.0), validation_scores=[3.0, 1.0, 2.0], best_iter=4
    ).plot()
    np.testing.assert_array_equal(display.validation_line_.get_data(), [[2, 4, 6], [3, 1, 2]])
    np.testing.assert_array_equal(display.best_point_.get_xydata(), [[4, 1]])


def test_learning_curve_of_an_sklearn_network_and_overlay(data):
    network = MLPRegressor(hidden_layer_sizes=(2,), max_iter=5, tol=0, random_state=0)
    search = GridSearchCV(make_pipeline(StandardScaler(), network), {}, cv=2)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        search.fit(*data)
    display = LearningCurveDisplay.from_estimator(search, name="network")
    np.testing.assert_array_equal(
        display.loss_line_.get_ydata(), search.best_estimator_[-1].loss_curve_
    )
    assert display.validation_line_ is None
    assert display.best_point_ is None
    other = LearningCurveDisplay.from_estimator(
        _Fitted(loss_curve_=[2.0, 1.0], best_iter_=2), name="other", ax=display.ax_
    )
    assert legend_texts(other) == [
        "network: training loss",
        "other: training loss",
        "other: best epoch (2)",
    ]
    np.testing.assert_array_equal(other.best_point_.get_xydata(), [[2, 1]])
    assert other.loss_line_.get_color() == other.best_point_.get_color()
    assert other.loss_line_.get_color() != display.loss_line_.get_color()


def test_learning_curve_needs_a_fitted_estimator_with_a_loss_curve(data):
    with pytest.raises(NotFittedError):
        LearningCurveDisplay.from_estimator(MLPRegressor())
    with pytest.raises(TypeError, match=r"LearningCurveDisplay needs .* loss_curve_; got Ridge"):
        LearningCurveDisplay.from_estimator(Ridge().fit(*data))


# ---------------------------------------------------------------------------------- every Display
def draw(cls, **options):
    """A small picture of each Display."""
    if cls is LearningCurveDisplay:
        return cls(loss_curve=[2.0, 1.0]).plot(**options)
    if cls is StackingWeightsDisplay:
        return cls(names=["a", "b"], weights=[0.3, 0.7], scores=[1.0, 2.0]).plot(**options)
    if cls is InducingPatchesDisplay:
        return cls(patches=np.eye(3)[None, :, :, None], responses=np.ones((1, 1))).plot(**options)
    if cls is PatchResponsesDisplay:
        numbers = {"images": np.eye(4)[None, :, :, None], "responses": np.ones((1, 2, 2, 1))}
        return cls(**numbers, predictions=np.ones((1, 1)), patch_shape=(3, 3)).plot(**options)
    return cls.from_predictions([1.0, 2.0], [1.5, 1.5], [1.0, 1.0], **options)


@pytest.mark.parametrize("cls", ALL)
def test_displays_draw_on_the_given_axes(cls):
    figure, axes = plt.subplots(1, 2)
    display = draw(cls, ax=axes[1])
    assert display.ax_ is axes[1]
    assert display.figure_ is figure
    assert not axes[0].has_data()
    assert plt.get_fignums() == [figure.number]
    figure.canvas.draw()


@pytest.mark.parametrize("cls", ALL + OF_IMAGES)
def test_displays_open_a_figure(cls):
    display = draw(cls)
    assert plt.get_fignums() == [display.figure_.number]
    assert display.plot().figure_ is not None
    assert len(plt.get_fignums()) == 2


@pytest.mark.parametrize("cls", ALL + OF_IMAGES)
def test_missing_matplotlib_is_explained(cls, monkeypatch):
    real_import = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ImportError, match=rf"{cls.__name__}\.plot requires matplotlib.*pip"):
        draw(cls)


@pytest.mark.parametrize("cls", [PredictionIntervalDisplay, RegressionCalibrationDisplay])
def test_estimators_without_std_are_told_so(cls, data):
    with pytest.raises(TypeError, match=r"return_std=True"):
        cls.from_estimator(Ridge().fit(*data), *data)


@pytest.mark.slow
# ------------------------------------------------------------------------- ADMMConvergenceDisplay
def test_convergence_curves():
    X = np.linspace(0, 6, 60)[:, None]
    model = ADMMGaussianProcessRegressor(cv=3, scheme="naive", random_state=0)
    with pytest.raises(NotFittedError):
        ADMMConvergenceDisplay.from_estimator(model)
    model.fit(X, np.sin(X[:, 0]) + 0.1 * np.cos(40.0 * X[:, 0]))
    pipeline = make_pipeline(StandardScaler(), model).fit(X, np.sin(X[:, 0]))
    assert ADMMConvergenceDisplay.from_estimator(pipeline).lines_.shape == (4, 3)
    display = ADMMConvergenceDisplay.from_estimator(model, parameter=1)
    drawn = [[line.get_ydata() for line in lines] for lines in display.lines_]
    history = model.history_
    names = (
        np.exp(history["theta"][..., 1]),
        *(history[n] for n in ("z_norm", "gap", "objective")),
    )
    for values, expected in zip(drawn, names, strict=True):
        np.testing.assert_array_equal(np.transpose(values), expected)
    given = plt.subplots(2, 2)[1]
    assert ADMMConvergenceDisplay.from_estimator(model, axes=given).axes_[3] is given[1, 1]
    with pytest.raises(ValueError, match="one of the 2 learned hyper-parameters"):
        ADMMConvergenceDisplay.from_estimator(model, parameter=2)
    with pytest.raises(ValueError, match="axes must hold four axes, got 3"):
        display.plot(given.ravel()[:3])
    with pytest.raises(TypeError, match="history_"):
        ADMMConvergenceDisplay.from_estimator(BayesianRidge().fit(X, X[:, 0]))


# ------------------------------------------------------------------------- StackingWeightsDisplay
def test_weights_are_bars_with_scores(data):
    models = [("ridge", Ridge()), ("flat", DummyRegressor()), ("net", BayesianRidge())]
    stack = StackedDensityRegressor([(n, ConstantVarianceRegressor(m)) for n, m in models], cv=3)
    with pytest.raises(NotFittedError):
        StackingWeightsDisplay.from_estimator(stack)
    pipeline = make_pipeline(StandardScaler(), stack).fit(*data)
    display = StackingWeightsDisplay.from_estimator(pipeline, color="0.5")
    widths = [bar.get_width() for bar in display.bars_]
    assert widths == sorted(pipeline[-1].weights_)
    top = int(np.argmax(pipeline[-1].weights_))
    assert display.ax_.get_yticklabels()[-1].get_text() == models[top][0]
    assert display.texts_[-1].get_text() == f"{pipeline[-1].scores_[top]:.3f}"
    assert to_rgb(display.bars_[0].get_facecolor()) == to_rgb("0.5")


def test_weights_of_the_automatic_choice(data):
    X, y = data
    model = AutoGaussianProcessRegressor(random_state=0).fit(X[:40], y[:40])
    display = StackingWeightsDisplay.from_estimator(model)
    assert [bar.get_width() for bar in display.bars_] == [0.0, 1.0]
    assert [t.get_text() for t in display.ax_.get_yticklabels()] == ["linear", "process"]
    with pytest.raises(TypeError, match="named_estimators_"):
        StackingWeightsDisplay.from_estimator(SelectKBest().fit(X, y))


# ------------------------------------------------------------------------- Displays of images
@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(n_class=3, return_X_y=True)
    return X[:100] / 16.0, y[:100]


@pytest.fixture(scope="module")
def images_model(digits):
    return ConvolutionalGPClassifier(**QUICK).fit(*digits)


def titles(axes):
    return [ax.get_title() or ax.get_title(loc="left") for ax in np.ravel(axes)]


@pytest.mark.slow
def test_patches_are_drawn_in_the_order_of_their_strength(images_model):
    display = InducingPatchesDisplay.from_estimator(images_model, n_patches=5)
    responses = display.responses
    assert responses.shape == (8, 3)
    np.testing.assert_array_equal(display.strengths, np.abs(responses).max(1))
    np.testing.assert_array_equal(display.indices_, np.argsort(-display.strengths)[:5])
    points = images_model.inducing_points_
    for i, drawn in zip(display.indices_, display.images_, strict=True):
        np.testing.assert_array_equal(drawn.get_array(), points[i].reshape(3, 3))
        assert drawn.get_clim() == (points.min(), points.max())
    most = np.abs(responses).argmax(1)
    assert titles(display.axes_) == [
        f"{most[i]}: {responses[i, most[i]]:+.2g}" for i in display.indices_
    ]
    assert len(InducingPatchesDisplay.from_estimator(images_model, cmap="magma").axes_) == 8
    display.figure_.canvas.draw()


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
@slow_cases("1")
def test_a_patch_of_an_image_has_the_response_of_the_image(stride, digits):
    """Inducing patches that are patches of images, in their places."""
    X, y = digits
    corners = np.array([[0, 0], [2, 4], [4, 2], [4, 4]])
    images = X[:4].reshape(4, 8, 8)
    patches = [
        image[i : i + 3, j : j + 3].ravel() for image, (i, j) in zip(images, corners, strict=True)
    ]
    points = np.c_[patches, corners + 1.0]
    model = ConvolutionalGPClassifier(
        inducing_points=points, learn_inducing_points=False, stride=stride, max_iter=3
    ).fit(X, y)
    display = InducingPatchesDisplay.from_estimator(model, relative=False)
    expected = model.patch_responses(X[:4])[np.arange(4), *(corners // stride).T]
    np.testing.assert_allclose(display.responses, expected, rtol=1e-4, atol=1e-6)
    display = InducingPatchesDisplay.from_estimator(model)
    expected -= expected.mean(1, keepdims=True)
    np.testing.assert_allclose(display.responses, expected, rtol=1e-4, atol=1e-6)
    frames = [ax.patches for ax in display.axes_]  # the patch's, its mark, the image's
    for (_, mark, frame), i in zip(frames, display.indices_, strict=True):
        unit = frame.get_width() / 8
        np.testing.assert_allclose(
            (np.array([mark.get_y(), mark.get_x() - frame.get_x()]) / unit), corners[i], atol=1e-5
        )
        assert mark.get_width() == pytest.approx(3 * unit)


@pytest.mark.slow
@pytest.mark.parametrize("n_channels", [2, 3])
@slow_cases("2")
def test_patches_and_images_with_channels(n_channels, digits):
    X, y = digits
    color = (X[..., None] * np.linspace(0.2, 1.0, n_channels)).reshape(100, -1)
    model = ConvolutionalGPClassifier(
        image_shape=(8, 8, n_channels), location_kernel=None, **QUICK
    ).fit(color, y)
    display = InducingPatchesDisplay.from_estimator(model, n_patches=1)
    assert display.places is None
    assert display.responses.shape == (8, 3)
    (i,), points = display.indices_, model.inducing_points_
    drawn = display.images_[0].get_array()
    if n_channels == 3:  # red, green, blue, from 0 to 1
        expected = (points[i] - points.min()) / (points.max() - points.min())
        np.testing.assert_allclose(drawn, expected.reshape(3, 3, 3))
    else:
        patch = points[i].reshape(3, 3, 2)
        np.testing.assert_array_equal(drawn[:, :3], patch[..., 0])
        np.testing.assert_array_equal(drawn[:, 4:], patch[..., 1])
        assert drawn[:, 3].mask.all()
    display = PatchResponsesDisplay.from_estimator(model, color[:1], relative=False)
    expected = model.patch_responses(color[:1])[0]
    np.testing.assert_array_equal(display.maps_[0, 1].get_array(), expected[..., 1])


@pytest.mark.slow
@pytest.mark.parametrize("relative", [True, False])
@by_default("True")
def test_maps_are_the_responses_on_one_scale(relative, images_model, digits):
    X = digits[0][:2]
    display = PatchResponsesDisplay.from_estimator(images_model, X, relative=relative)
    responses, p = images_model.patch_responses(X), images_model.predict_proba(X)
    mean, _ = images_model.latent_mean_and_variance(X)
    if relative:
        responses -= responses.mean(-1, keepdims=True)
        mean -= mean.mean(-1, keepdims=True)
    assert display.axes_.shape == (2, 4)
    most = np.abs(responses).max()
    for i in range(2):
        np.testing.assert_array_equal(display.images_[i].get_array(), X[i].reshape(8, 8))
        for j in range(3):
            drawn = display.maps_[i, j]
            np.testing.assert_array_equal(drawn.get_array(), responses[i, ..., j])
            assert drawn.get_clim() == (-most, most)
            assert drawn.get_extent() == [1.0, 7.0, 7.0, 1.0]  # centres of patches, in pixels
            assert display.axes_[i, 1 + j].get_xlim() == (0, 8)
        assert titles(display.axes_[i, 1:]) == [f"{c}: {p[i, c]:.0%}" for c in range(3)]
    sums = [ax.get_xlabel() for ax in display.axes_[1, 1:]]
    np.testing.assert_array_equal(display.latent_means, mean)
    totals = responses[1].sum((0, 1))
    assert sums == [f"{a:+.2g} of {b:+.2g}" for a, b in zip(totals, mean[1], strict=True)]
    display.figure_.canvas.draw()


def test_maps_of_chosen_classes(images_model, digits):
    X = digits[0][:1]
    display = PatchResponsesDisplay.from_estimator(images_model, X, classes=[2, 0])
    p = images_model.predict_proba(X)[0]
    assert titles(display.axes_)[1:] == [f"2: {p[2]:.0%}", f"0: {p[0]:.0%}"]
    expected = images_model.patch_responses(X)[0]
    expected = expected[..., 0] - expected.mean(-1)  # of all classes, drawn or not
    np.testing.assert_array_equal(display.maps_[0, 1].get_array(), expected)
    assert PatchResponsesDisplay.from_estimator(images_model, X, classes=1).axes_.shape == (1, 2)


@pytest.mark.slow
def test_two_classes_and_numbers_have_one_map(digits):
    X, y = digits
    names = np.where(y == 0, "round", "other")
    model = ConvolutionalGPClassifier(**QUICK).fit(X, names)
    display = PatchResponsesDisplay.from_estimator(model, X[:2])
    p = model.predict_proba(X[:2])[:, 1]
    assert titles(display.axes_[:, 1]) == [f"round: {value:.0%}" for value in p]
    assert titles(InducingPatchesDisplay.from_estimator(model).axes_)[0].startswith("round: ")
    with pytest.raises(ValueError, match=r"classes must be .* \['round'\], got \['other'\]"):
        PatchResponsesDisplay.from_estimator(model, X[:2], classes=["other"])
    model = ConvolutionalGPRegressor(**QUICK).fit(X, y)
    display = PatchResponsesDisplay.from_estimator(model, X[:2])
    assert titles(display.axes_[:, 1]) == [f"{value:.3g}" for value in model.predict(X[:2])]
    total = model.patch_responses(X[:1]).sum()
    assert display.axes_[0, 1].get_xlabel() == f"{total:+.2g}"
    assert titles(InducingPatchesDisplay.from_estimator(model).axes_)[0][0] in "+-"
    with pytest.raises(ValueError, match="classes must be None for a regressor"):
        PatchResponsesDisplay.from_estimator(model, X[:2], classes=[0])
    model.fit(X, np.c_[y, -y, y == 1])
    display = PatchResponsesDisplay.from_estimator(model, X[:2])
    assert titles(display.axes_[1, 1:]) == [f"{value:.3g}" for value in model.predict(X[1:2])[0]]
    assert titles(InducingPatchesDisplay.from_estimator(model).axes_)[0].startswith("output ")


@pytest.mark.slow
def test_steps_before_are_applied_and_images_drawn_as_given(digits):
    X, y = 16.0 * digits[0], digits[1]
    pipeline = make_pipeline(MinMaxScaler(clip=True), ConvolutionalGPClassifier(**QUICK))
    search = GridSearchCV(pipeline, {"convolutionalgpclassifier__stride": [2]}, cv=2).fit(X, y)
    display = PatchResponsesDisplay.from_estimator(search, X[:1])
    scaler, model = search.best_estimator_
    expected = model.patch_responses(scaler.transform(X[:1]))
    expected -= expected.mean(-1, keepdims=True)
    np.testing.assert_array_equal(display.responses, expected)
    np.testing.assert_array_equal(display.predictions, search.predict_proba(X[:1]))
    np.testing.assert_array_equal(display.images_[0].get_array(), X[0].reshape(8, 8))
    assert display.maps_[0, 0].get_extent() == [0.5, 6.5, 6.5, 0.5]
    patches = InducingPatchesDisplay.from_estimator(search)
    np.testing.assert_array_equal(patches.patches.reshape(8, 9), model.inducing_points_)
    half = make_pipeline(FunctionTransformer(lambda X: X[:, :32]), ConvolutionalGPClassifier())
    half[-1].set_params(image_shape=(4, 8), **QUICK)
    display = PatchResponsesDisplay.from_estimator(half.fit(X, y), X[:1])
    np.testing.assert_array_equal(display.images_[0].get_array(), X[0, :32].reshape(4, 8))


@pytest.mark.slow
def test_images_with_names_of_columns(digits):
    X, y = pd.DataFrame(digits[0]).add_prefix("pixel"), digits[1]
    model = ConvolutionalGPClassifier(**QUICK).fit(X, y)
    assert InducingPatchesDisplay.from_estimator(model).responses.shape == (8, 3)
    assert list(model.feature_names_in_) == list(X.columns)
    display = PatchResponsesDisplay.from_estimator(model, X[:1])
    np.testing.assert_array_equal(display.images[0, ..., 0].ravel(), X.iloc[0])


@pytest.mark.parametrize("cls", OF_IMAGES)
def test_displays_of_images_draw_on_the_given_axes(cls):
    figure, axes = plt.subplots(1, 4)
    display = draw(cls, axes=axes)
    assert display.axes_.flat[0] is axes[0]
    assert display.figure_ is figure
    assert not axes[3].axison
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(ValueError, match=r"axes must hold at least \d axes, got 0"):
        draw(cls, axes=[])


@pytest.mark.parametrize("cls", OF_IMAGES)
def test_displays_of_images_need_a_fitted_estimator_with_patches(cls, data):
    arguments = () if cls is InducingPatchesDisplay else (data[0],)
    with pytest.raises(NotFittedError):
        cls.from_estimator(ConvolutionalGPClassifier(), *arguments)
    with pytest.raises(NotFittedError):
        cls.from_estimator(make_pipeline(MinMaxScaler(), ConvolutionalGPClassifier()), *arguments)
    with pytest.raises(TypeError, match=rf"{cls.__name__} needs .* patch_\w+; got Ridge"):
        cls.from_estimator(Ridge().fit(*data), *arguments)


def test_displays_of_images_name_bad_parameters(images_model, digits):
    for n_patches, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="n_patches"):
            InducingPatchesDisplay.from_estimator(images_model, n_patches=n_patches)
    for classes in ([3], []):
        with pytest.raises(ValueError, match=r"classes must be .* \[0, 1, 2\], got"):
            PatchResponsesDisplay.from_estimator(images_model, digits[0][:1], classes=classes)
    with pytest.raises(ValueError, match="X must hold at most 20 images, got 100"):
        PatchResponsesDisplay.from_estimator(images_model, digits[0])
    assert plt.get_fignums() == []


# ---------------------------------------------------------------------------------- ReportDisplay
def test_a_report_of_numbers_is_drawn():
    X, y = load_diabetes(return_X_y=True)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X[:60], y[:60])
    display = ReportDisplay.from_estimator(model)
    table = model.report().calibration
    assert [len(line.get_xdata()) for line in display.lines_] == [5, 5]
    assert_allclose(display.lines_[0].get_ydata(), table["coverage_95"][table["by"] == "std"])
    assert len(display.axes_) == 2


def test_a_report_of_counts_is_drawn():
    """With errors over predicted deviations, as their intervals have no coverage."""
    table = {"by": ["std", "mean"], "group": [1, 1], "rmse": [3.0, 2.0], "mean_std": [2.0, 2.0]}
    board = {"model": ["networks"], "weight": [1.0], "score": [-1.3]}
    (by_std, by_mean) = ReportDisplay(leaderboard=board, calibration=table).plot().lines_
    assert_allclose([*by_std.get_ydata(), *by_mean.get_ydata()], [1.5, 1.0])


def test_groups_of_a_report_are_numbers():
    """Words were labels of the axis: long ones took minutes to draw."""
    table = {"by": ["std"], "group": ["x" * 10**6], "coverage_95": [0.9]}
    board = {"model": ["networks"], "weight": [1.0], "score": [-1.3]}
    with pytest.raises(ValueError, match="Column 'group' of calibration must be numbers"):
        ReportDisplay(leaderboard=board, calibration=table).plot()


@pytest.mark.slow
def test_a_report_of_classes_is_drawn():
    X, y = load_digits(return_X_y=True)
    model = AutoGaussianProcessClassifier(random_state=0).fit(X[:80], y[:80])
    (line,) = ReportDisplay.from_estimator(model).lines_
    table = model.report().calibration
    groups = table[table["by"] == "confidence"]
    assert_allclose(line.get_xdata(), groups["mean_prediction"])
    assert_allclose(line.get_ydata(), groups["share"])


def test_wrong_levels_and_estimators_are_named():
    y = np.arange(4.0)
    for levels in (0.5, "a", [], [np.nan]):
        with pytest.raises(ValueError, match="levels must be"):
            RegressionCalibrationDisplay.from_predictions(y, y, y + 1.0, levels=levels)
    for display in (RegressionCalibrationDisplay, PredictionIntervalDisplay):
        for estimator in (None, Ridge):
            with pytest.raises(TypeError, match="estimator must be a fitted regressor, got"):
                display.from_estimator(estimator, y[:, None], y)


def test_pictures_of_many_searches_and_groups_are_quick():
    """A file of .2 MB took 30 s for its curves, and one of 2.6 MB 63 s for its ticks."""
    curves = np.ones((3, 5000))
    display = ADMMConvergenceDisplay(theta=curves, z_norm=curves, gap=curves, objective=curves)
    assert display.plot().lines_.shape == (4, 100)


def test_displays_of_files_say_that_parts_disagree(tmp_path):
    """They said only what Matplotlib says."""
    x = np.linspace(0, 1, 30)[:, None]
    fitted = ADMMGaussianProcessRegressor(tol=1.0, random_state=0).fit(x, np.sin(5 * x[:, 0]))
    fitted.save(tmp_path / "model")
    model = load(tmp_path / "model")
    model.history_["z_norm"] = model.history_["z_norm"][:0]
    with pytest.raises(ValueError, match="same first dimension") as raised:
        ADMMConvergenceDisplay.from_estimator(model)
    assert "ADMMConvergenceDisplay.from_estimator failed" in raised.value.__notes__[0]
    assert "parts of the file do not belong together" in raised.value.__notes__[0]


def test_long_names_are_shortened():
    """A file of .2 MB took half a minute to draw, and braces between dollars failed."""
    names = ["a" * 3000 + "b", "two\nlines", "$" + "{" * 200 + "$", "a" * 3000 + "c"]
    scores = np.arange(4.0)
    for display in (
        StackingWeightsDisplay(names=names, weights=scores / 6.0, scores=scores),
        FeatureImportancesDisplay(names=names, importances=scores / 6.0),
    ):
        display.plot().figure_.canvas.draw()
        texts = [label.get_text() for label in display.ax_.get_yticklabels()]
        assert [len(text) for text in texts] == [60, 9, 60, 60]
        assert texts[1] == "two lines"
