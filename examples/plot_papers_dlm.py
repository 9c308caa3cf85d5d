"""
==================================
The gain from β, and from the loss
==================================

Direct loss minimisation differs from the evidence lower bound (ELBO) in two ways: it trains for the
loss of predictions, and it chooses the weight β of its regulariser. Which of the two helps? To find
out, Wei, Sheth and Khardon, "Direct Loss Minimization for Sparse Gaussian Processes", give the
bound a β, too: the β-ELBO. This page fits no model; it reads our results.
"""

# %%
# Results
# -------
# ``python -m benchmarks.papers dlm --table betas`` makes five fits to random splits for each cell,
# and writes the CSV file that we read here. NLL is the mean negative log predictive density of test
# rows (for classes, log probability), in nats. The error is the mean squared error of the
# standardised target, or the share of wrong classes. Lower is better.

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

here = Path(__file__).parent if "__file__" in globals() else Path.cwd()  # of a notebook
cells = pd.read_csv(here.parent / "benchmarks" / "results" / "papers" / "dlm_betas.csv")
tables = cells.groupby(["set", "rows"], sort=False)

# %%
# Two gains
# ---------
# With β = 1 the β-ELBO is the ELBO. The gain by β compares the best β of the β-ELBO with the ELBO.
# The gain by the loss compares the best β of the log-loss with the best β-ELBO. The test rows
# choose β here, which flatters both.

print(f"{'':<16}{'ELBO':>8}{'β-ELBO':>9}{'log-loss':>10}   gain by β   gain by the loss")
for (name, rows), table in tables:
    nll = table.pivot(index="beta", columns="method", values="nll")
    elbo, bound, direct = nll.loc[1.0, "beta-ELBO"], *nll[["beta-ELBO", "log-loss"]].min()
    print(f"{name:<10}{rows:>6}{elbo:8.3f}{bound:9.3f}{direct:10.3f}", end="")
    print(f"{elbo - bound:12.3f}{bound - direct:14.3f}")

# %%
# Loss and error by β
# -------------------
# On bike, the loss gains three to seven times as much as β. On elevators, both gain little. On
# flights, neither objective is better than the ELBO with any β. With few rows, a small β can make
# the log-loss much worse (elevators, 700 rows). The log-loss gains by its variances: at the best β
# its means are worse than the β-ELBO's, on bike by far. Bars are standard errors of five splits.

figure, axes = plt.subplots(
    2, len(tables), figsize=(2.7 * len(tables), 5.2), sharex=True, layout="constrained"
)
for column, ((name, rows), table) in zip(axes.T, tables, strict=True):
    for method, each in table.sort_values("beta").groupby("method"):
        for ax, measure in zip(column, ("nll", "error"), strict=True):
            bars = each[f"{measure}_standard_error"]
            ax.errorbar(each["beta"], each[measure], bars, fmt="o-", ms=4, capsize=2, label=method)
            ax.axvline(1.0, color="0.8", zorder=0)
    column[0].set(title=f"{name}, {rows:,} rows")
    column[1].set(xscale="log", xlabel="β")
axes[0, 0].set_ylabel("NLL of test rows, nats")
axes[1, 0].set_ylabel("error of test rows")
axes[0, 0].legend()
plt.show()
