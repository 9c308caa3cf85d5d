"""Read files as they are named on stdin, and tell what each took: see tests/fuzzed.py."""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import skgpstoch
from skgpstoch.data.messages import is_raised_by_us
from skgpstoch.persistence.failures import is_for_users
from skgpstoch.training.checkpoint import Checkpoint


def predicted(path):
    """Load and, if that works, predict: numbers, or an error that names a part or what to do."""
    model = skgpstoch.load(path)
    loaded = measured()
    signal.alarm(9)
    try:
        predict = getattr(model, "predict_proba", model.predict)
        mean = np.asarray(predict(np.zeros((2, getattr(model, "n_features_in_", 4)))))
        is_finite = mean.dtype.kind != "f" or np.isfinite(mean).all()
        return "predicts" if is_finite else "raised no error for NaN", loaded
    except TimeoutError:
        return "predicts slowly", loaded
    except Exception as error:
        is_told = is_for_users(error) or hasattr(error, "__notes__")
        kind = type(error).__name__
        return "predicts nothing" if is_told else f"raised {kind} that names nothing", loaded
    finally:
        signal.alarm(0)


def stop(*_):
    raise TimeoutError


def resumed(path):
    path = Path(path)
    Checkpoint(path.parent, path.stem).load(torch.device("cpu"))
    return "loaded", measured()


def measured():
    """Seconds of this process, and the most bytes that it has had since `start`."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return time.process_time(), 1024 * int(peak.split()[1])


def start():
    Path("/proc/self/clear_refs").write_text("5")
    return measured()


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, stop)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        kind, _, path = line.strip().partition(" ")
        before = start()
        try:
            outcome, after = {"model": predicted, "checkpoint": resumed}[kind](path)
        except ValueError as error:
            outcome = "refused" if is_raised_by_us(error) else "raised a library's ValueError"
            after = measured()
        except Exception as error:
            outcome, after = f"raised {type(error).__name__}", measured()
        seconds, most = (b - a for a, b in zip(before, after, strict=True))
        print(
            json.dumps({"outcome": outcome, "seconds": seconds, "bytes": most}),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
