"""Claim: a killed rank or worker is noticed, nothing hangs, and what resumes is the right model.

Half of the kills are of one of two processes in a group (gloo), some of them started by torchrun,
which starts both again; half are of a worker of a Dask cluster of two or three processes. A kill is
SIGKILL, or os._exit, of a process by itself, at a random moment of one of the phases of a fit:
while ranks meet, read rows and choose samples, train, close, and leave (on Dask also before there
are ranks). Phases take turns, as some are a hundred times as long as others; the moment is drawn
from the time that the phase takes in a fit that nobody disturbs.

The survivor of two processes has to raise WorkerLostError within its timeout and five seconds, with
its estimator as it was (or to have the whole model, if it needs nothing more of the other). Then
both start again, or one alone, with the same folder for checkpoints. On Dask the fit has to go on
by itself, or, with max_restarts=0, to raise WorkerLostError. `difference` is that of the mean log
predictive density of 1,000 other rows, in nats, from that of the undisturbed fit; `is_bitwise`
whether means, too, are the same. `left` names what is left behind: checkpoints of a fit that has
ended; tasks, variables or locks of the scheduler; threads or a process group of a worker. What
takes longer than `--limit` is a hang, and is killed.

SCGD is fitted in float64: in float32, Adam amplifies rounding, so that one rank and two are .0076
nats apart, killed or not (rows of "SCGD float32" in the results).

    python benchmarks/bench_kills.py

adds a row for each kill, and exits with 1 if one has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import Array, Row, append_csv, environment, parser, set_threads

from skgpstoch import SCGDGaussianProcessRegressor, SVGPRegressor
from skgpstoch import distributed as of_ranks
from skgpstoch.data.groups import WorkerLostError, current
from skgpstoch.estimators import base
from skgpstoch.training.loop import Trainer

TIMEOUT = 15.0
NOTICE = 5.0  # seconds more that survivors may take
NATS = 1e-3  # that a resumed fit may be away from the undisturbed one

MODELS: dict[str, Callable[[], Any]] = {
    "SVGP": lambda: SVGPRegressor(
        n_inducing=64, batch_size=512, max_iter=8, solver="collapsed", random_state=0
    ),
    "SCGD": lambda: SCGDGaussianProcessRegressor(max_iter=6, dtype="float64", random_state=0),
    "SVGP of few rows": lambda: SVGPRegressor(
        n_inducing=64, batch_size=512, max_iter=20, solver="collapsed", random_state=0
    ),
}
ROWS = {"SVGP": 60_000, "SCGD": 30_000, "SVGP of few rows": 9_000}
"""Up to 10,000 the first rank fits for all."""

PHASES = ("meeting", "reading", "training", "closing", "leaving")


def table(n_rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Return rows of four columns, and a smooth function of them with noise."""
    rng = np.random.default_rng([1, seed])
    X = rng.uniform(-2.0, 2.0, (n_rows, 4))
    return X, np.sin(2.0 * X[:, 0]) * X[:, 1] + np.tanh(X[:, 2]) + 0.2 * rng.standard_normal(n_rows)


def described(model: Any) -> Array:
    """Return means of other rows, and last their mean log predictive density."""
    X, y = table(1_000, 1)
    return np.append(model.predict(X), model.log_predictive_density(X, y).mean())


# ---- phases --------------------------------------------------------------------------------------


class Phases:
    """Tells a file when this process enters a phase, and kills it where another file says so.

    Parameters
    ----------
    folder : Path
        The file ``order.json`` in it says in which phase which rank dies, after how many seconds
        and by what; who has read it removes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def enter(self, phase: str, rank: int) -> None:
        """Begin a phase."""
        with (self.folder / "phases.txt").open("a") as file:
            file.write(f"{rank} {phase} {time.monotonic()}\n")
        order = self.folder / "order.json"
        with contextlib.suppress(FileNotFoundError):
            said = json.loads(order.read_text())
            if (said["phase"], said["rank"]) == (phase, rank):
                order.unlink()
                threading.Thread(target=self.die, args=(said,), daemon=True).start()

    def die(self, said: dict[str, Any]) -> None:
        """End this process in a moment."""
        time.sleep(said["delay"])
        (self.folder / "killed.txt").write_text(str(time.monotonic()))
        if said["how"] == "exit":
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Call `enter` from now on."""
        start, fit, loop = of_ranks.start, base.fit_in_group, Trainer.fit_loop

        def meeting(backend: str, init: Any, rank: int | None, *args: Any) -> Any:
            self.enter("meeting", int(os.environ["RANK"]) if rank is None else rank)
            return start(backend, init, rank, *args)

        def reading(estimator: Any, group: Any, *args: Any) -> None:
            self.enter("reading", group.rank)
            fit(estimator, group, *args)
            self.enter("leaving", group.rank)

        def training(trainer: Trainer) -> None:
            rank = current().rank
            self.enter("training", rank)
            loop(trainer)
            self.enter("closing", rank)

        for place, name, value in (
            (of_ranks, "start", meeting),
            (base, "fit_in_group", reading),
            (Trainer, "fit_loop", training),
        ):
            unittest.mock.patch.object(place, name, value).start()

    def times(self) -> dict[tuple[int, str], tuple[float, float]]:
        """Return when each rank began each phase, and how long it took; forget them."""
        file = self.folder / "phases.txt"
        lines = [line.split() for line in file.read_text().splitlines()]
        file.unlink()
        found = {}
        for rank in {line[0] for line in lines}:
            own = [(phase, float(moment)) for k, phase, moment in lines if k == rank]
            ends = [moment for _, moment in own[1:]] + [own[-1][1] + 0.2]
            for (phase, moment), end in zip(own, ends, strict=True):
                found[int(rank), phase] = moment, end - moment
        return found


def drawn(
    rng: np.random.Generator, number: int, times: dict[tuple[int, str], tuple[float, float]]
) -> dict[str, Any]:
    """Return what is to be killed where and when: a random moment, of phases in turn."""
    rank = int(rng.integers(1 + max(rank for rank, _ in times)))
    phases = [phase for phase in PHASES if (rank, phase) in times]
    phase = phases[number % len(phases)]
    delay = float(rng.uniform(0.0, times[rank, phase][1]))
    how = str(rng.choice(["SIGKILL", "exit"]))
    return {"rank": rank, "phase": phase, "delay": delay, "how": how}


def judged(file: Path, undisturbed: Array) -> Row:
    """Return how far a model is from the undisturbed one, if there is one."""
    if not file.exists():
        return {"difference": float("nan"), "is_bitwise": False}
    found = np.load(file)
    return {
        "difference": abs(float(found[-1] - undisturbed[-1])),
        "is_bitwise": bool(np.array_equal(found, undisturbed)),
    }


# ---- processes of a group ------------------------------------------------------------------------


def rank_of(args: argparse.Namespace) -> None:
    """Fit as one rank, and write what becomes of it."""
    phases = Phases(args.folder)
    phases.watch()
    X, y = table(ROWS[args.model])
    model = MODELS[args.model]().set_params(checkpoint_dir=args.folder / "checkpoints")
    before = dict(vars(model))
    rank, said = int(os.environ["RANK"]), {}
    try:
        with of_ranks.process_group(init=args.meet, timeout=TIMEOUT) as group:
            mine = np.array_split(np.arange(len(X)), group.size)[group.rank]
            model.fit(X[mine], y[mine])
        np.save(args.folder / f"model{rank}.npy", described(model))
        said["outcome"] = "fitted"
    except WorkerLostError as error:
        is_as_before = vars(model) == before
        said["outcome"] = "lost" if is_as_before else "lost, and the estimator has changed"
        said["message"] = str(error)
    said["moment"] = time.monotonic()
    (args.folder / f"said{rank}.json").write_text(json.dumps(said))
    sys.exit(said["outcome"] != "fitted")


def launched(folder: Path, model: str, size: int, limit: float, by_torchrun: bool) -> bool:
    """Run ranks to their ends; return whether they had to be killed."""
    for old in [*folder.glob("model*.npy"), *folder.glob("said*.json")]:
        old.unlink()
    command = [__file__, "--folder", str(folder), "--model", model]
    known = {**os.environ, "OMP_NUM_THREADS": "1"}
    commands = []
    if by_torchrun:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(size), "--max-restarts", "1"]
        commands.append(([*launcher, *command, "--meet", "env://"], known))
    else:
        meet = f"file://{folder}/meet{time.monotonic()}"
        for rank in range(size):
            own = {**known, "RANK": str(rank), "WORLD_SIZE": str(size)}
            commands.append(([sys.executable, *command, "--meet", meet], own))
    with (folder / "output.txt").open("a") as output:
        processes = [
            subprocess.Popen(each, env=own, stdout=output, stderr=output) for each, own in commands
        ]
        end = time.monotonic() + limit
        hangs = False
        for process in processes:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                hangs = True
                process.terminate()  # torchrun then ends its own
                process.wait()
    return hangs


def kills_of_ranks(args: argparse.Namespace, rng: np.random.Generator) -> Iterator[Row]:
    """Kill one of two processes, and resume."""
    undisturbed, times = {}, {}
    for number in range(args.kills):
        name = list(MODELS)[number % len(MODELS)]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            phases = Phases(folder)
            if name not in undisturbed:
                launched(folder, name, 2, args.limit, by_torchrun=False)
                undisturbed[name] = np.load(folder / "model0.npy")
                times[name] = phases.times()
            order = drawn(rng, number // len(MODELS), times[name])
            (folder / "order.json").write_text(json.dumps(order))
            by_torchrun = number % 5 == 4
            row = {"engine": "torchrun" if by_torchrun else "gloo", "model": name, "size": 2}
            row |= {**order, "number": number}
            row |= killed(folder, name, order["rank"], undisturbed[name], args.limit, by_torchrun)
            size = 1 if number % 4 == 3 else 2
            hangs = launched(folder, name, size, args.limit, by_torchrun=False)
            row |= {"resumed_size": size, "hangs": hangs or row["hangs"]}
            row |= judged(folder / "model0.npy", undisturbed[name])
            row["left"] = " ".join(path.name for path in (folder / "checkpoints").glob("*"))
            is_right = row["difference"] <= NATS and (row["is_bitwise"] or size == 1)
            row["passes"] = is_right and not (row["hangs"] or row["left"]) and row["is_noticed"]
            if not row["passes"]:
                for file in (*folder.glob("said*.json"), folder / "output.txt"):
                    print(file.read_text()[-3000:])
            yield row


def killed(
    folder: Path, name: str, rank: int, undisturbed: Array, limit: float, by_torchrun: bool
) -> Row:
    """Start two processes of which one is killed, and return what the other one says."""
    hangs = launched(folder, name, 2, limit, by_torchrun)
    survivor = 1 - rank
    files = folder / "killed.txt", folder / f"said{survivor}.json"
    moment, said = (json.loads(file.read_text()) if file.exists() else {} for file in files)
    outcome, seconds = said.get("outcome", "nothing"), float("nan")
    if not moment:  # it had come to its end before
        is_noticed, outcome = outcome == "fitted", "too late"
    else:
        seconds = said.get("moment", float("nan")) - moment
        is_noticed = outcome == "lost" and seconds < TIMEOUT + NOTICE
        if outcome == "fitted":
            found = np.load(folder / f"model{survivor}.npy")
            is_noticed = np.array_equal(found, undisturbed)
    phase = said.get("message", "").partition(" (")[2].partition(")")[0]
    return {
        "hangs": hangs,
        "outcome": outcome,
        "said_phase": phase,
        "seconds": seconds,
        "is_noticed": is_noticed,
    }


# ---- workers of Dask -----------------------------------------------------------------------------


def kills_of_workers(args: argparse.Namespace, rng: np.random.Generator) -> Iterator[Row]:
    """Kill a worker of two, and of three."""
    from distributed import Client, LocalCluster, WorkerPlugin

    class Watched(WorkerPlugin):
        """Lets workers die, also those that are started later."""

        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def setup(self, worker: Any) -> None:
            sys.path.insert(0, str(Path(__file__).parent))
            from bench_kills import Phases

            Phases(self.folder).watch()

    known: dict[tuple[str, int], Any] = {}
    for number in range(args.kills):
        name, size = list(MODELS)[number % len(MODELS)], 2 + number % 2
        with tempfile.TemporaryDirectory() as place:
            options = {"n_workers": size, "threads_per_worker": 1, "local_directory": place}
            cluster = LocalCluster(**options, dashboard_address=":0")
            with cluster, Client(cluster) as client:
                client.register_plugin(Watched(Path(place)))
                folder = Path(place)
                if (name, size) not in known:
                    known[name, size] = undisturbed_on(client, name, size, folder)
                yield kill_on(client, name, size, folder, number, known[name, size], args, rng)


def undisturbed_on(client: Any, name: str, size: int, folder: Path) -> tuple[Array, Any, float]:
    """Return what a fit finds that nobody disturbs, when its phases were, and when ranks met."""
    start = time.monotonic()
    found = described(dask_fit(client, name, size, 2))
    times = Phases(folder).times()
    return found, times, times[0, "meeting"][0] - start


def kill_on(
    client: Any,
    name: str,
    size: int,
    folder: Path,
    number: int,
    known: tuple[Array, Any, float],
    args: argparse.Namespace,
    rng: np.random.Generator,
) -> Row:
    """Kill a worker of a cluster."""
    undisturbed, times, before = known
    max_restarts = 0 if number % 4 == 3 else 2
    order = drawn(rng, number // len(MODELS), times)
    if number % 6 == 5:
        order |= {"phase": "before ranks", "delay": float(rng.uniform(0.0, before))}
    row = {"engine": "dask", "model": name, "size": size, **order, "number": number}
    model, outcome, said_phase, seconds = outcome_on(
        client, name, size, order, folder, max_restarts, args.limit
    )
    row |= {"hangs": outcome == "hangs", "outcome": outcome, "said_phase": said_phase}
    row["seconds"] = seconds
    row["is_noticed"] = model is not None or (max_restarts == 0 and outcome == "lost")
    row["resumed_size"] = float("nan")
    if model is not None:
        np.save(folder / "model.npy", described(model))
    row |= judged(folder / "model.npy", undisturbed)
    row["left"] = left_on(client)
    is_right = model is None or row["difference"] <= NATS
    row["passes"] = is_right and row["is_noticed"] and not row["left"]
    return row


def dask_fit(client: Any, name: str, size: int, max_restarts: int) -> Any:
    """Fit to chunks, of which each worker has two."""
    import dask.array as da

    from skgpstoch.dask import fit

    X, y = (da.from_array(each, chunks=-(-len(each) // (2 * size))) for each in table(ROWS[name]))
    X = X.rechunk({1: -1})
    return fit(MODELS[name](), X, y, client=client, timeout=TIMEOUT, max_restarts=max_restarts)


def outcome_on(
    client: Any,
    name: str,
    size: int,
    order: dict[str, Any],
    folder: Path,
    max_restarts: int,
    limit: float,
) -> tuple[Any, str, str, float]:
    """Fit while a worker is killed; return the model if there is one, what happened, and when."""
    found: dict[str, Any] = {}

    def fit() -> None:
        try:
            found["model"] = dask_fit(client, name, size, max_restarts)
        except Exception as error:
            found["error"] = error

    start = time.monotonic()
    thread = threading.Thread(target=fit, daemon=True)
    if order["phase"] == "before ranks":
        victim = sorted(client.run(os.getpid).values())[order["rank"]]
        threading.Timer(order["delay"], os.kill, (victim, signal.SIGKILL)).start()
    else:
        (folder / "order.json").write_text(json.dumps(order))
    thread.start()
    thread.join(limit)
    seconds = time.monotonic() - start
    (folder / "order.json").unlink(missing_ok=True)
    (folder / "phases.txt").unlink(missing_ok=True)
    if thread.is_alive():
        return None, "hangs", "", seconds
    if isinstance(found.get("error"), WorkerLostError):
        return None, "lost", str(found["error"]), seconds
    if "error" in found:
        return None, repr(found["error"]), "", seconds
    return found["model"], "fitted", "", seconds


def left_on(client: Any) -> str:
    """Return what is left of a fit on a cluster."""
    import torch.distributed as dist

    def of_worker() -> list[str]:
        threads = [t.name for t in threading.enumerate() if "(send)" in t.name]
        return threads + ["process group"] * dist.is_initialized()

    def of_scheduler(dask_scheduler: Any) -> list[str]:
        variables = list(dask_scheduler.extensions["variables"].variables)
        locks = [
            name for name, ids in dask_scheduler.extensions["semaphores"].leases.items() if ids
        ]
        multi = list(dask_scheduler.extensions["multi_locks"].requests)
        return [*map(str, dask_scheduler.tasks), *variables, *locks, *multi]

    left = ["nobody asked"]
    end = time.monotonic() + 2 * TIMEOUT
    while left and time.monotonic() < end:
        gc.collect()
        time.sleep(0.2)
        of_workers = itertools.chain.from_iterable(client.run(of_worker).values())
        left = [*of_workers, *client.run_on_scheduler(of_scheduler)]
    return " ".join(left)


def main(args: argparse.Namespace) -> None:
    """Kill, and write a row for each."""
    failed = 0
    for k, part in enumerate((kills_of_ranks, kills_of_workers)):
        if part.__name__ not in args.parts:
            continue
        for row in part(args, np.random.default_rng([args.seed, k])):
            failed += not row["passes"]
            print({name: round(v, 5) if isinstance(v, float) else v for name, v in row.items()})
            append_csv(args.output, {**row, "seed": args.seed, **environment()})
    print(f"{failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    options = parser(__doc__, "benchmarks/results/kills.csv")
    parts = ["kills_of_ranks", "kills_of_workers"]
    options.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options.add_argument("--kills", type=int, default=20, help="of each part")
    options.add_argument("--limit", type=float, default=120.0, help="seconds until a fit hangs")
    for name in ("--folder", "--model", "--meet"):  # of one rank
        options.add_argument(name, type=Path if name == "--folder" else str, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    set_threads(arguments.threads)
    (main if arguments.folder is None else rank_of)(arguments)
