"""Groups of rows that are held out together, and effects of the levels of categories."""

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GroupKFold, cross_val_score

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
)
from skgpstoch.data import SequenceRows
from skgpstoch.data.arrays import Scaling
from skgpstoch.data.chunk import Chunk
from skgpstoch.data.groups import ALONE
from skgpstoch.data.held_out import group_folds
from skgpstoch.data.level_effects import (
    Backfitting,
    Curves,
    Design,
    JointFit,
    LevelEffects,
    Variances,
    fitted,
    learned_variances,
)
from skgpstoch.data.tables import TableEncoder
from skgpstoch.data.target_means import LevelTargets, Targets
from skgpstoch.maths.exact_solver import ExactSolver
from skgpstoch.methods.automatic import automatic_regressor
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.onnx import to_onnx
from skgpstoch.training.tables import together

pytestmark = pytest.mark.usefixtures("one_kernel")


def grouped(n_groups, n_rows, seed=0):
    """Rows of groups whose effects are larger than the noise."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), n_rows)
    X = np.hstack([rng.normal(size=(len(group), 1)), rng.normal(size=(n_groups, 2))[group]])
    y = np.sin(2.0 * X[:, 0]) + rng.normal(size=n_groups)[group] + 0.2 * rng.normal(size=len(X))
    return X, y, group


# ---- effects of levels ---------------------------------------------------------------------------


def crossed(n=240, seed=0):
    """Two categories whose effects add up, a curve, and which variances they have."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(20, size=n), rng.integers(12, size=n)])
    effects = [0.8 * rng.normal(size=20), 0.5 * rng.normal(size=12)]
    x = rng.normal(size=(n, 1))
    y = np.abs(x[:, 0]) + effects[0][codes[0]] + effects[1][codes[1]] + 0.3 * rng.normal(size=n)
    return x, codes, effects, y


def by_henderson(x, design, y, v):
    """The effects of levels, from the mixed model's equations as a whole."""
    Z = [np.eye(n)[c] for c, n in zip(design.codes, design.n_levels, strict=True)]
    A = np.hstack([np.ones((len(y), 1)), Curves.of(x, design.weight)(x), *Z])
    prior = [1e-12, *[1.0 / v.slopes] * (A.shape[1] - 1 - sum(design.n_levels))]
    prior += np.repeat(1.0 / v.levels, design.n_levels).tolist()
    left = (A.T * design.weight) @ A + v.noise * np.diag(prior)
    found = np.linalg.solve(left, (A.T * design.weight) @ y)[-sum(design.n_levels) :]
    return np.split(found, np.cumsum(design.n_levels)[:-1])


def test_effects_solve_the_equations_of_the_mixed_model():
    x, codes, truth, y = crossed()
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    design = Design(np.empty((len(y), 0)), codes, [20, 12], weight)
    fold = np.arange(len(y)) % 5
    found = LevelEffects.of(x, design, y[:, None], fold)
    learned = Design(Curves.of(x, weight)(x), codes, [20, 12], weight)
    v = learned_variances(learned, y)
    assert_allclose(v.levels, [np.var(b) for b in truth], rtol=0.5)
    assert v.noise == pytest.approx(0.09, rel=0.3)
    for got, expected, true in zip(found.whole, by_henderson(x, design, y, v), truth, strict=True):
        assert_allclose(got[:-1, 0], expected, atol=1e-3)
        assert got[-1, 0] == 0.0
        assert np.corrcoef(expected, true)[0, 1] > 0.95


def test_terms_together_are_where_backfitting_ends():
    x, codes, _, y = crossed(120)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    design = Design(Curves.of(x, weight)(x), codes, [21, 12], weight)  # one level without rows
    v = Variances(0.1, 0.5, np.array([0.6, 0.2]))
    together, one_by_one = JointFit(design, y), Backfitting(design, y)
    together.sweep(v)
    for _ in range(300):
        one_by_one.sweep(v)
    for a, b in zip(together.effects, one_by_one.effects, strict=True):
        assert_allclose(a, b, atol=1e-9)
    assert_allclose(together.slopes, one_by_one.slopes, atol=1e-9)
    assert_allclose(together.found.rest, one_by_one.r, atol=1e-9)
    assert together.effects[0][-1] == 0.0


def by_inverse(design, y, v):
    """The next variances of EM, from the inverse of all equations."""
    T = [np.ones((len(y), 1)), design.Z]
    T += [np.eye(n)[c] for c, n in zip(design.codes, design.n_levels, strict=True)]
    T, sizes = np.hstack(T), [design.Z.shape[1], *design.n_levels]
    prior = np.repeat([v.slopes, *v.levels], sizes)
    gram = (T.T * design.weight) @ T
    S = v.noise * np.linalg.inv(gram + np.diag([0.0, *(v.noise / prior)]))
    theta = S @ (T.T @ (design.weight * y)) / v.noise
    lost = np.trace(gram @ S)
    noise = (design.weight @ (y - T @ theta) ** 2 + lost) / design.weight.sum()
    squares = np.split((theta**2 + S.diagonal())[1:], np.cumsum(sizes)[:-1])
    return noise, [each.mean() for each in squares]


def test_a_step_of_em_has_the_joint_inverse():
    x, codes, _, y = crossed(120)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    design = Design(Curves.of(x, weight)(x), codes, [20, 12], weight)
    v = Variances(0.1, 0.5, np.array([0.6, 0.2]))
    fit = JointFit(design, y)
    fit.sweep(v)
    found = fit.variances(v, 1e-12)
    noise, (slopes, *levels) = by_inverse(design, y, v)
    assert found.noise == pytest.approx(noise, rel=1e-9)
    assert found.slopes == pytest.approx(slopes, rel=1e-9)
    assert_allclose(found.levels, levels, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e100])
@pytest.mark.parametrize("weight", [1.0, 1e9, 1e12])
def test_terms_of_targets_without_noise(weight, scale):
    """Whose prior is lost in rounding beside what so many rows tell."""
    rng = np.random.default_rng(0)
    inner = rng.integers(40, size=600)
    y = scale * (rng.normal(size=40)[inner] + rng.normal(size=10)[inner // 4])
    Z = np.column_stack([rng.normal(size=600), inner.astype(float)])
    levels = np.stack([inner, inner // 4])
    design = Design(Z, levels, [40, 10], weight * rng.uniform(0.1, 10.0, 600))
    fit = fitted(design, y[:, None], [learned_variances(design, y)])[0]
    assert np.abs(fit.found.rest).max() < 1e-4 * scale
    assert np.corrcoef(fit.effects[0][inner] + fit.effects[1][inner // 4], y)[0, 1] > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_category_that_contains_another_one_keeps_its_effects(seed):
    rng = np.random.default_rng(seed)
    inner = rng.integers(40, size=600)
    outer, of_outer = inner // 4, 0.7 * rng.normal(size=10)
    y = of_outer[outer] + 0.7 * rng.normal(size=40)[inner] + rng.normal(size=600)
    design = Design(rng.normal(size=(600, 1)), np.stack([inner, outer]), [40, 10], np.ones(600))
    v = learned_variances(design, y)
    assert v.levels[1] > 0.05
    effects = fitted(design, y[:, None], [v])[0].effects[1]
    assert np.corrcoef(effects, of_outer)[0, 1] > 0.5
    assert learned_variances(design, y, 10**6).levels[1] < 0.02  # blocks that are independent


def test_effects_of_a_fold_do_not_see_its_targets():
    x, codes, _, y = crossed()
    design = Design(np.empty((len(y), 0)), codes, [20, 12], np.ones(len(y)))
    fold = np.arange(len(y)) % 5
    found = LevelEffects.of(x, design, y[:, None], fold)
    told = sum(b[fold, c, 0] for b, c in zip(found.without, codes, strict=True))
    rest = y - np.abs(x[:, 0])
    assert np.corrcoef(told, rest)[0, 1] > 0.8
    noise = np.random.default_rng(2).normal(size=(len(y), 1))
    blind = LevelEffects.of(x, design, noise, fold)
    told = sum(b[fold, c, 0] for b, c in zip(blind.without, codes, strict=True))
    assert np.corrcoef(told, noise[:, 0])[0, 1] < 0.1


def firms(n_firms, n_rows, seed=0):
    rng = np.random.default_rng(seed)
    firm = np.repeat(np.arange(n_firms), n_rows)
    x = rng.normal(size=len(firm))
    y = 2.0 * np.abs(x) + rng.normal(size=n_firms)[firm] + 0.3 * rng.normal(size=len(x))
    order = rng.permutation(len(x))
    frame = pd.DataFrame({"x": x, "firm": [f"f{k}" for k in firm]})
    return frame.iloc[order].reset_index(drop=True), y[order]


def test_a_level_is_encoded_by_its_mean_and_its_effect():
    X, y = firms(110, 6)  # too many levels for columns
    encoder = TableEncoder()
    Z = encoder.fit_transform(X, y)
    assert [e.width for e in encoder.encoders] == [1, 2]
    rest = y - 2.0 * np.abs(X["x"])
    of_mean, of_effect = (np.corrcoef(Z[:, j], rest)[0, 1] for j in (1, 2))
    assert of_effect > of_mean + 0.03
    new = encoder.transform(pd.DataFrame({"x": [0.0], "firm": [X["firm"][0]]}))
    assert new[0, 2] == encoder.encoders[1].means[encoder.encoders[1].levels[X["firm"][0]], 1]


@pytest.mark.slow
def test_encodings_that_say_nothing_are_zero():
    X, _ = firms(110, 6)
    y = np.random.default_rng(3).normal(size=len(X))
    zeros = [
        (TableEncoder().fit_transform(X, np.random.default_rng(s).normal(size=len(y)))[:, 1:] == 0)
        for s in range(10)
    ]
    assert np.mean([each.all(0) for each in zeros]) > 0.5


@pytest.mark.slow
def test_processes_know_effects_of_levels():
    X, y = firms(40, 12)
    model = AutoGaussianProcessRegressor(max_time=2, random_state=0).fit(X[:190], y[:190])
    error = model.predict(X[190:]) - y[190:]
    assert np.sqrt(np.mean(error**2)) < 0.45  # by target means alone .65; the noise is .3


def test_effects_are_summed_by_parts():
    """Rows in chunks are told what the other columns, by a sample's curves, leave of the target."""
    X, y = firms(110, 20)
    sample, numbers = X[:700], np.arange(len(y))
    encoder = TableEncoder()
    encoder.fit_transform(sample, y[:700])
    told = LevelTargets.of(y[:700], None, None)
    chunks = [Chunk(X[i::3], numbers[i::3], "part", y[i::3]) for i in range(3)]
    by_fold = encoder.learn_levels(ALONE, chunks, told)
    new, own = encoder.transform(X), encoder.transform_training(X, numbers, by_fold)
    rest = y - 2.0 * np.abs(X["x"])
    assert np.corrcoef(new[:, 2], rest)[0, 1] > 0.93
    assert np.corrcoef(own[:, 2], rest)[0, 1] > 0.93
    assert np.abs(own[:, 2] - new[:, 2]).max() > 0.01


# ---- groups --------------------------------------------------------------------------------------


def test_a_process_leaves_groups_out():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(12, 12))
    C, y = B @ B.T + np.eye(12), rng.normal(size=(12, 1))
    cluster = np.array([0, 3, 1, 1, 0, 2, 2, 2, 1, 0, 3, 5])
    solver = ExactSolver.given(torch.linalg.cholesky(torch.from_numpy(C)), torch.from_numpy(y))
    residual, var = solver.groups_left_out(torch.from_numpy(cluster))
    for group in np.unique(cluster):
        own, others = np.flatnonzero(cluster == group), np.flatnonzero(cluster != group)
        K = np.linalg.solve(C[np.ix_(others, others)], C[np.ix_(others, own)]).T
        assert_allclose(residual[own], y[own] - K @ y[others])
        expected = C[np.ix_(own, own)] - K @ C[np.ix_(others, own)]
        assert_allclose(var[own], np.diag(expected))


def test_folds_hold_whole_groups():
    cluster = np.repeat([7, 3, 9, 1, 4, 5], [40, 10, 10, 10, 20, 10])
    fold = group_folds(cluster, 3, np.random.RandomState(0))
    assert all(len(np.unique(fold[cluster == g])) == 1 for g in np.unique(cluster))
    assert sorted(np.bincount(fold)) == [30, 30, 40]
    assert_array_equal(group_folds(100 - cluster, 3, np.random.RandomState(0)), fold)  # any names
    order = together(np.random.default_rng(0).permutation(100), cluster)
    assert_array_equal(np.sort(order), np.arange(100))
    assert np.count_nonzero(np.diff(cluster[order])) == 5  # each group in one piece


@pytest.mark.slow
def test_no_network_sees_a_group_that_is_held_out_from_it():
    X, y, group = grouped(40, 6)
    seen = {}

    class Watched(DeepKernelEnsembleRegressor):
        def _fit_run(self, recipe, run, data, given):
            seen["objective"], seen["rows"] = run.objective, run.problem.rows
            return super()._fit_run(recipe, run, data, given)

    Watched(n_estimators=4, max_iter=1, random_state=0).fit(X, y, groups=group)
    rows, sees = seen["rows"], seen["objective"].seen(seen["rows"]) > 0.0
    for k in range(4):
        judged = rows.cluster[(rows.fold == k) | (rows.fold == -2)]
        assert len(judged)
        assert not np.intersect1d(judged.unique(), rows.cluster[sees[k]].unique()).size
        assert sees[k].double().mean() > 0.4


@pytest.mark.filterwarnings("ignore:A linear model predicts")  # than one kernel alone
@pytest.mark.slow
def test_intervals_hold_rows_of_new_groups(monkeypatch):
    """Without groups, 90 % intervals hold 60 % of the rows of new groups."""
    monkeypatch.setattr(automatic_regressor, "FEWEST_FOR_NETWORKS", 1000)  # however fast this is
    X, y, group = grouped(260, 5, seed=1)
    known = group < 60
    model = AutoGaussianProcessRegressor(random_state=0)
    model.fit(X[known], y[known], groups=group[known])
    low, high = model.predict_interval(X[~known], coverage=0.9).T
    assert 0.85 < np.mean((low < y[~known]) & (y[~known] < high)) < 0.95
    held_out = model.estimators_["process"].held_out_
    assert held_out.std.mean() > 0.8  # of the groups' effects: 1


@pytest.mark.slow
def test_categories_within_groups_are_left_out():
    X, y, group = grouped(30, 5)
    frame = pd.DataFrame(X).rename(columns=str).assign(firm=[f"f{g}" for g in group])
    frame["kind"] = np.where(group % 3 == 0, "shop", "bank")
    model = AutoGaussianProcessRegressor(max_time=2, random_state=0)
    model.fit(frame, y, groups=frame["firm"])
    assert [e.width for e in model._encoder.encoders] == [1, 1, 1, 0, 1]
    new = frame.assign(firm="unknown")
    assert_array_equal(model.predict(new), model.predict(frame))  # and nothing warns
    assert model.feature_importances_[3] == 0.0
    graph = pytest.importorskip("onnxruntime").InferenceSession(to_onnx(model).SerializeToString())
    given = {c: new[[c]].to_numpy(float if c.isdigit() else object) for c in new}
    asked = {i.name: given[i.name] for i in graph.get_inputs()}
    assert_allclose(graph.run(None, asked)[0].ravel(), model.predict(new))


@pytest.mark.parametrize("kind", [AutoGaussianProcessRegressor, DeepKernelEnsembleRegressor])
def test_groups_need_rows_in_memory(kind):
    X, y, group = grouped(20, 4)
    with pytest.raises(ValueError, match="groups must be None where rows are read in chunks"):
        kind().fit(SequenceRows(X, y), groups=group)


def test_what_others_say_of_a_level_is_said_by_other_groups():
    y = firms(60, 6)[1]
    group = np.arange(len(y)) % 20
    targets = Targets.of([np.arange(len(y), dtype=float)], y[:, None], None, group)
    fold = targets.fold[targets.place]
    assert all(len(np.unique(fold[group == g])) == 1 for g in range(20))
    assert len(np.unique(fold)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AutoGaussianProcessClassifier, DeepKernelEnsembleClassifier])
def test_classifiers_hold_out_groups(kind):
    X, y, group = grouped(30, 5)
    options = {"max_iter": 2} if kind is DeepKernelEnsembleClassifier else {"max_time": 1}
    model = kind(random_state=0, **options).fit(X, y > 0.0, groups=group)
    assert model.predict_proba(X).shape == (150, 2)


def test_classes_of_one_group_are_warned_of():
    X, y, group = grouped(10, 6)
    labels = np.where(group == 3, "b", np.where(y > 0.0, "a", "c"))
    model = AutoGaussianProcessClassifier(max_time=1, random_state=0)
    with pytest.warns(
        UserWarning, match=r"All rows of 1 of 3 classes are in one group each: 'b'\."
    ):
        model.fit(X, labels, groups=group)
    (found,) = [each for each in model.diagnose() if each.name == "classes of one group"]
    assert (found.value, found.severity) == (1.0, "problem")


@pytest.mark.slow
def test_a_class_process_has_folds_of_groups():
    X, y, group = grouped(40, 5)
    alone, whole = (
        ExactProcessClassifier(kernels=["rbf"], random_state=0).fit(X, y > 0.0, groups=groups)
        for groups in (None, group)
    )
    assert whole.held_out_.log_density.mean() < alone.held_out_.log_density.mean() - 0.02


@pytest.mark.slow
def test_labels_of_groups_may_be_of_any_kind():
    X, y, group = grouped(20, 4)
    texts = [f"g{k:02}" for k in group]
    found = []
    for groups in (texts, pd.Series(texts), pd.Categorical(texts), np.array(texts)[:, None]):
        model = ExactProcessRegressor(kernels=["linear"], random_state=0)
        found.append(model.fit(X, y, groups=groups).predict(X))
    assert all((each == found[0]).all() for each in found)
    mixed = [k if k % 2 else f"{k}" for k in group.tolist()]
    ExactProcessRegressor(kernels=["linear"], random_state=0).fit(X, y, groups=mixed)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.arange(79), "one label for each of the 80 rows of X"),
        (np.where(np.arange(80) == 3, np.nan, 1.0), "groups must not have missing values"),
        ([None, *"abc" * 26, "a"], "groups must not have missing values"),
        (np.arange(80) % 2, "groups must have at least 3 different labels .* got 2"),
        (np.zeros((80, 2)), "got an array of shape"),
    ],
)
@pytest.mark.parametrize(
    "kind", [AutoGaussianProcessRegressor, DeepKernelEnsembleRegressor, ExactProcessRegressor]
)
def test_groups_are_checked(kind, groups, message):
    X, y, _ = grouped(20, 4)
    with pytest.raises(ValueError, match=message):
        kind().fit(X, y, groups=groups)


def test_groups_that_count_are_counted():
    X, y, group = grouped(20, 4)
    with pytest.raises(ValueError, match="got 2"):
        AutoGaussianProcessRegressor().fit(X, y, 1.0 * (group < 2), groups=group)


def test_networks_need_rows_beside_what_is_held_out():
    X, y, _ = grouped(20, 4)
    group = np.repeat([0, 1, 2], [78, 1, 1])
    with pytest.raises(ValueError, match="groups must leave each network a tenth"):
        DeepKernelEnsembleRegressor(n_estimators=4, max_iter=1).fit(X, y, groups=group)


@pytest.mark.slow
def test_groups_are_routed():
    X, y, group = grouped(20, 4)
    with sklearn.config_context(enable_metadata_routing=True):
        model = AutoGaussianProcessRegressor(max_time=1, random_state=0)
        model.set_fit_request(groups=True)
        scores = cross_val_score(model, X, y, cv=GroupKFold(2), params={"groups": group})
    assert np.isfinite(scores).all()


def test_the_unit_of_a_constant_is_one():
    """Effects of a constant target are 0, not NaN."""
    assert Scaling.standard(np.ones((5, 1))).scale == 1.0
    x, codes, _, y = crossed()
    design = Design(np.empty((len(y), 0)), codes, [20, 12], np.ones(len(y)))
    found = LevelEffects.of(x, design, np.full((len(y), 1), 3.0), np.arange(len(y)) % 5)
    assert_allclose(found.whole[0], 0.0, atol=1e-8)


def test_no_neighbours_of_rows_that_may_be_of_their_group(monkeypatch):
    for name in ("MOST_ALONE", "MOST_FOR_PROCESS", "FEWEST_FOR_DEPTH"):
        monkeypatch.setattr(automatic_regressor, name, 50)
    X, y, group = grouped(20, 3)
    small = {"hidden_layer_sizes": (8,), "n_estimators": 2, "max_iter": 2}
    networks = lambda **given: DeepKernelEnsembleRegressor(**{**given, **small})  # noqa: E731
    monkeypatch.setattr(automatic_regressor, "DeepKernelEnsembleRegressor", networks)
    model = AutoGaussianProcessRegressor(random_state=0).fit(X, y, groups=group)
    assert not any("neighbours" in name for name in model.scores_["model"])
