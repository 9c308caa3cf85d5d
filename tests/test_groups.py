"""What ranks exchange, by threads of one process: as if one process had all rows."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from thread_group import Board, ThreadGroup, on_ranks
from torch import nn

from skgpstoch.data import row_sample
from skgpstoch.data.counter_rng import row_hashes
from skgpstoch.data.groups import (
    ALONE,
    WorkerLostError,
    average_gradients,
    current,
    using,
)
from skgpstoch.data.row_sample import chosen_rows, offsets

N_ROWS = 40
cuts = st.lists(st.integers(0, N_ROWS), min_size=2, max_size=2).map(sorted)
"""Where the rows of one rank end and those of the next begin; shares may be empty."""
quick = settings(max_examples=40, deadline=None)


def dealt(rows, cuts):
    """The rows of each rank."""
    return np.split(rows, cuts) if isinstance(rows, np.ndarray) else rows.tensor_split(cuts)


# ---- sums, maxima, broadcasts ------------------------------------------------------------------


@pytest.mark.slow
@given(cuts=cuts, seed=st.integers(0, 99))
@quick
def test_sums_over_ranks_are_sums_over_rows(cuts, seed):
    X = np.random.default_rng(seed).standard_normal((N_ROWS, 3))
    shares = dealt(torch.as_tensor(X), cuts)

    def statistics(group):
        mine = shares[group.rank]
        n, total, gram = torch.tensor(len(mine)), mine.sum(0), mine.T @ mine
        group.sum_(n, total, gram)
        return n, total, gram

    for n, total, gram in on_ranks(statistics):
        assert n == N_ROWS
        assert_allclose(total, X.sum(0), rtol=1e-12, atol=1e-12)
        assert_allclose(gram, X.T @ X, rtol=1e-12, atol=1e-12)


def test_tensors_of_any_dtype_and_shape_are_reduced_in_place():
    def reduce(group):
        parts = [
            torch.full((2, 3), group.rank + 0.5).T,  # not contiguous
            torch.tensor(group.rank, dtype=torch.float64),
            torch.tensor([group.rank == 2, False]),
            torch.tensor([2**60]),
            torch.empty(0),
            torch.ones(2, dtype=torch.float16, requires_grad=True),
        ]
        largest = [part.detach().clone() for part in parts]
        group.sum_(*parts)
        group.max_(*largest)
        return parts, largest

    board = []
    for sums, largest in on_ranks(lambda group: (reduce(group), board.append(group.board))[0]):
        assert_array_equal(sums[0], np.full((3, 2), 4.5))
        assert sums[1] == 3.0
        assert sums[2].tolist() == [True, False]
        assert sums[3].item() == 3 * 2**60
        assert sums[5].tolist() == [3.0, 3.0]
        assert largest[0].unique().item() == 2.5
        assert largest[1] == 2.0
        assert largest[2].tolist() == [True, False]
    assert board[0].n_exchanges == 4  # floats and integers, twice


def test_float32_alone_is_summed_in_float32_and_otherwise_in_float64():
    """In float32 1 + 2⁻²⁴ is 1, but 1 + 2⁻²³ is not."""
    small = 2.0**-24

    def reduce(group):
        short = torch.tensor([1.0, small, small][group.rank])
        beside = short.clone()
        group.sum_(short)
        group.sum_(beside, torch.zeros(1, dtype=torch.float64))
        return short.item(), beside.item()

    assert set(on_ranks(reduce)) == {(1.0, 1.0 + 2.0 * small)}


def test_broadcasts_keep_every_bit():
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-310], dtype=torch.float64)

    def broadcast(group):
        own = special if group.rank == 0 else torch.ones(4, dtype=torch.float64)
        own, flag = own.clone(), torch.tensor([group.rank == 0] * 3)
        group.broadcast_(flag, own)  # three bytes before numbers of eight
        return own, flag

    for own, flag in on_ranks(broadcast):
        assert_array_equal(own.view(torch.int64), special.view(torch.int64))
        assert flag.all()


# ---- gathering ---------------------------------------------------------------------------------

TABLES = {
    "float": np.arange(3.0 * N_ROWS).reshape(-1, 3),
    "int8": np.arange(N_ROWS, dtype=np.int8),
    "bool": np.arange(N_ROWS) % 3 == 0,
    "strings": np.array(["a" * (i % 7) for i in range(N_ROWS)]),
    "objects": np.array([None, "é", 1.5, 3, True] * (N_ROWS // 5), dtype=object),
    "dates": np.arange(N_ROWS).astype("datetime64[D]"),
    "float16": np.asfortranarray(np.ones((N_ROWS, 2), dtype=np.float16)),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@given(cuts=cuts)
@settings(max_examples=10, deadline=None)
def test_gathered_rows_are_the_table(table, cuts):
    for rows in on_ranks(lambda group: group.gather(dealt(table, cuts)[group.rank])):
        assert_array_equal(rows, table)
        assert rows.dtype == table.dtype


def test_a_share_without_rows_does_not_decide_the_dtype():
    def gather(group):
        mine = np.array(["b", "abc"]) if group.rank == 1 else np.empty((0, 5))
        return group.gather(mine), group.gather(np.empty((0, 2), dtype=np.int32))

    for labels, none in on_ranks(gather):
        assert labels.tolist() == ["b", "abc"]
        assert labels.dtype == np.dtype("<U3")
        assert none.shape == (0, 2)
        assert none.dtype == np.int32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bool, torch.bfloat16])
@given(cuts=cuts)
@settings(max_examples=5, deadline=None)
def test_gathered_tensors_are_the_table(dtype, cuts):
    table = (torch.arange(2.0 * N_ROWS).reshape(N_ROWS, 2) % 2).to(dtype)
    for rows in on_ranks(lambda group: group.gather_tensor(dealt(table, cuts)[group.rank])):
        assert rows.dtype == dtype
        assert torch.equal(rows, table)


def test_objects_that_cannot_be_sent_are_refused_everywhere():
    def gather(group):
        return group.gather(np.array([1, {}][group.rank == 1 :], dtype=object))

    for error in on_ranks(gather, expect=TypeError):
        assert str(error).startswith("rank 0: objects must be strings, numbers or None")
        assert str(error).endswith("got dict.")


# ---- decisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [[], [0], [2], [0, 1, 2]])
def test_a_flag_on_any_rank_is_one_on_all(where):
    assert on_ranks(lambda group: group.flag(group.rank in where)) == [bool(where)] * 3


class OddError(ValueError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OddError(1, 2), ValueError), (TypeError("t"), TypeError), (KeyError("k"), RuntimeError)],
    ids=["ValueError", "TypeError", "other"],
)
def test_an_error_on_one_rank_is_raised_on_all(error, kind):
    raised = on_ranks(
        lambda group: group.agree(error if group.rank == 1 else None), expect=(kind, type(error))
    )
    assert raised[1] is error
    for other in (raised[0], raised[2]):
        assert type(other) is kind
        assert str(other) == f"rank 1: {error}"


def test_without_errors_nothing_is_raised():
    assert on_ranks(lambda group: group.agree(None)) == [None] * 3


def test_a_lost_rank_is_not_told():
    lost = WorkerLostError("gone")
    group = ThreadGroup(Board(2), 0)  # nobody else is there
    with pytest.raises(WorkerLostError, match="gone"):
        group.agree(lost)


def test_what_differs_is_named():
    def check(group):
        group.check_same("version", "1")
        group.check_same("n_inducing", "100" if group.rank == 1 else "50")

    for error in on_ranks(check, expect=ValueError):
        assert "n_inducing must be the same on all ranks, got 50 on ranks [0, 2]; " in str(error)
        assert "100 on ranks [1]" in str(error)


# ---- gradients ---------------------------------------------------------------------------------


@pytest.mark.slow
@given(cuts=cuts, seed=st.integers(0, 99))
@quick
def test_gradients_are_those_of_one_process(cuts, seed):
    """Each rank counts its rows once for each rank, so that the mean counts all ranks' once."""
    rng = np.random.default_rng(seed)
    X = torch.as_tensor(rng.standard_normal((N_ROWS, 3)))
    start = torch.as_tensor(rng.standard_normal(3))

    def gradients(group, X):
        w, scale = nn.Parameter(start.clone()), nn.Parameter(torch.tensor(0.3))
        of_rows = (X @ w).square().sum() + (X * scale).sin().sum()
        loss = group.size * of_rows + w.square().sum() + scale.exp()
        loss.backward()
        value = loss.detach()
        average_gradients(group, [w, scale], value)
        return value, w.grad, scale.grad

    expected = gradients(ALONE, X)
    for found in on_ranks(lambda group: gradients(group, dealt(X, cuts)[group.rank])):
        for one, other in zip(found[:2], expected[:2], strict=True):
            assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        assert_allclose(found[2], expected[2], rtol=1e-5, atol=1e-5)  # of a float32


def test_parameters_that_no_rank_used_have_no_gradient():
    def average(group):
        parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        (parameters[0] * group.rank).sum().backward()
        if group.rank == 1:
            parameters[1].sum().backward()
        average_gradients(group, parameters)
        return [p.grad for p in parameters]

    for used, used_by_one, unused in on_ranks(average):
        assert used.tolist() == [1.0, 1.0]
        assert_allclose(used_by_one, 1.0 / 3.0)
        assert unused is None


# ---- rows that are the same however they are dealt ----------------------------------------------


@pytest.mark.slow
@given(cuts=cuts, seed=st.integers(0, 2**40), k=st.integers(0, N_ROWS + 5))
@quick
def test_chosen_rows_are_the_same_however_they_are_dealt(cuts, seed, k):
    table = torch.arange(N_ROWS) ** 2
    positions, places = chosen_rows(ALONE, seed, 0, N_ROWS, k)
    assert places.tolist() == list(range(min(k, N_ROWS)))
    assert_array_equal(positions, row_hashes(seed, np.arange(N_ROWS)).argsort()[:k])
    expected = table[positions]

    def choose(group):
        mine = dealt(table, cuts)[group.rank]
        first, total = offsets(group, len(mine))
        positions, places = chosen_rows(group, seed, first, len(mine), k)
        assert (places.diff() > 0).all()
        order = group.gather_tensor(places).argsort()
        return total, group.gather_tensor(mine[positions])[order]

    for total, chosen in on_ranks(choose):
        assert total == N_ROWS
        assert_array_equal(chosen, expected)


def test_hashes_are_taken_block_by_block(monkeypatch):
    expected = chosen_rows(ALONE, 5, 100, 50, 10)
    monkeypatch.setattr(row_sample, "HASHED_ROWS", 7)
    for one, other in zip(chosen_rows(ALONE, 5, 100, 50, 10), expected, strict=True):
        assert_array_equal(one, other)


def test_chosen_rows_are_spread_evenly_and_depend_on_the_seed():
    chosen = [chosen_rows(ALONE, seed, 0, 10_000, 1000)[0].double() for seed in range(3)]
    for rows in chosen:  # mean and deviation of a uniform distribution, at four standard errors
        assert abs(rows.mean() - 5000.0) < 4.0 * 10_000 / (12 * 1000) ** 0.5
    both = len(set(chosen[0].tolist()) & set(chosen[1].tolist()))
    assert abs(both - 100) < 4.0 * (100 * 0.9 * 0.9) ** 0.5


# ---- one process -------------------------------------------------------------------------------


def test_alone_nothing_is_done_or_copied():
    tensor, array, error = torch.ones(2), np.ones(2), KeyError("mine")
    ALONE.sum_(tensor)
    ALONE.max_(tensor)
    ALONE.broadcast_(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    assert ALONE.gather(array) is array
    assert ALONE.gather_tensor(tensor) is tensor
    assert ALONE.shares(tensor)[0] is tensor
    assert offsets(ALONE, 7) == (0, 7)
    assert ALONE.flag(True)
    assert not ALONE.flag(False)
    ALONE.check_same("theta", "1")
    ALONE.agree(None)
    with pytest.raises(KeyError, match="mine"):
        ALONE.agree(error)
    assert copy.deepcopy(ALONE) is ALONE
    assert pickle.loads(pickle.dumps(ALONE)) is ALONE


def test_the_present_group_is_that_of_the_block_and_of_its_thread():
    assert current() is ALONE
    assert on_ranks(lambda group: current() is group) == [True] * 3
    with using(ThreadGroup(Board(2), 1)) as group:
        assert current() is group
        with using(ALONE):
            assert current() is ALONE
        assert current() is group
    assert current() is ALONE


def test_lost_workers_can_be_pickled():
    error = pickle.loads(pickle.dumps(WorkerLostError("gone", rank=1, step=7)))
    assert (str(error), error.rank, error.step) == ("gone", 1, 7)
