"""What can be seen in a process of its own alone: what first fits set there, and memory of calls.

One process is for both, as to start it takes seconds. Fits come first, and memory of each call is
measured from what there was before it.
"""

import os
import subprocess
import sys

import pytest

FIRST_FITS = """
import os, random, sys, warnings
import numpy as np
import torch
from sklearn.gaussian_process.kernels import RBF
import skgpstoch as sg

def settings():
    return {
        "filters": list(warnings.filters),
        "numpy errors": np.geterr(),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "generators": repr((random.getstate(), np.random.get_state(), torch.get_rng_state())),
        "gradients": torch.is_grad_enabled(),
        "environment": dict(os.environ),
        "sympy": "sympy" in sys.modules,
    }

warnings.simplefilter("ignore")
X = np.random.default_rng(0).standard_normal((20, 16))
few = {"max_iter": 1}
small = {"n_inducing": 5, **few}
before = settings()
for model in (
    sg.ADMMGaussianProcessRegressor(**few),
    sg.AutoGaussianProcessRegressor(),
    sg.ConvolutionalGPRegressor(image_shape=(4, 4), patch_shape=(3, 3), **small),
    sg.DeepGPRegressor(**small),
    sg.DLMRegressor(**small),
    sg.GaussianProcessClassifier(),
    sg.GaussianProcessRegressor(RBF()),
    sg.QSGPRegressor(learn_kernel=True, n_components=20, **few),
    sg.QSGPRegressor(solver="adagrad", n_components=20, **few),
    sg.QSRVMClassifier(**few),
    sg.SCGDGaussianProcessRegressor(**few),
    sg.SCGDGaussianProcessRegressor(solver="adadelta", **few),
    sg.SVGPRegressor(solver="lbfgs", **small),
    sg.SVGPClassifier(solver="lbfgs", **small),
):
    y = X[:, 0] > 0 if "Classifier" in type(model).__name__ else X[:, 0]
    model.fit(X, y).predict(X)
    now = settings()
    print(*(f"{model}: {k}\\n" for k in before if now[k] != before[k]), sep="", end="")
"""

MEMORY = """
import numpy as np, torch
from sklearn.gaussian_process.kernels import RBF
import skgpstoch
torch.set_num_threads(1)
rng = np.random.default_rng(0)


def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))


def measure(name, call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest is the present one
    before = kilobytes("VmRSS")
    call()
    print(name, (kilobytes("VmHWM") - before) / 1024)


common = {"max_iter": 1, "random_state": 0}

# 50 MB is too much: 75,000 rows of 160 features would be 96 MB, of kernel values 45 GB.
X = rng.normal(size=(75_000, 3))
y = X[:, 0]
model = skgpstoch.SCGDGaussianProcessRegressor(
    RBF(2.0), hidden_layer_sizes=(), n_components=160, **common
)
model.fit(X[:1000], y[:1000]).predict(X[:1000])
measure("fit", lambda: model.fit(X, y))
measure("predict", lambda: model.predict(X, return_std=True))
measure("predict_interval", lambda: model.predict_interval(X))
measure("log_predictive_density", lambda: model.log_predictive_density(X, y))
measure("log_marginal_likelihood", lambda: model.log_marginal_likelihood(X, y))
measure("sample_y", lambda: model.sample_y(X))

# 45 MB is too much: 75,000 rows of 150 features in float64 would be 90 MB.
y = y + 0.1 * rng.normal(size=75_000)
common |= {"batch_size": 2000, "inducing_points": "random"}
model = skgpstoch.SVGPRegressor(solver="collapsed", n_inducing=150, **common)
model.fit(X[:10000], y[:10000]).predict(X[:10000])
measure("sparse fit", lambda: model.fit(X, y))
measure("sparse predict", lambda: model.predict(X, return_std=True))
measure("sparse log_marginal_likelihood", lambda: model.log_marginal_likelihood(X, y))
model = skgpstoch.SolveGPClassifier(n_inducing=75, **common)
model.fit(X[:5000], y[:5000] > 0).predict_proba(X[:5000])
measure("sparse predict_proba", lambda: model.predict_proba(X))

# 6,000 rows squared would be 288 MB; copies of the data are 0.25 MB each.
X, y = X[:6_000], y[:6_000]
common["n_inducing"] = 20
loss = skgpstoch.LogLoss("product", n_samples=2)
models = {
    "direct square": skgpstoch.DLMRegressor(loss="square", beta=[0.1, 1.0], **common),
    "direct log": skgpstoch.DLMRegressor(hyperparameters="fixed", **common),
    "direct product": skgpstoch.DLMClassifier(loss=loss, **common),
}
for name, model in models.items():
    target = y > 0 if name == "direct product" else y
    model.fit(X[:3000], target[:3000]).log_predictive_density(X[:3000], target[:3000])
    measure(name, lambda: model.fit(X, target).log_predictive_density(X, target))

# A checkpoint of 24 MB: ranks had 5.25 times that, and files of strangers may take 4 times.
import pathlib, tempfile
from skgpstoch.data.groups import Group
from skgpstoch.persistence.file import write_state
from skgpstoch.persistence.state import Packer
from skgpstoch.training.checkpoint import Checkpoint, CheckpointOfGroup, OnlyNumbers


class First(Group):
    rank, size = 0, 2
    _combine = _spread = _collect = lambda *args: None


with tempfile.TemporaryDirectory() as folder:
    own = Checkpoint(pathlib.Path(folder), "fit")
    state = Packer(OnlyNumbers()).state({"a": torch.zeros(6 * 2**20)})
    write_state(own.path, {"fit": "fit"}, state)
    del state
    for name, file in ("checkpoint", own), ("checkpoint of ranks", CheckpointOfGroup(own, First())):
        measure(name, lambda: file.load(torch.device("cpu")))
"""

pytestmark = pytest.mark.processes
BETWEEN = "measured from here"
LINUX = sys.platform.startswith("linux")


@pytest.fixture(scope="module")
def said():
    """Lines that first fits print, and those with the megabytes of calls."""
    script = FIRST_FITS + f"\nprint({BETWEEN!r})\n" + (MEMORY if LINUX else "")
    # With thresholds of its own glibc learns none: what a call frees is not there for the next.
    threshold = str(4 * 1024**2)
    settings = {"MALLOC_MMAP_THRESHOLD_": threshold, "MALLOC_TRIM_THRESHOLD_": threshold}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [part.splitlines() for part in done.stdout.split(BETWEEN + "\n")]


def test_first_fits_leave_the_process_as_it_was(said):
    """In a fresh one, where torch would import sympy, which adds a filter of warnings."""
    assert said[0] == []


@pytest.mark.skipif(not LINUX, reason="reads /proc/self/status")
def test_memory_does_not_grow_with_rows_times_features(said):
    lines = (line.rsplit(maxsplit=1) for line in said[1])
    megabytes = {name: float(mb) for name, mb in lines}
    assert len(megabytes) == 15
    few = {"sparse": 45, "direct": 100, "checkpoint": 4 * 24}
    most = {name: few.get(name.split()[0], 50) for name in megabytes}
    assert {name: mb for name, mb in megabytes.items() if mb > most[name]} == {}
