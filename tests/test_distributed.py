"""Process groups: two processes in one launch, and what one process is told."""

import copy
import datetime
import functools
import itertools
import pickle
import sys
import types

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.testing import assert_allclose, assert_array_equal
from thread_group import on_ranks
from two_ranks import (
    CUTS,
    SHORT,
    SIZE,
    TIMEOUT,
    N,
    at_step,
    few_are_many,
    fit_mine,
    model,
    neighbours,
    rows,
    run_two_ranks,
    table,
)

from skgpstoch import distributed
from skgpstoch.data import devices
from skgpstoch.data.counter_rng import row_hashes
from skgpstoch.data.groups import ALONE, TimeoutOfDeviceError, current, wait_for
from skgpstoch.distributed import WorkerLostError, process_group

LAUNCHED = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"]
"""What a launcher sets."""


@pytest.fixture
def not_launched(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_processes_that_torchrun_starts_again_meet_elsewhere(monkeypatch):
    """Its store outlives them, with the addresses of those that they replace."""
    names = []
    for count in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        monkeypatch.setattr(distributed, "TIMES_ENTERED", itertools.count())  # of a new process
        names.append(distributed.name_of_entry(next(distributed.TIMES_ENTERED)))
    assert len(set(names)) == 2


def test_later_groups_meet_at_files_of_their_own():
    """The last rank to leave a group removes its file, where others may wait for the next one."""
    place = functools.partial(distributed.place_of_entry, "file:///a/b?rank=0#c")
    assert [place(k) for k in range(3)] == [f"file:///a/b{n}?rank=0#c" for n in ("", ".1", ".2")]
    assert distributed.place_of_entry("tcp://localhost:1", 1) == "tcp://localhost:1"


def test_a_rank_comes_again_if_the_store_of_an_earlier_group_goes_away():
    """Rank 0, in whose process it was, had not quite left; the two then missed each other."""
    gone, limit = itertools.count(), datetime.timedelta(seconds=20.0)

    def arrive(left):
        assert left <= limit
        if next(gone) < 2:
            raise dist.DistNetworkError("Failed to recv, got 0 bytes")
        return "here"

    assert distributed.arrived(arrive, limit, again=True) == "here"
    for again, seconds in ((False, 20.0), (True, 0.01)):
        gone = itertools.count()
        with pytest.raises(dist.DistNetworkError, match="Failed to recv"):
            distributed.arrived(arrive, datetime.timedelta(seconds=seconds), again)
        assert next(gone) == 1


def test_the_file_of_a_group_is_removed(tmp_path):
    """Torch leaves it now and then, and the ranks of the next run would meet those of this one."""
    place = tmp_path / "place"
    place.touch()
    for _ in range(2):  # by all ranks
        distributed.remove_place(f"file://{place}")
        assert not place.exists()


# ---- two processes -----------------------------------------------------------------------------


@pytest.mark.processes
def test_two_processes(tmp_path):
    """One launch, as a start takes seconds; a check of each case of tests/two_ranks.py."""
    found = run_two_ranks(tmp_path)
    check_exchanges(*(each["exchanges"] for each in found))
    check_errors(*(each["errors"] for each in found))
    for each in found:
        assert each["joined"][:3] == (3.0, 3.0, 1)  # theirs works, and is the only one left
        assert "so init, rank and size must be None" in each["joined"][3]
        assert each["as_between_devices"][0] == (3.0, 5, [0.0, 2.0])
    assert_array_equal(found[0]["automatic"], found[1]["automatic"])
    assert "the operation did not complete" in found[0]["as_between_devices"][1]
    check_lost(found[0]["slow"], SHORT)
    check_lost(found[0]["raising"], TIMEOUT)
    assert found[0]["slow"][3] > SHORT
    assert "killed" not in found[1]
    assert found[1]["raising"][0] == "an error of rank 1's own"
    check_fits(*(each["fits"] for each in found))
    check_interrupted(*(each["interrupted"] for each in found))
    check_waiting(*found[0]["killed_while_rank_0_fits"])
    check_killed(*found[0]["killed"])
    check_resumed(tmp_path)


def check_exchanges(first, second):
    X = table()
    w = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    ((X @ w).square().sum() + w.exp().sum()).backward()
    assert first.pop("place") == (0, SIZE, 0, 50)
    assert second.pop("place") == (1, SIZE, 37, 50)
    for each in (first, second):
        assert_allclose(each["gram"], X.T @ X, rtol=1e-12)
        assert each["n"] == 50
        assert each["largest"] == 2.0
        assert_array_equal(each["first"], X[0])
        assert each["names"] == ["even", "odd"] * 25
        assert each["empty"] == [0.0, 1.0, 2.0]
        assert each["flags"] == (True, False)
        assert_allclose(each["gradient"], w.grad, rtol=1e-12)
    chosen = row_hashes(3, np.arange(50)).argsort()[:10]
    for each, start in ((first, 0), (second, 37)):
        positions, places = each["chosen"]
        assert_array_equal(chosen[places], start + positions)
    assert len(first["chosen"][1]) + len(second["chosen"][1]) == 10
    for name in ("gram", "gradient"):  # bit for bit
        assert_array_equal(first[name], second[name])


def check_errors(first, second):
    assert [first.pop(0), second.pop(0)] == ["RuntimeError: rank 1: 'k'", "KeyError: 'k'"]
    assert first == second
    same, objects, nested, nccl = first
    assert "ValueError: theta must be the same on all ranks, got 0 on ranks [0]; 1 on" in same
    assert objects.startswith("TypeError: rank 1: objects must be strings")
    assert nested.startswith("RuntimeError: process_group is already in use")
    assert nccl.startswith('ValueError: backend="nccl" needs one GPU for each rank')


def check_lost(case, timeout):
    message, rank, step, seconds, is_initialized = case
    assert f"Rank 0 of 2 lost another rank at exchange {step} (the closing pass)" in message
    assert f"s of {timeout:g} s: " in message
    assert (rank, step) == (0, 6)
    assert seconds < TIMEOUT
    assert not is_initialized


def check_fits(of_first, of_second):
    X, y = rows()
    refused, first = of_first
    assert refused.startswith("feature_map must not contain BatchNorm1d in a group")
    for ours, theirs in zip(first, of_second[1], strict=True):
        assert_array_equal(ours, theirs)
    with few_are_many():
        assert_allclose(first[0], on_ranks(lambda g: fit_mine(g, model()), 2)[0].predict(X))
    assert_array_equal(first[1], model().fit(X[:300], y[:300]).predict(X))
    assert np.corrcoef(first[2], y)[0, 1] > 0.5
    assert_array_equal(first[3], neighbours().fit(X, y).predict(X))


def check_interrupted(first, second):
    n_together, n_alone, error, is_as_before, seconds, is_restored = first
    assert second[:2] == [n_together, n_alone] == [2, n_alone]  # steps 6 to 11
    assert 1 <= n_alone < 100_000
    assert [error, second[2]] == ["WorkerLostError", "KeyboardInterrupt"]
    assert is_as_before
    assert seconds < TIMEOUT
    assert is_restored
    assert second[-1]


def check_waiting(message, is_as_before, seconds):
    assert "(SVGPRegressor.fit" in message
    assert is_as_before
    assert seconds < TIMEOUT


def check_killed(message, is_fitted, seconds):
    assert "(SVGPRegressor.fit, training)" in message
    assert not is_fitted
    assert seconds < TIMEOUT


def check_resumed(folder):
    """From the killed fit's file, with any number of ranks, to where it would have ended."""
    X, y = rows()
    (saved,) = (folder / "saved").iterdir()
    content = saved.read_bytes()

    def resumed(size):
        saved.write_bytes(content)
        cuts = [N * k // size for k in range(size + 1)] if size != SIZE else CUTS
        seen = []

        def fit(group):
            mine = slice(*cuts[group.rank : group.rank + 2])
            return model(checkpoint_dir=folder / "saved").fit(X[mine], y[mine])

        started, went_on = (at_step(k, lambda k=k: seen.append(k), rank=0) for k in (0, 18))
        with few_are_many(), started, went_on:
            fitted = on_ranks(fit, size)[0]
        assert seen == [18]  # the fourth epoch's first, without those before
        assert not saved.exists()
        return fitted

    with few_are_many():
        undisturbed = on_ranks(lambda group: fit_mine(group, model()), SIZE)[0]
    assert_array_equal(resumed(SIZE).predict(X), undisturbed.predict(X))
    density = undisturbed.log_predictive_density(X, y)
    for size in (1, 3):
        assert_allclose(resumed(size).log_predictive_density(X, y), density, atol=1e-8)


# ---- one process -------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_process_of_all_fits_as_more_do(not_launched):
    X, y = rows()
    with process_group(rank=0, size=1) as group, few_are_many():
        assert group is current() is copy.deepcopy(group) is pickle.loads(pickle.dumps(group))
        assert group is not ALONE
        one = model().fit(X, y).predict(X)
        assert not dist.is_initialized()
        with pytest.raises(RuntimeError, match="process_group is already in use"):
            process_group(rank=0, size=1).__enter__()
    with process_group(rank=0, size=1):  # the other one has ended
        pass
    with few_are_many():
        two = on_ranks(lambda group: fit_mine(group, model()), 2)[0].predict(X)
    assert_allclose(one, two, atol=1e-10)
    assert np.abs(model().fit(X, y).predict(X) - one).max() > 1e-6  # whose sample is all rows


def test_outside_of_a_launcher_it_says_what_to_do(not_launched, monkeypatch):
    with pytest.raises(ValueError, match="set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE") as told:
        process_group().__enter__()
    assert "torchrun --standalone --nproc-per-node 2 script.py" in str(told.value)
    with pytest.raises(ValueError, match="has set RANK, WORLD_SIZE"):
        process_group(init="file:///tmp/x").__enter__()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="has set MASTER_ADDR, MASTER_PORT\\. "):
        process_group(rank=1).__enter__()
    assert current() is ALONE


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"backend": "mpi"}, r"backend must be one of \('auto', 'gloo', 'nccl'\), got 'mpi'"),
        ({"init": "localhost"}, "init must be None, a Store, or start .* got 'localhost'"),
        ({"size": 0}, "size must be an integer of at least 1 or None, got 0"),
        ({"rank": 2, "size": 2}, "rank must be an integer from 0 to size - 1 or None, got 2"),
        ({"rank": 0.0}, "rank must be an integer"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, got 0"),
        ({"timeout": np.inf}, "timeout must be a positive number of seconds, got inf"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        process_group(**parameters).__enter__()


def test_ranks_that_do_not_come_are_waited_for_no_longer_than_the_timeout(tmp_path):
    hook = sys.excepthook
    with pytest.raises(WorkerLostError, match=r"did not meet within 0\.3 s \(rank 0 of 2, at file"):
        process_group(init=f"file://{tmp_path}/x", rank=0, size=2, timeout=0.3).__enter__()
    assert not dist.is_initialized()
    assert current() is ALONE
    assert sys.excepthook is hook


# ---- accelerators ------------------------------------------------------------------------------


def test_processes_of_a_machine_have_accelerators_by_turns(monkeypatch):
    module = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: types.SimpleNamespace(uuid=f"u{index}"),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    kind = devices.ACCELERATORS[0]
    for number in range(3):
        place = torch.device(kind, number % 2), f"u{number % 2}"
        assert devices.accelerator_of_process(number) == place
    monkeypatch.setattr(module, "is_available", lambda: False)
    assert devices.accelerator_of_process(0) is None


def test_waiting_for_an_accelerator_ends():
    answers = iter([False, False, True])
    waited = []
    work = types.SimpleNamespace(
        is_completed=lambda: next(answers), wait=lambda: waited.append(True)
    )
    wait_for(work, np.inf)
    assert waited == [True]
    hangs = types.SimpleNamespace(is_completed=lambda: False)
    with pytest.raises(TimeoutOfDeviceError):
        wait_for(hangs, 0.0)
