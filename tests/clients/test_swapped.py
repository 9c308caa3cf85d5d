"""Other people's own tests with our classes in place of scikit-learn's: no more of them fail.

Wheels have no tests (looked for in scikit-optimize 0.10.2, bayesian-optimization 3.4.0, skl2onnx
1.20.0, modAL 0.4.2.1 and scikit-activeml 1.0.1; MAPIE's and skpro's have none of Gaussian
processes), so clones are needed: ``SUITES`` in the environment is a folder with them, each by its
repository's name, and without it these tests are skipped. They take some minutes:

    git clone https://github.com/scikit-optimize/scikit-optimize $SUITES/scikit-optimize
    git clone https://github.com/bayesian-optimization/BayesianOptimization $SUITES/...
    git clone https://github.com/onnx/sklearn-onnx $SUITES/sklearn-onnx

What was found, and why, is in suites.csv. Files are copied, so that they test what is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
CLONES = os.environ.get("SUITES")
SECONDS = 1500


class Suite(NamedTuple):
    """Files of a clone, and what is known to fail with our classes alone."""

    client: str
    clone: str
    files: tuple[str, ...]
    explained: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    path: str = ""


SKOPT = "scikit-optimize/skopt"
ONNX = "test_sklearn_gaussian_process"
SLOW = (
    "not onnx_training and not friedman and not multiclass and not issue_789"  # 140 to 220 s each
)
SUITES = {
    "skopt processes": Suite(
        "skopt",
        f"{SKOPT}",
        ("learning/gaussian_process/tests", "tests/test_gpr.py", "tests/test_acquisition.py"),
    ),
    "skopt optimizer": Suite("skopt", f"{SKOPT}/tests", ("test_optimizer.py", "test_plots.py")),
    "bayes_opt": Suite(
        "bayes_opt",
        "BayesianOptimization/tests",
        (
            "test_acquisition.py",
            "test_bayesian_optimization.py",
            "test_constraint.py",
            "test_parameter.py",
            "test_seq_domain_red.py",
            "test_target_space.py",
        ),
    ),
    "skl2onnx": Suite(
        "skl2onnx",
        "sklearn-onnx/tests",
        (f"{ONNX}_classifier.py", f"{ONNX}_regressor.py"),
        explained=(
            "test_gpr_rbf_unfitted",
            "test_issue_1073_multidimension_process",
        ),
        options=("-k", SLOW),
        path="sklearn-onnx/tests",  # of test_utils
    ),
}


def failures(folder, path, *options):
    """Names of the tests that fail or raise, and how many there are."""
    paths = [str(HERE), str(HERE.parents[1]), str(path), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-o", "addopts="]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-W", "ignore", *options, "."],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    counted = sum(int(n) for n in re.findall(r"(\d+) (?:passed|failed|error)", done.stdout))
    return set(found), counted


@pytest.mark.parametrize("name", SUITES)
def test_no_more_fail_than_with_their_own(name, tmp_path):
    suite = SUITES[name]
    pytest.importorskip(suite.client)
    source = Path(CLONES or "") / suite.clone
    if CLONES is None or not source.is_dir():
        pytest.skip(f"no clone: set SUITES to a folder that has {suite.clone}")
    for position, file in enumerate(suite.files):
        folder = tmp_path / f"part_{position}"  # names of files occur twice
        if (source / file).is_dir():
            shutil.copytree(source / file, folder)
            continue
        folder.mkdir()
        shutil.copy(source / file, folder / f"test_{position}_{Path(file).name}")
    path = Path(CLONES) / suite.path
    theirs, n_theirs = failures(tmp_path, path, *suite.options)
    ours, n_ours = failures(tmp_path, path, *suite.options, "-p", "swapped")
    assert n_ours == n_theirs > 10
    print(f"{name}: {n_ours} tests, {len(theirs)} fail with theirs, {len(ours)} with ours")
    new = {test.rsplit("::", 1)[-1] for test in ours - theirs}
    assert new <= set(suite.explained), sorted(new)
