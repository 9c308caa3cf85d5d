"""What a step takes with 8 and 64 processes, from what its parts take here, and the batch rule.

A rank's share of a step of ``SVGPRegressor(solver="collapsed")``, in float32 with 20 inputs, is
measured in a group whose other ranks have no rows and are never waited for. Of M inducing points
and b rows on a rank it takes a·b + c seconds: a is fitted to several b, c is the work that every
rank repeats. To these come the exchanges of a step, of the sums and of gradients. With a latency α
and a bandwidth β, an exchange of B bytes among R ranks takes

    2(R − 1)(α + B/(Rβ))        around a ring, as gloo does,
    2⌈log₂R⌉α + 2B(R − 1)/(Rβ)  along a tree, as NCCL does.

α and β of "gloo, here" are measured between two processes; those of the networks are assumed, as
they are stated below. Seconds are of the processor, one thread; nothing waits for a slow rank, so
that speeds are the most there can be. A GPU's own a and c are others: "NVLink" says only that the
network is not in the way.

``speedup`` is to one process with the same batch. ``half`` is the number of rows on each rank of
which the work on rows takes half of the time: the batch rule. The part "check" compares steps of
two processes (bench_two_processes.py) with what is simulated for them, where ``seconds`` are of the
clock and mean something on a quiet machine alone.

    python benchmarks/bench_simulated_ranks.py
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from _common import Row, parser, set_threads, write_csv
from bench_two_processes import BATCH_SIZE, INPUTS, N_INDUCING, launch, made_up
from torch import Tensor

from skgpstoch import SVGPRegressor
from skgpstoch.data.groups import ONE, Group, using
from skgpstoch.maths.linalg import to_diagonal
from skgpstoch.training.loop import Trainer

POINTS = (256, 512, 1024)
ROWS_OF_RANK = (64, 256, 1024, 2048)
RANKS = (1, 2, 8, 64)
BATCHES = (512, 2_048, 16_384, 131_072)
N_ROWS = 20_000
MEGABYTES = (0.000_008, 2.0)  # that are exchanged to find α and β


class Network(NamedTuple):
    """Latency in seconds, bandwidth in bytes a second, and how an exchange goes."""

    latency: float
    bandwidth: float
    is_ring: bool = True

    def seconds(self, n_ranks: int, n_bytes: float) -> float:
        """What a sum over ranks takes."""
        R, share = n_ranks, n_bytes * (n_ranks - 1) / n_ranks / self.bandwidth
        n_hops = R - 1 if self.is_ring else math.ceil(math.log2(R))
        return 2.0 * (n_hops * self.latency + share)


NETWORKS = {
    "10 GbE": Network(50e-6, 1.25e9),
    "25 GbE": Network(30e-6, 3.1e9),
    "NVLink": Network(5e-6, 2e11, is_ring=False),
}


# ---- a rank's own share --------------------------------------------------------------------------
class WithoutRows(Group):
    """Rank 0 of a group whose other ranks have no rows, and are never waited for."""

    rank, size = 0, 2

    def _combine(self, flat: Tensor, operation: str) -> None:
        """Add nothing."""

    def _spread(self, flat: Tensor) -> None:
        """Leave it: it is rank 0's."""

    def _collect(self, flat: Tensor) -> list[Tensor]:
        return [flat, flat[:0]]


class ReadyError(Exception):
    """A fit is about to train; it has got the trainer."""


def trainer_of(n_inducing: int, n_rows: int, seed: int) -> Trainer:
    """Return what a fit trains by, with so many rows in a minibatch."""

    def ready(trainer: Trainer) -> None:
        raise ReadyError(trainer)

    model = SVGPRegressor(
        n_inducing=n_inducing,
        batch_size=n_rows,
        solver="collapsed",
        inducing_points="random",
        random_state=seed,
    )
    try:
        with using(ONE), unittest.mock.patch.object(Trainer, "fit_loop", ready):
            model.fit(*made_up(N_ROWS, 0, 1))
    except ReadyError as got:
        trainer: Trainer = got.args[0]
    X, rows = trainer.source.own  # of a table on ranks
    whole = dataclasses.replace(rows.whole, group=WithoutRows())
    own = X, dataclasses.replace(rows, whole=whole)
    trainer.source = dataclasses.replace(trainer.source, own=own)
    trainer.objective.train()
    return trainer


def step_seconds(trainer: Trainer) -> Iterator[float]:
    """Yield what each step takes, for ever; minibatches are chosen beforehand."""
    while True:
        for X, rows in trainer.source.epoch(0, trainer.n_batches, trainer.generator):
            start = time.process_time()
            trainer.train_step(X, rows)
            yield time.process_time() - start


def local_costs(args: argparse.Namespace) -> Iterator[Row]:
    """Yield a and c for each M, and how far measurements are from a·b + c; sizes take turns."""
    for M in POINTS:
        steps = {b: step_seconds(trainer_of(M, b, args.seed)) for b in ROWS_OF_RANK}
        times: dict[int, list[float]] = {b: [] for b in steps}
        for repeat in range(args.repetitions + 1):
            for b, seconds in steps.items():
                found = [next(seconds) for _ in range(args.steps)]
                times[b] += found if repeat else []
        b, t = np.array(ROWS_OF_RANK, float), np.array([np.median(v) for v in times.values()])
        design = np.stack([b, np.ones_like(b)], 1) / t[:, None]  # errors are relative
        a, c = np.linalg.lstsq(design, np.ones_like(t), rcond=None)[0]
        error = np.abs(design @ [a, c] - 1.0).max()
        yield {"part": "local", "n_inducing": M, "a": a, "c": c, "fit_error": error}


def exchanged(M: int) -> tuple[float, float]:
    """Return the bytes of the sums, in float32, and of gradients, in float64, of one output."""
    gram = sum(each.numel() for each in to_diagonal(torch.empty(M, M)))
    return 4.0 * (gram + M), 8.0 * (M * INPUTS + 10)


# ---- exchanges here ------------------------------------------------------------------------------
def exchange(args: argparse.Namespace) -> None:
    """As one of two processes: print seconds of exchanges of some megabytes."""
    dist.init_process_group("gloo", init_method=f"file://{args.meet}", rank=args.rank, world_size=2)
    found = []
    for size in MEGABYTES:
        flat, seconds = torch.ones(max(1, round(1e6 * size / 4))), []
        for _ in range(200):
            start = time.perf_counter()
            dist.all_reduce(flat)
            seconds.append(time.perf_counter() - start)
            flat.fill_(1.0)
        found.append(statistics.quantiles(seconds, n=4)[0])  # others' jobs make the rest longer
    dist.destroy_process_group()
    print(json.dumps(found))


def network_here() -> Network:
    """Return α and β of two processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--meet", str(Path(folder) / "meet"), "--rank"]
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        outputs = [process.communicate()[0] for process in processes]
    short, long = json.loads(outputs[0].splitlines()[-1])
    return Network(short / 2.0, 1e6 * MEGABYTES[1] / (long - short))


# ---- simulated -----------------------------------------------------------------------------------
def simulated(local: Row, name: str, network: Network) -> Iterator[Row]:
    """Yield steps of a number of points, for numbers of ranks and batches."""
    a, c, M = local["a"], local["c"], local["n_inducing"]
    for R in RANKS:
        x = sum(network.seconds(R, n_bytes) for n_bytes in exchanged(M))
        for B in BATCHES:
            step = a * B / R + c + x
            yield {
                **{"part": "simulated", "n_inducing": M, "network": name, "ranks": R},
                **{"batch_size": B, "step": step, "exchange": x, "half": (c + x) / a},
                "speedup": (a * B + c) / step,
            }


def check(args: argparse.Namespace, local: Row, network: Network) -> Iterator[Row]:
    """Yield measured steps of one and two processes beside simulated ones; they take turns."""
    found: dict[int, list[list[float]]] = {1: [], 2: []}
    for _ in range(args.repetitions):
        for size, steps in found.items():
            steps += launch(args, size)["step"]
    for R, steps in found.items():
        seconds, cpu = np.median(steps, 0).tolist()
        own = local["a"] * BATCH_SIZE / R + local["c"]
        x = sum(network.seconds(R, n_bytes) for n_bytes in exchanged(local["n_inducing"]))
        yield {
            **{"part": "check", "n_inducing": local["n_inducing"], "ranks": R},
            **{"batch_size": BATCH_SIZE, "step": own + x, "seconds": seconds, "cpu": cpu},
            **{"error": (own + x) / seconds - 1.0, "cpu_error": own / cpu - 1.0},
        }


def main(args: argparse.Namespace) -> None:
    """Measure, simulate, and write all of it."""
    load = os.getloadavg()[0]
    here = network_here()
    networks = {"gloo, here": here, **NETWORKS}
    rows: list[Row] = [
        {"part": "network", "network": name, "latency": net.latency, "bandwidth": net.bandwidth}
        for name, net in networks.items()
    ]
    local = list(local_costs(args))
    rows += local
    for of_points in local:
        for name, network in networks.items():
            rows += simulated(of_points, name, network)
        if of_points["n_inducing"] == N_INDUCING:
            rows += check(args, of_points, here)
    for row in rows:
        if row["part"] != "simulated" or row["batch_size"] / row["ranks"] in (256, 2048):
            print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()})
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = [{key: row.get(key, "") for key in keys} for row in rows]
    write_csv(args.output, table, seed=args.seed, load=max(load, os.getloadavg()[0]))


if __name__ == "__main__":
    options = parser(__doc__, "benchmarks/results/simulated_ranks.csv")
    options.add_argument("--steps", type=int, default=8, help="in a turn")
    options.add_argument("--repetitions", type=int, default=3, help="turns")
    options.add_argument("--rows", type=int, default=60_000, help="of the check")
    options.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options.add_argument("--meet", help=argparse.SUPPRESS)
    options.set_defaults(solver="collapsed")
    arguments = options.parse_args()
    set_threads(arguments.threads)
    (main if arguments.rank is None else exchange)(arguments)
