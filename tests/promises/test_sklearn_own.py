"""scikit-learn's own tests of its Gaussian processes, run on our classes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn

import skgpstoch

SKLEARN = Path(sklearn.__file__).parent
# What scikit-learn's tests look at changes from version to version; the promise is of this one.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not sklearn.__version__.startswith("1.9."),
        reason=f"the drop-in follows scikit-learn 1.9's tests; this is {sklearn.__version__}",
    ),
]


def ours(text, name):
    """A test module's text with our class in place of scikit-learn's, which must not remain."""
    theirs = f"from sklearn.gaussian_process import {name}\n"
    assert text.count(theirs) == 1
    text = text.replace(theirs, f"from skgpstoch import {name}\n")
    # Kernels remain scikit-learn's, and so does a kernel of its tests.
    remaining = set(re.findall(r"sklearn\.gaussian_process[\w.]*", text))
    assert remaining <= {
        "sklearn.gaussian_process.kernels",
        "sklearn.gaussian_process.tests._mini_sequence_kernel",
    }
    return text


def test_sklearns_own_tests_pass(tmp_path):
    """All of test_gpr.py and test_gpc.py; a second process asserts whose classes they use."""
    # global_random_seed and other fixtures. Workers of n_jobs=2 are threads: two processes would
    # import torch, which takes longer than all the tests.
    conftest = (SKLEARN / "conftest.py").read_text(encoding="utf-8")
    threading = '\n\njoblib.parallel_config(backend="threading")\n'
    (tmp_path / "conftest.py").write_text(conftest + threading, encoding="utf-8")
    modules = {"test_gpr": "GaussianProcessRegressor", "test_gpc": "GaussianProcessClassifier"}
    for module, name in modules.items():
        text = (SKLEARN / "gaussian_process/tests" / f"{module}.py").read_text(encoding="utf-8")
        text = ours(text, name) + (
            "\n\ndef test_the_class_is_ours():\n"
            f'    assert {name}.__module__.split(".")[0] == "skgpstoch"\n'
        )
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # no other configuration
    path = [str(Path(skgpstoch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no other plugins to import
    # Traces of the 51 expected failures, and better words of asserts, take 3 s.
    options = ["-pno:cacheprovider", "-pno:logging", "-q", "--tb=native", "--assert=plain", "-rfE"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "."],
        cwd=tmp_path,
        env={**os.environ, **threads, **alone, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        timeout=200,
    )
    report = done.stdout[-8000:] + done.stderr[-2000:]
    assert done.returncode == 0, report
    summary = done.stdout.strip().splitlines()[-1]
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", summary)}
    assert "failed" not in counts, report
    assert "error" not in counts, report
    assert counts["passed"] >= 150, report
