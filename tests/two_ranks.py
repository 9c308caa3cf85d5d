"""What each of two processes does together: one launch for all cases, as a start takes seconds.

`run_two_ranks` starts them and returns what each rank returned, case by case. A case is a function
of the folder that both share. Add yours to CASES, before those that lose a rank.

Machines are busy, so no case depends on who is faster: ranks wait for what the others have done
(`tell`, `until`), and only a rank that waits in vain for one that comes later has a short timeout.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest.mock
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.exceptions import ConvergenceWarning

from skgpstoch import AutoGaussianProcessRegressor, NNGPRegressor, SVGPRegressor, on_interrupt
from skgpstoch.data import SequenceRows, groups, row_sample
from skgpstoch.data.groups import average_gradients, current, doing
from skgpstoch.data.row_sample import chosen_rows, offsets
from skgpstoch.distributed import WorkerLostError, process_group
from skgpstoch.estimators import first_rank
from skgpstoch.methods.automatic import automatic_regressor
from skgpstoch.training import checkpoint
from skgpstoch.training.loop import Trainer

SIZE = 2
SECONDS = 300.0
"""Until processes that hang are ended."""

TIMEOUT = 60.0
"""Of groups, also those that lose a rank: the others are to learn of it sooner."""

SHORT = 4.0
"""Of a rank that waits in vain."""

SHARES = [slice(0, 37), slice(37, 50)]


def table():
    """50 rows, of which rank 0 has 37."""
    return torch.linspace(-1.0, 2.0, 100, dtype=torch.float64).reshape(50, 2)


def rank():
    return int(os.environ["RANK"])


def group_at(folder, name, timeout=TIMEOUT):
    return process_group(init=f"file://{folder}/{name}", timeout=timeout)


def tell(folder, event):
    """Say that something has happened to this rank."""
    (folder / f"{event}-{rank()}").touch()


def until(folder, event, of):
    """Wait until something has happened to a rank."""
    end = time.monotonic() + SECONDS
    while not (folder / f"{event}-{of}").exists():
        assert time.monotonic() < end, f"rank {of} does not come to {event}"
        time.sleep(0.01)


def exchanges(folder):
    """All operations once, and what is left behind."""
    before = torch.get_num_threads(), sys.excepthook
    X = table()
    with group_at(folder, "exchanges") as group:
        assert current() is group
        mine = X[SHARES[group.rank]]
        gram, n, largest = mine.T @ mine, torch.tensor(len(mine)), mine.max().float()
        group.sum_(gram, n)
        group.max_(largest)
        first = mine[0].clone()
        group.broadcast_(first)
        names = np.array(["even", "odd"] * 25, dtype=object)[SHARES[group.rank]]
        empty = np.arange(3.0) if group.rank else np.empty(0)
        group.agree(None)
        group.check_same("version", "1")
        start, total = offsets(group, len(mine))
        positions, places = chosen_rows(group, 3, start, len(mine), 10)
        w = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        (group.size * (mine @ w).square().sum() + w.exp().sum()).backward()
        average_gradients(group, [w])
        found = {
            "place": (group.rank, group.size, start, total),
            "gram": gram,
            "n": n.item(),
            "largest": largest.item(),
            "first": first,
            "names": group.gather(names).tolist(),
            "empty": group.gather(empty).tolist(),
            "flags": (group.flag(group.rank == 1), group.flag(False)),
            "chosen": (positions, places),
            "gradient": w.grad,
        }
    assert not dist.is_initialized()
    assert (torch.get_num_threads(), sys.excepthook) == before
    return found


def errors(folder):
    """What all ranks raise; and groups at one file, or one port, one after the other."""
    messages = []
    for _ in range(25):
        with group_at(folder, "errors"):
            pass
        with process_group(timeout=TIMEOUT):  # at env://
            pass
    for wrong in (
        lambda group: group.agree(KeyError("k") if group.rank == 1 else None),
        lambda group: group.check_same("theta", str(group.rank)),
        lambda group: group.gather(np.array([set()] * group.rank, dtype=object)),
        lambda group: process_group(init="tcp://localhost:1", rank=0, size=2).__enter__(),
    ):
        with group_at(folder, "errors") as group:
            try:
                wrong(group)
            except (RuntimeError, ValueError, TypeError, KeyError) as error:
                messages.append(f"{type(error).__name__}: {error}")
    try:
        with process_group("nccl", init=f"file://{folder}/nccl", timeout=TIMEOUT):
            pass
    except ValueError as error:
        messages.append(f"{type(error).__name__}: {error}")
    return messages


def joined(folder):
    """A group beside one that is somebody else's, which goes on."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/theirs", rank=rank(), world_size=SIZE
    )
    try:
        with process_group(timeout=TIMEOUT) as group:
            ours = torch.tensor(1.0 + group.rank)
            group.sum_(ours)
        theirs = torch.tensor(1.0 + rank())
        dist.all_reduce(theirs)
        try:
            with process_group(init=f"file://{folder}/x", rank=rank(), size=SIZE):
                pass
        except ValueError as error:
            lent = str(error)
        return ours.item(), theirs.item(), len(dist.distributed_c10d._world.pg_map), lent
    finally:
        dist.destroy_process_group()


def as_between_devices(folder):
    """What tensors on accelerators go through, if the host were one; rank 1 is late at last."""
    elsewhere = unittest.mock.patch.object(groups, "is_host", return_value=False)
    with group_at(folder, "devices"), elsewhere:
        ours = dist.new_group(backend="gloo")
        group = groups.TorchGroup(dist.group.WORLD, TIMEOUT, ours)
        total, mine = torch.tensor(1.0 + group.rank), torch.tensor([2.0 * group.rank])
        group.sum_(total)
        group.broadcast_(both := torch.tensor(5 + group.rank))
        found = total.item(), both.item(), group.gather_tensor(mine).tolist()
        if group.rank == 1:
            until(folder, "devices", of=0)
            group.sum_(total)
            return found, ""
        try:
            groups.TorchGroup(dist.group.WORLD, 0.3, ours).sum_(total)
        except WorkerLostError as error:
            return found, str(error)
        finally:
            tell(folder, "devices")


def lost(folder, name, do_not_come, timeout=TIMEOUT):
    """How rank 0 learns that rank 1 does not come to an exchange, and again."""
    tell(folder, name)
    until(folder, name, of=1 - rank())  # its start, which may take longer than the timeout
    start = time.monotonic()
    try:
        with group_at(folder, name, timeout) as group, doing("the closing pass"):
            group.sum_(torch.ones(3))
            if group.rank == 1:
                do_not_come()
            for _ in range(2):
                try:
                    group.sum_(torch.ones(3))
                except WorkerLostError as error:
                    first = error
            raise first
    except WorkerLostError as error:
        seconds = time.monotonic() - start
        return str(error), error.rank, error.step, seconds, dist.is_initialized()


def slow(folder):
    """Rank 1 comes when rank 0 waits no longer."""
    try:
        wait = functools.partial(until, folder, "waited", of=0)
        return lost(folder, "slow", wait, TIMEOUT if rank() else SHORT)
    finally:
        tell(folder, "waited")


def raising(folder):
    """Rank 1 has an error of its own."""

    def fail():
        raise WorkerLostError("an error of rank 1's own")

    return lost(folder, "raising", fail)


def automatic(folder):
    """What the default predicts: fitted to numbers and levels, in memory and in three chunks."""
    rng = np.random.default_rng(0)
    x, town = rng.normal(size=120), rng.integers(12, size=120).astype(str)
    X, y = np.stack([x.astype(object), town], axis=1), np.sin(x) + 0.1 * rng.normal(size=120)
    small = functools.partial(automatic_regressor.of_networks, max_iter=2, n_estimators=2)
    with contextlib.ExitStack() as stack:
        for name in ("SAMPLE_ROWS", "MERGED_ROWS", "GATHERED_ROWS"):
            stack.enter_context(unittest.mock.patch.object(row_sample, name, 50))
        stack.enter_context(unittest.mock.patch.object(automatic_regressor, "of_networks", small))
        model = AutoGaussianProcessRegressor(random_state=0)
        stack.enter_context(unittest.mock.patch.object(type(model), "_most_raced", 50))
        group = stack.enter_context(group_at(folder, "automatic"))
        mine = slice(0, 40) if group.rank else slice(40, 120)
        in_memory = model.fit(X[mine], y[mine]).predict(X[:9])
        stored = model.fit(SequenceRows(X, y, chunk_rows=40)).predict(X[:9])
        return np.stack([in_memory, stored])


# ---- fits ----------------------------------------------------------------------------------------

N = 600
CUTS = [0, 250, N]
"""Rows of which rank 0 has the first."""

SAMPLE = 200
"""Of rows, that is all of few."""


def rows():
    """Rows of two columns, and y."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (N, 2))
    return X, np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.standard_normal(N)


def model(**params):
    """What is fitted to them."""
    known = {"n_inducing": 15, "batch_size": 100, "solver": "natural", "dtype": "float64"}
    return SVGPRegressor(**{**known, "max_iter": 8, "random_state": 0, **params})


def neighbours():
    """What conditions each row on its nearest ones, whichever rank has them."""
    return NNGPRegressor(max_iter=3, n_neighbors=8, random_state=0)


def fit_mine(group, estimator, n_rows=N):
    """Fit to this rank's rows; of few, to the first ones."""
    X, y = rows()
    mine = slice(*np.minimum(CUTS[group.rank : group.rank + 2], n_rows))
    return estimator.fit(X[mine], y[mine])


@contextlib.contextmanager
def few_are_many(gathered=0):
    """Take few rows for many, of which a sample decides; and write every checkpoint."""
    with contextlib.ExitStack() as stack:
        for place, name, value in (
            (row_sample, "SAMPLE_ROWS", SAMPLE),
            (row_sample, "MERGED_ROWS", SAMPLE),
            (row_sample, "GATHERED_ROWS", gathered),
            (checkpoint, "CHECKPOINT_SECONDS", 0.0),
        ):
            stack.enter_context(unittest.mock.patch.object(place, name, value))
        yield


@contextlib.contextmanager
def at_step(number, act, rank):
    """Let a rank do something in the middle of training."""
    train_step = Trainer.train_step

    def acting(trainer, X, rows):
        if trainer.step == number and trainer.group.rank == rank:
            act()
        return train_step(trainer, X, rows)

    with unittest.mock.patch.object(Trainer, "train_step", acting):
        yield


def press():
    """Ctrl-C, of this process."""
    os.kill(os.getpid(), signal.SIGINT)


def fits(folder):
    """A fit together, one of rank 0's for all, one with layers, and one with nearest neighbours."""
    X, _ = rows()
    with group_at(folder, "fits") as group, few_are_many():
        together = fit_mine(group, model())
        near = fit_mine(group, neighbours())
    with group_at(folder, "few") as group, few_are_many(N):
        few = fit_mine(group, model(), 300)
    torch.manual_seed(0)
    layers = torch.nn.Linear(2, 3), torch.nn.Dropout(0.1), torch.nn.Tanh()
    with group_at(folder, "layers") as group, few_are_many():
        network = torch.nn.Sequential(*layers)
        mapped = fit_mine(group, model(feature_map=network, solver="adam"))
        try:
            network = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(3))
            fit_mine(group, model(feature_map=network))
        except ValueError as error:
            refused = str(error)
    return refused, [each.predict(X) for each in (together, few, mapped, near)]


def told_or_press(folder):
    """What tells a waiting rank whether rank 0's fit is over; it presses once rank 0 trains."""
    told, is_pressed = first_rank.told, []

    def press_once(group):
        if not is_pressed and (folder / "trains-0").exists():
            is_pressed.append(True)
            press()
        return told(group)

    return press_once


def interrupted(folder):
    """SIGINT comes to rank 1, while all train or rank 0 alone; the second one ends it."""
    found, handler = [], signal.getsignal(signal.SIGINT)
    warnings.simplefilter("ignore", ConvergenceWarning)
    at_ninth = at_step(9, press, rank=1)
    with group_at(folder, "together") as group, few_are_many(), on_interrupt("keep"), at_ninth:
        found.append(fit_mine(group, model(max_iter=50)).n_iter_)
    trains = at_step(20, lambda: tell(folder, "trains"), rank=0)
    presses = unittest.mock.patch.object(first_rank, "told", told_or_press(folder))
    act = presses if rank() else trains
    with group_at(folder, "alone") as group, few_are_many(N), on_interrupt("keep"), act:
        found.append(fit_mine(group, model(max_iter=100_000), 300).n_iter_)
    estimator, seconds = model(max_iter=100_000), time.monotonic()
    try:
        at_ninth, raises = at_step(9, press, rank=1), on_interrupt("raise")
        with group_at(folder, "again") as group, few_are_many(), raises, at_ninth:
            fit_mine(group, estimator)
    except (KeyboardInterrupt, WorkerLostError) as error:
        found.append(type(error).__name__)
    found += [vars(estimator) == vars(model(max_iter=100_000)), time.monotonic() - seconds]
    return [*found, signal.getsignal(signal.SIGINT) is handler]


def killed_while_rank_0_fits(folder):
    """Rank 1 comes to its end while rank 0 fits for all."""
    estimator, start = model(max_iter=100_000), time.monotonic()
    try:
        with group_at(folder, "waiting") as group, few_are_many(N):
            if group.rank:
                with unittest.mock.patch.object(first_rank, "wait", leave):
                    fit_mine(group, estimator, 300)
            fit_mine(group, estimator, 300)
    except WorkerLostError as error:
        return (
            str(error),
            vars(estimator) == vars(model(max_iter=100_000)),
            time.monotonic() - start,
        )
    except EndOfRankError:
        return ()


class EndOfRankError(RuntimeError):
    """Ends a rank."""


def leave(group):
    """Do not wait."""
    raise EndOfRankError


def killed(folder):
    """Rank 1 is killed in the fourth epoch of a fit; nothing can come after it."""
    estimator, start = model(checkpoint_dir=folder / "saved"), time.monotonic()
    try:
        dies = at_step(20, lambda: os.kill(os.getpid(), signal.SIGKILL), rank=1)
        with group_at(folder, "killed") as group, few_are_many(), dies:
            fit_mine(group, estimator)
    except WorkerLostError as error:
        return str(error), hasattr(estimator, "posterior_"), time.monotonic() - start


CASES = [
    exchanges,
    errors,
    joined,
    as_between_devices,
    automatic,
    slow,
    raising,
    fits,
    interrupted,
    killed_while_rank_0_fits,
    killed,
]


def run_two_ranks(folder: Path) -> list[dict]:
    """Return what each case returned, by its name, of both ranks; of the killed one, until then."""
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    known = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(SIZE)}
    known |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    outputs = [folder / f"output{k}" for k in range(SIZE)]
    processes = []
    for k, output in enumerate(outputs):
        with output.open("w") as file:
            command = [sys.executable, "-W", "error", __file__, str(folder)]
            known["RANK"] = str(k)
            processes.append(subprocess.Popen(command, env=known, stdout=file, stderr=file))
    end = time.monotonic() + SECONDS
    try:
        codes = [process.wait(max(end - time.monotonic(), 0.0)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    text = "\n".join(output.read_text() for output in outputs)
    assert codes == [0, -signal.SIGKILL], f"{codes}\n{text}"
    return [torch.load(folder / f"found{k}.pt", weights_only=False) for k in range(SIZE)]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {}
    for case in CASES:
        threads = threading.active_count()
        found[case.__name__] = case(folder)
        assert threading.active_count() == threads
        torch.save(found, folder / f"found{rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
