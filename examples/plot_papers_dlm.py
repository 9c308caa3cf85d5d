"""
===============================================
What β brings, and what the loss brings
===============================================

Direct loss minimisation trains for the loss of predictions, and chooses the weight β of its
regulariser. Both differ from the evidence lower bound. Which of the two is it that helps? Wei,
Sheth and Khardon, "Direct Loss Minimization for Sparse Gaussian Processes", give the bound a β as
well, the β-ELBO, so that one can tell. No model is fitted here.
"""

# %%
# Cells that were run
# -------------------
# ``python -m benchmarks.papers dlm --table betas`` runs the cells, each five fits to random splits,
# and keeps them in the CSV file that is read here. NLL is the mean negative log predictive density
# of test rows, or log mass of classes, in nats: lower is better.

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

here = Path(__file__).parent if "__file__" in globals() else Path()  # of a script, of a notebook
cells = pd.read_csv(here.parent / "benchmarks" / "results" / "papers" / "dlm_betas.csv")
tables = cells.groupby(["set", "rows"], sort=False)

# %%
# The gain of either
# ------------------
# With β = 1 the β-ELBO is the ELBO. What β brings is the gain of its best β over that; what the
# loss brings is the gain of the log-loss's best β over the β-ELBO's. Both are chosen by the test
# rows here, which flatters both alike.

print(f"{'':<16}{'ELBO':>8}{'β-ELBO':>9}{'log-loss':>10}   gain by β   gain by the loss")
for (name, rows), table in tables:
    nll = table.pivot(index="beta", columns="method", values="nll")
    elbo, bound, direct = nll.loc[1.0, "beta-ELBO"], *nll[["beta-ELBO", "log-loss"]].min()
    print(f"{name:<10}{rows:>6}{elbo:8.3f}{bound:9.3f}{direct:10.3f}", end="")
    print(f"{elbo - bound:12.3f}{bound - direct:14.3f}")

# %%
# Loss by β
# ---------
# The bars are standard errors of five splits.

figure, axes = plt.subplots(1, len(tables), figsize=(3.2 * len(tables), 3.6), layout="constrained")
for ax, ((name, rows), table) in zip(axes, tables, strict=True):
    for method, each in table.groupby("method"):
        each = each.sort_values("beta")
        error = each["nll_standard_error"]
        ax.errorbar(each["beta"], each["nll"], error, fmt="o-", ms=4, capsize=2, label=method)
    ax.axvline(1.0, color="0.8", zorder=0)
    ax.set(xscale="log", xlabel="β", title=f"{name}, {rows:,} rows")
axes[0].set_ylabel("NLL of test rows, nats")
axes[0].legend()
plt.show()
