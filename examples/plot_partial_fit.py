"""
======================
Learning from a stream
======================

``partial_fit`` learns from rows as they arrive, and the model can predict at any time. We first
predict each chunk and then learn from it, so scores are for rows that the model has not seen.
"""

# %%
# A stream
# --------

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1

from skgpstoch import SCGDGaussianProcessRegressor
from skgpstoch.metrics import interval_coverage, negative_log_predictive_density

chunk_size = 500
X, y = make_friedman1(40 * chunk_size, noise=1.0, random_state=0)
chunks = [(X[i : i + chunk_size], y[i : i + chunk_size]) for i in range(0, len(X), chunk_size)]

# %%
# Predict, then learn
# -------------------

model = SCGDGaussianProcessRegressor(random_state=0)
model.partial_fit(*chunks[0])
nlpd, coverage = [], []
for X_new, y_new in chunks[1:]:
    mean, std = model.predict(X_new, return_std=True)
    nlpd.append(negative_log_predictive_density(y_new, mean, std))
    coverage.append(interval_coverage(y_new, model.predict_interval(X_new, coverage=0.95)))
    model.partial_fit(X_new, y_new)

# %%
# Scores along the stream
# -----------------------
# Dashed lines are the score of the true function with its true noise, and the nominal coverage of
# the intervals.

rows = chunk_size * np.arange(1, len(chunks))
figure, (top, bottom) = plt.subplots(2, figsize=(7, 5), sharex=True, layout="constrained")
top.plot(rows, nlpd)
top.axhline(0.5 * np.log(2 * np.pi * np.e), color="0.5", linestyle="--")
top.set(ylabel="NLPD (nats per row)")
bottom.plot(rows, coverage)
bottom.axhline(0.95, color="0.5", linestyle="--")
bottom.set(xlabel="rows learned so far", ylabel="coverage of 95 % intervals", ylim=(0.5, 1))
plt.show()
