"""
=========================================
QSGP: control variates, solvers, features
=========================================

This page has our results for figure 1 of Evans and Nair, "Quadruply stochastic Gaussian processes"
(2020), and two comparisons of our own. It fits no model: ``python -m benchmarks.papers qsgp``
writes the CSV files that it reads.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt

here = Path(__file__).parent if "__file__" in globals() else Path.cwd()  # of a notebook
results = here.parent / "benchmarks" / "results" / "papers"


def cells(table):
    """Our measurements for a table, as dictionaries."""
    with (results / f"qsgp_{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def series(rows, x, y, **where):
    """Columns x and y of the rows with these values, sorted by x."""
    some = [row for row in rows if all(row[column] == text for column, text in where.items())]
    pairs = sorted((float(row[x]), float(row[y])) for row in some)
    return [list(column) for column in zip(*pairs, strict=True)]


# %%
# Figure 1: variance by the rows p of the control variate
# -------------------------------------------------------
# The variance is relative to that without a control variate. With the coefficient 1, a control
# variate of ten rows triples the variance. With the best coefficient, a control variate never
# raises the variance, and one of a thousand rows lowers it to a tenth.

variances = cells("figure1")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, kind in zip(axes, ("value", "gradient"), strict=True):
    for name, label in (("", "best coefficient"), ("fixed_", "coefficient 1")):
        p, variance = series(variances, "p", f"{name}{kind}_variance")
        ax.loglog(p, variance, "o-", label=label)
    ax.axhline(1.0, color="0.6", linewidth=0.8)
    ax.set_xlabel("p")
    ax.set_title(f"variance of the {kind}")
axes[0].set_ylabel("relative to no control variate")
axes[1].legend()

# %%
# Steps from sampled rows and functions
# -------------------------------------
# ``solver="sgd"`` takes the same samples as the paper's AdaGrad, with a kriged control variate and
# proximal steps. After a few passes over the rows it has about the RMSE of as many passes of
# Newton's steps. It stays below the dotted line, 1.1 times Newton's RMSE, except on kin40k after
# two passes with 500 functions a step. If a problem is ill-conditioned, AdaGrad needs many more
# passes.

passes = cells("passes")
sets = list(dict.fromkeys(row["set"] for row in passes))
styles = {"sgd": "C0o-", "sgd, 500 functions a step": "C2^-", "adagrad": "C1s-"}
figure, axes = plt.subplots(1, len(sets), figsize=(11, 3.4), sharey=True, layout="constrained")
for ax, name in zip(axes, sets, strict=True):
    x, newton = series(passes, "passes", "rmse", set=name, solver="newton")
    for solver, style in styles.items():
        _, y = series(passes, "passes", "rmse", set=name, solver=solver)
        ax.loglog(x, [a / b for a, b in zip(y, newton, strict=True)], style, label=solver)
    ax.axhline(1.1, color="0.4", linestyle=":", linewidth=0.8)
    ax.set_xticks([2, 4, 8], ["2", "4", "8"])
    ax.set_yticks([1, 2, 5], ["1", "2", "5"])
    ax.minorticks_off()
    ax.set(title=name, xlabel="passes over the rows")
axes[0].set_ylabel("RMSE, relative to Newton's")
axes[-1].legend(fontsize="small")

# %%
# Density by the number of functions m
# ------------------------------------
# The rough function of kin40k needs many basis functions. For smooth functions, more basis
# functions worsen the density, because diagonal columns of the covariance treat weights as
# independent. Then m columns take up the variance σ²m/n at a row, however few directions the rows
# determine. A hundred dense columns change little.

densities = cells("functions")
sets = list(dict.fromkeys(row["set"] for row in densities))
figure, axes = plt.subplots(1, len(sets), figsize=(3.4 * len(sets), 3.4), layout="constrained")
for ax, name in zip(axes, sets, strict=True):
    for c, label in (("0", "QSGP-0"), ("100", "QSGP-100")):
        ax.semilogx(*series(densities, "m", "mnlp", set=name, c=c), "o-", label=label)
    ax.set_xticks([250, 1000, 4000], ["250", "1,000", "4,000"])
    ax.minorticks_off()
    ax.set(title=name, xlabel="m")
axes[0].set_ylabel("mean negative log density")
axes[-1].legend()
plt.show()
