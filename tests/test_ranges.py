"""Rows that are far from the training rows, as `diagnose(X)` of a default tells them."""

import numpy as np
import pandas as pd
import pytest

import skgpstoch
from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor

pytestmark = pytest.mark.usefixtures("one_kernel")


def table(n=80):
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.permutation(np.linspace(20.0, 60.0, n)),
        "city": np.array(["a", "b", "c", None], dtype=object)[np.arange(n) % 4],
        "day": pd.date_range("2024-01-01", periods=n, freq="D"),
        "none": np.full(n, np.nan),
    }
    return pd.DataFrame(columns), rng.normal(size=n)


@pytest.fixture(scope="module")
def fitted():
    return AutoGaussianProcessRegressor(random_state=0).fit(*table())


def far(model, X):
    found = [f for f in model.diagnose(X) if f.name == "rows asked"]
    return {finding.where: finding for finding in found}


def test_rows_within_the_ranges_are_not_far(fitted):
    X, _ = table()
    X["age"] = X["age"].where(X["age"] > 21, np.nan)
    X.loc[1, "age"], X.loc[2, "age"] = 16.1, 63.9  # a tenth of the range is 4
    (whole,) = far(fitted, X).values()
    assert whole.severity == "fine"
    assert whole.value == 0.0


def test_rows_are_counted_once_and_columns_named(fitted):
    X, _ = table(10)
    X.loc[[0, 1, 2], "age"] = 15.9, 64.1, 70.0
    X.loc[[2, 3], "city"] = "z"
    X.loc[[4], "day"] = pd.Timestamp("2025-01-01")
    X.loc[[5], "none"] = 0.5
    found = far(fitted, X)
    assert {where: f.value for where, f in found.items()} == {
        "X": 0.6,
        "column 'age'": 0.3,
        "column 'city'": 0.2,
        "column 'day'": 0.1,
        "column 'none'": 0.1,
    }
    assert found["X"].severity == "note"
    assert found["X"].text.startswith("Of 10 rows, 6 are far")
    assert "10% outside the range of the training rows, 20 to 60" in found["column 'age'"].text
    assert "2024-01-01 to 2024-03-20" in found["column 'day'"].text
    assert found["column 'day'"].text.startswith("Of these, 1 is more than 10% outside")
    assert "levels that the training rows did not have" in found["column 'city'"].text
    assert "numbers, but the training rows had none" in found["column 'none'"].text
    assert "rows asked" not in [f.name for f in fitted.diagnose()]


def test_rows_that_are_asked_are_checked(fitted):
    with pytest.raises(ValueError, match="feature names"):
        fitted.diagnose(table()[0].drop(columns="age"))


def test_a_loaded_model_says_the_same(fitted, tmp_path):
    X, _ = table(10)
    fitted.save(tmp_path / "model.skgp")
    loaded = skgpstoch.load(tmp_path / "model.skgp")
    assert far(loaded, X.assign(age=90.0)) == far(fitted, X.assign(age=90.0))


def test_classes_and_arrays():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 2))
    model = AutoGaussianProcessClassifier(random_state=0).fit(X, X[:, 0] > 0.5)
    assert far(model, X + 2.0 * np.eye(2)[1])["column 1"].value == 1.0


def test_rows_of_no_weight_cover_nothing():
    X, y = table()
    weight = np.where(X["age"] < 40.0, 1.0, 0.0)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, sample_weight=weight)
    assert far(model, X)["column 'age'"].value == pytest.approx(np.mean(X["age"] > 42.0), abs=0.03)
