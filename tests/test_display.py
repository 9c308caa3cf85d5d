"""The Displays draw the right numbers (Agg backend)."""

import builtins

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, WhiteKernel
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import ADMMGaussianProcessRegressor
from skgpstoch.display import (
    ADMMConvergenceDisplay,
    LearningCurveDisplay,
    PredictionIntervalDisplay,
    RegressionCalibrationDisplay,
)
from skgpstoch.metrics import central_interval, interval_coverage

mpl.use("Agg")
import matplotlib.pyplot as plt

ALL = [LearningCurveDisplay, PredictionIntervalDisplay, RegressionCalibrationDisplay]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


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
        ({"coverage": 1.0}, ValueError, "coverage == 1.0"),
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
    with pytest.raises(ValueError, match="levels == "):
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


@pytest.mark.parametrize("cls", ALL)
def test_displays_open_a_figure(cls):
    display = draw(cls)
    assert plt.get_fignums() == [display.figure_.number]
    assert display.plot().figure_ is not None
    assert len(plt.get_fignums()) == 2


@pytest.mark.parametrize("cls", ALL)
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
    with pytest.raises(ValueError, match="one of the 2 hyper-parameters"):
        ADMMConvergenceDisplay.from_estimator(model, parameter=2)
    with pytest.raises(ValueError, match="axes must be four, got 3"):
        display.plot(given.ravel()[:3])
    with pytest.raises(TypeError, match="history_"):
        ADMMConvergenceDisplay.from_estimator(BayesianRidge().fit(X, X[:, 0]))
