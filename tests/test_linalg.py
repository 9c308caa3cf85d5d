"""Factorisations against dense algebra; the jitter ladder; blocks."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skgpstoch.data.devices import BLOCK_ROWS, map_blocks
from skgpstoch.maths.linalg import (
    JITTERS,
    NotPositiveDefiniteError,
    add_diagonal,
    cholesky,
    log_det,
    mirror_,
    symmetric_product,
    symmetric_product_of_lower,
    times_lower,
    times_lower_transposed,
    to_diagonal,
    tri_solve,
    update_inverse_,
)


def random_spd(*shape, seed=0):
    root = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(shape[-1], dtype=torch.float64)


@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (3, 5, 5), (2, 3, 4, 4)])
def test_cholesky_without_jitter_where_none_is_needed(shape):
    A = random_spd(*shape)
    L = cholesky(A)
    assert_close(L @ L.mT, A, rtol=1e-13, atol=1e-13)
    assert torch.equal(L, L.tril())
    assert_close(log_det(L), torch.linalg.slogdet(A)[1], rtol=1e-12, atol=1e-12)
    B = torch.randn(*shape[:-1], 7, generator=torch.Generator().manual_seed(1)).double()
    assert_close(tri_solve(L, B), torch.linalg.inv(L) @ B, rtol=1e-10, atol=1e-10)
    solved = tri_solve(L, B, transpose=True)
    assert_close(solved, torch.linalg.inv(L).mT @ B, rtol=1e-10, atol=1e-10)


def test_cholesky_is_float64_and_leaves_its_argument_alone():
    A = torch.ones(4, 4)
    L = cholesky(A)
    assert L.dtype == torch.float64
    assert torch.equal(A, torch.ones(4, 4))


@pytest.mark.parametrize("rung", range(1, len(JITTERS)))
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_cholesky_takes_the_least_jitter_that_helps(rung, scale):
    """Of a matrix whose least eigenvalue needs just that rung, at any scale."""
    Q = torch.linalg.qr(random_spd(6, 6))[0]
    values = torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0, 0.0], dtype=torch.float64)
    mean = values.mean() / (1 + JITTERS[rung] / 12)
    values[-1] = -0.5 * JITTERS[rung] * mean
    A = scale * Q @ values.diag() @ Q.mT
    A = 0.5 * (A + A.mT)
    L = cholesky(A)
    added = (L @ L.mT - A).diagonal() / A.diagonal().mean()
    assert_close(added, torch.full((6,), JITTERS[rung]).double(), rtol=1e-3, atol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_cholesky_says_what_is_not_finite(bad):
    A = torch.eye(3)
    A[1, 1] = bad
    with pytest.raises(NotPositiveDefiniteError, match=r"kernel of test.*NaN or infinite"):
        cholesky(A, "kernel of test")


def test_cholesky_says_why_a_matrix_may_be_indefinite():
    with pytest.raises(NotPositiveDefiniteError, match=r"shape \(2, 2\).*StandardScaler") as info:
        cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert isinstance(info.value, ValueError)


def test_add_diagonal_broadcasts_over_the_batch():
    A, values = torch.zeros(2, 3, 4, 4), torch.arange(6.0).reshape(2, 3)
    B = add_diagonal(A, values)
    assert torch.equal(B, values[..., None, None] * torch.eye(4))
    assert not A.any()
    assert torch.equal(add_diagonal(torch.ones(2, 2), 1.0), torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert torch.equal(add_diagonal(torch.zeros(1, 2, 2), torch.tensor(3.0))[0], 3 * torch.eye(2))


@pytest.mark.parametrize(
    ("n_rows", "size"), [(0, 4), (1, 4), (4, 4), (9, 4), (BLOCK_ROWS + 1, None)]
)
def test_map_blocks_covers_every_row_once(n_rows, size):
    blocks = []
    map_blocks(blocks.append, n_rows, *([] if size is None else [size]))
    rows = [i for block in blocks for i in range(block.start, block.stop)]
    assert rows == list(range(n_rows))
    assert all(block.stop - block.start <= (size or BLOCK_ROWS) for block in blocks)


def test_map_blocks_shrinks_where_memory_runs_out():
    rows, most = [], 3

    def fn(block):
        if block.stop - block.start > most:
            raise torch.OutOfMemoryError
        rows.extend(range(block.start, block.stop))

    map_blocks(fn, 50, 16)
    assert rows == list(range(50))
    most = 0
    with pytest.raises(MemoryError, match="single row"):
        map_blocks(fn, 50, 16)


def test_an_accelerator_is_asked_once_for_a_factor(pretend):
    A = random_spd(2, 5, 5).to("pretend")
    pretend.clear()
    L = cholesky(A)
    assert pretend.n_waits == 1
    assert_close(L.cpu(), cholesky(A.cpu()), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_infinite_entries_that_have_a_factor_are_found(bad):
    """LAPACK looks at the lower triangle alone, and takes an infinite diagonal."""
    A = torch.eye(3).double()
    A[0, 2] = bad
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinite"):
        cholesky(A)
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinite"):
        cholesky(torch.diag(torch.tensor([torch.inf, 1.0])))


@pytest.mark.parametrize("n", [1, 129, 600])
def test_products_by_blocks_up_to_the_diagonal(n):
    A, L = torch.randn(2, 20, n).double(), torch.randn(2, n, n).double().tril()
    G = A.mT @ A
    assert_close(symmetric_product(A, A), G)
    assert_close(symmetric_product_of_lower(L, G @ L), L.mT @ G @ L)
    assert_close(times_lower(A[0], L[0]), A[0] @ L[0])
    assert_close(times_lower_transposed(A[0], L[0]), A[0] @ L[0].mT)
    B = torch.randn(2, 20, n).double()  # of whose product the lower triangle is all that counts
    lower = (A.mT @ B).tril()
    assert_close(symmetric_product(A, B), lower + lower.tril(-1).mT)


def test_the_lower_triangle_is_in_five_eighths_of_a_matrix():
    A, B = random_spd(600, 600), torch.full((600, 600), torch.nan, dtype=torch.float64)
    for ours, whole in zip(to_diagonal(B), to_diagonal(A), strict=True):
        ours.copy_(whole)
    assert sum(view.numel() for view in to_diagonal(A)) == 5 * A.numel() // 8
    assert torch.equal(mirror_(B), A)


def test_an_inverse_is_updated_in_place():
    F, Z = random_spd(2, 3, 7, 7), random_spd(2, 1, 7, 7, seed=1)[:, :, :4]
    share, kept = torch.tensor([0.3, 20.0], dtype=F.dtype)[:, None, None, None], 0.9
    inverse = torch.linalg.inv(F)
    found = update_inverse_(inverse, Z, share, kept)
    exact = torch.linalg.inv(kept * F + share * Z.mT @ Z)
    assert_close(inverse, exact, rtol=1e-9, atol=1e-9)
    assert_close(found, Z @ exact, rtol=1e-9, atol=1e-9)
