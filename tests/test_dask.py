"""Fits and predictions on Dask's workers: processes on this machine, started once."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from thread_group import on_ranks

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")

from distributed import Client, LocalCluster, WorkerPlugin  # noqa: E402

from skgpstoch import (  # noqa: E402
    FITCRegressor,
    NNGPRegressor,
    SCGDGaussianProcessRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.dask import fit, fitting, predict, ranks  # noqa: E402
from skgpstoch.dask.rows import runs  # noqa: E402
from skgpstoch.data import row_sample  # noqa: E402
from skgpstoch.data.groups import WorkerLostError, using  # noqa: E402
from skgpstoch.training.checkpoint import CheckpointOfGroup  # noqa: E402

TIMEOUT = 60.0
SECONDS = 120.0
"""Until a fit counts as hanging."""

FEW = 100
"""Rows up to which rank 0 fits for all, on these workers."""

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (600, 2))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(600)
W = RNG.integers(0, 3, 600).astype(float)


SIXTHS = 6 * [100]
"""Chunks of which each of two workers computes some."""


def model(**params):
    return SVGPRegressor(
        **{"n_inducing": 10, "max_iter": 3, "random_state": 0, "solver": "collapsed", **params}
    )


class Prepared(WorkerPlugin):
    """Workers, also those that are started later: few rows are many, and ranks can be killed.

    A file "victim" in the folder names the rank that dies in its third epoch. Which epoch a fit has
    resumed from is in the name of a file.
    """

    def __init__(self, folder):
        self.folder = folder

    def setup(self, worker):
        row_sample.GATHERED_ROWS = FEW
        save, load, victim = CheckpointOfGroup.save, CheckpointOfGroup.load, self.folder / "victim"

        def save_or_die(checkpoint, state):
            save(checkpoint, state)
            if not victim.exists() or int(victim.read_text()) != checkpoint.group.rank:
                return
            if len(state["history"]["loss_curve"]) >= 3:
                time.sleep(1.5)  # until the checkpoint is sent
                victim.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        def load_and_tell(checkpoint, device):
            state = load(checkpoint, device)
            if state is not None:
                n_epochs = len(state["history"]["loss_curve"])
                (self.folder / f"loaded-{n_epochs}-{checkpoint.group.rank}").touch()
            return state

        CheckpointOfGroup.save, CheckpointOfGroup.load = save_or_die, load_and_tell


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dask")


@pytest.fixture(scope="module")
def client(folder):
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    cluster = LocalCluster(**options, dashboard_address=":0", local_directory=folder)
    with cluster, Client(cluster) as client:
        client.register_plugin(Prepared(folder))
        yield client


def chunked(array, *sizes):
    return da.from_array(array, chunks=(sizes, *array.shape[1:]))


def in_time(function, *args, **kwargs):
    """What a function returns, or raises; a hang is a failure."""
    found = {}

    def call():
        try:
            found["value"] = function(*args, **kwargs)
        except Exception as error:
            found["error"] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    if "error" in found:
        raise found["error"]
    return found["value"]


def by_threads(estimator, *shares):
    """The model of ranks that are threads, each with rows from one place to the next."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_sample, "GATHERED_ROWS", FEW)

        def fit_share(group):
            own = slice(shares[group.rank], shares[group.rank + 1])
            copy = model(**estimator.get_params())
            with using(group):
                return copy.fit(X[own], Y[own])

        return on_ranks(fit_share, size=len(shares) - 1)[0]


# ---- the same model ----------------------------------------------------------------------------


@pytest.mark.processes
def test_model_is_that_of_ranks_with_these_rows_and_needs_no_cluster(client):
    estimator = model()
    fitted = in_time(fit, estimator, chunked(X, *SIXTHS), chunked(Y, 600), timeout=TIMEOUT)
    alike = by_threads(estimator, 0, 300, 600)
    assert_allclose(fitted.predict(X), alike.predict(X), rtol=1e-9)
    assert not hasattr(estimator, "posterior_")
    assert fitted.get_params() == estimator.get_params()
    check_nothing_is_left(client)

    search = GridSearchCV(fitted, {"n_inducing": [5, 10]}, cv=2).fit(X[:90], Y[:90])
    assert search.best_params_["n_inducing"] in (5, 10)


def wait_until_released(client):
    deadline = time.monotonic() + TIMEOUT
    while any(client.who_has().values()) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert not any(client.who_has().values())


def check_nothing_is_left(client):
    def found():
        threads = [t.name for t in threading.enumerate() if "send" in t.name]
        names = [n for n in os.environ if n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
        return dist.is_initialized(), torch.get_num_threads(), threads, names

    wait_until_released(client)
    assert all(each == (False, 1, [], []) for each in client.run(found).values())
    assert (
        client.run_on_scheduler(
            lambda dask_scheduler: list(dask_scheduler.extensions["variables"].variables)
        )
        == []
    )


@pytest.mark.processes
def test_frames_weights_and_few_rows_are_fitted_as_on_one_machine(client):
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=Y, w=W)[:FEW]
    rows = dd.from_pandas(frame, npartitions=3, sort=False)
    there = rows[["a", "b"]], rows["y"], rows["w"]
    fitted = in_time(fit, model(), *there, timeout=TIMEOUT)
    here = model().fit(frame[["a", "b"]], frame["y"], frame["w"])
    assert_array_equal(fitted.predict(frame[["a", "b"]]), here.predict(frame[["a", "b"]]))
    assert_array_equal(fitted.feature_names_in_, ["a", "b"])

    mean, std = predict(fitted, there[0], return_std=True)
    assert mean.dtype == std.dtype == np.float64
    expected = fitted.predict(frame[["a", "b"]], return_std=True)
    for found, each in zip((mean.compute(), std.compute()), expected, strict=True):
        assert_allclose(found, each, rtol=1e-7)
        assert_array_equal(found.index, frame.index)
    interval = predict(fitted, there[0], "predict_interval", coverage=0.5).compute()
    assert_allclose(interval, fitted.predict_interval(frame[["a", "b"]], coverage=0.5), rtol=1e-7)


@pytest.mark.processes
def test_neighbours_are_those_among_all_rows(client):
    """Of more rows than other estimators gather; rows of one partition have some in others."""
    there = (da.from_array(a, chunks=(SIXTHS, *a.shape[1:])) for a in (X, Y))
    nearest = NNGPRegressor(max_iter=3, n_neighbors=8, random_state=0)
    fitted = in_time(fit, nearest, *there, timeout=TIMEOUT)
    here = NNGPRegressor(max_iter=3, n_neighbors=8, random_state=0).fit(X, Y)
    for found, own in zip(fitted.predict(X, True), here.predict(X, True), strict=True):
        assert_array_equal(found, own)
    lazy = predict(fitted, da.from_array(X, chunks=(SIXTHS, 2)))
    assert_allclose(lazy.compute(), here.predict(X), rtol=1e-12)


@pytest.mark.processes
def test_labels_and_probabilities_of_classes_and_partitions_without_rows(client):
    labels = np.where(Y[:90] > 0, "up", "down")
    there = chunked(X[:90], 0, 60, 30), chunked(labels, 90)
    fitted = in_time(fit, SVGPClassifier(n_inducing=5, max_iter=2, random_state=0), *there)
    probabilities = predict(fitted, there[0], "predict_proba")
    assert probabilities.shape == (90, 2)
    assert_allclose(probabilities.compute(), fitted.predict_proba(X[:90]), rtol=1e-7)
    assert_array_equal(predict(fitted, there[0]).compute(), fitted.predict(X[:90]))


@pytest.mark.processes
def test_two_fits_at_once_queue(client):
    """Both have all workers; the second one waits for the first."""
    there = chunked(X, *SIXTHS), chunked(Y, *SIXTHS)
    found = {}

    def fit_with(seed):
        found[seed] = fit(model(random_state=seed), *there, client=client, timeout=TIMEOUT)

    threads = [threading.Thread(target=fit_with, args=(seed,), daemon=True) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert set(found) == {0, 1}, "one hangs"
    again = in_time(fit, model(random_state=1), *there, timeout=TIMEOUT)
    assert_array_equal(found[1].predict(X), again.predict(X))


# ---- lost workers ------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_fit_resumes_when_a_worker_is_killed(client, folder, rank):
    client.wait_for_workers(2, timeout=SECONDS)
    wait_until_released(client)
    estimator = model(max_iter=6)
    there = chunked(X, *SIXTHS), chunked(Y, *SIXTHS)
    (folder / "victim").write_text(str(rank))
    fitted = in_time(fit, estimator, *there, timeout=TIMEOUT, max_restarts=1)
    assert not (folder / "victim").exists()
    loaded = sorted(int(path.name.split("-")[1]) for path in folder.glob("loaded-*"))
    assert loaded[-1] >= 1  # epochs that are not done again
    undisturbed = by_threads(estimator, 0, 300, 600)
    assert_allclose(fitted.predict(X), undisturbed.predict(X), atol=0.02)


@pytest.mark.processes
def test_without_restarts_a_killed_worker_is_an_error_with_a_name(client, folder):
    client.wait_for_workers(2, timeout=SECONDS)
    (folder / "victim").write_text("0")
    there = chunked(X, *SIXTHS), chunked(Y, *SIXTHS)
    with pytest.raises(
        WorkerLostError, match=r"lost a worker 1 times, more than max_restarts=0 allows"
    ):
        in_time(fit, model(max_iter=6), *there, timeout=TIMEOUT, max_restarts=0)
    client.wait_for_workers(2, timeout=SECONDS)


@pytest.mark.processes
def test_ranks_end_soon_after_an_interrupt_of_the_caller(client, monkeypatch):
    """Dask leaves tasks alone that run."""

    def are_ranks():
        return list(client.run(lambda: ranks.RANK_OF_PROCESS.locked()).values())

    def interrupted(*args):
        wait_until(lambda: any(are_ranks()))
        raise KeyboardInterrupt

    client.wait_for_workers(2, timeout=SECONDS)
    there = chunked(X, *SIXTHS), chunked(Y, *SIXTHS)
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "ended", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(model(max_iter=100_000), *there, client=client, timeout=SECONDS)
    wait_until(lambda: not any(are_ranks()))
    check_nothing_is_left(client)


def wait_until(is_so):
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---- what cannot be ----------------------------------------------------------------------------


@pytest.mark.processes
def test_errors_of_ranks_are_raised_here(client):
    there = chunked(X, 300, 300), chunked(np.where(Y > 1, np.nan, Y), 600)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        in_time(fit, model(), *there, timeout=TIMEOUT)


def with_batch_norm():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


A = da.zeros((10, 2), chunks=(5, 2))
B = da.zeros(10, chunks=5)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (model(), A.rechunk((5, 1)), B),
            {},
            "X must be split along its rows only, got 2 chunks along",
        ),
        ((model(), A[B > 0], B), {}, r"Call X.compute_chunk_sizes\(\) first"),
        ((model(), A.map_blocks(sparse.csr_array), B), {}, "X must be dense, but its chunks"),
        ((model(), A, B), {"sample_weight": 0 * B}, "X must have rows of positive weight, got non"),
        ((model(), np.zeros((10, 2)), B), {}, "X must be a dask array or frame, got ndarray"),
        ((model(), A, B), {"z": B}, "SVGPRegressor.fit does not take z; it takes X, y, "),
        ((FITCRegressor(), A, B), {"exposure": B}, "not take exposure; it takes X, y, y_std.$"),
        ((model(), A, None), {}, "y must be a dask array or frame, got NoneType"),
        (
            (model(), A, B[:9]),
            {},
            "X and y must have the same number of rows in each partition, got 10",
        ),
        ((model(), A[:0], B[:0]), {}, "X has no rows"),
        ((model(checkpoint_dir="x"), A, B), {}, "checkpoint_dir must be None, got 'x'"),
        (
            (make_pipeline(StandardScaler(), model()), A, B),
            {},
            "must be an estimator of skgpstoch, got Pip",
        ),
        ((type(model()), A, B), {}, "must be an instance, got the class SVGPRegressor"),
        ((model(), A, B), {"timeout": 0}, "timeout must be a positive number"),
        ((model(), A, B), {"max_restarts": -1}, "max_restarts must be an integer of at least 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_reasons(client, arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        in_time(fit, *arguments, client=client, **options)


@pytest.mark.processes
def test_batch_normalisation_and_no_client_are_refused(client):
    estimator = SCGDGaussianProcessRegressor(feature_map=with_batch_norm())
    with pytest.raises(ValueError, match="feature_map must not use batch normalisation"):
        fit(estimator, A, B)


@pytest.mark.parametrize(
    ("X", "method", "kwargs", "message"),
    [
        (A, "sample_y", {}, "method must be one of"),
        (A, "predict", {"return_cov": True}, "return_cov must be False"),
        (np.zeros((3, 2)), "predict", {}, "X must be a dask array or frame, got ndarray"),
        (A.rechunk((5, 1)), "predict", {}, "X must be split along its rows only"),
    ],
)
def test_what_cannot_be_predicted_by_rows_is_refused(X, method, kwargs, message):
    fitted = model().fit(np.eye(30, 2), np.arange(30.0))
    with pytest.raises((ValueError, TypeError), match=message):
        predict(fitted, X, method, **kwargs)


# ---- without a cluster -------------------------------------------------------------------------


def test_partitions_are_dealt_in_order():
    assert runs(["a", "b"], [10, 10, 10, 10]) == {"a": [0, 1], "b": [2, 3]}
    assert runs(["a", "b", "c"], [0, 100, 1, 0]) == {"b": [1], "c": [2]}
    assert runs(["a", "b", "c"], [5, 5]) == {"a": [0], "c": [1]}


def test_predictions_are_lazy_and_need_no_cluster():
    fitted = model().fit(X, np.column_stack([Y, -Y]))
    there = chunked(X, 0, 200, 400)
    means, stds = predict(fitted, there, return_std=True)
    assert means.shape == stds.shape == (600, 2)
    expected = fitted.predict(X, return_std=True)
    for found, each in zip(da.compute(means, stds, scheduler="synchronous"), expected, strict=True):
        assert_allclose(found, each, rtol=1e-7)
    lower = predict(fitted, there, "predict_interval")
    assert lower.shape == fitted.predict_interval(X).shape
    assert_allclose(lower.compute(scheduler="synchronous"), fitted.predict_interval(X), rtol=1e-7)
