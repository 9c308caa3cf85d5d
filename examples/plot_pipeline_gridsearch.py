"""
===========================================
Choosing a kernel by its predictive density
===========================================

The regressors are ordinary scikit-learn estimators. One at the end of a pipeline takes a pandas
frame, and a grid search can rank models by their whole predictive distribution.
"""

# %%
# Data
# ----

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process.kernels import RBF, DotProduct
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skgpstoch import SCGDGaussianProcessRegressor
from skgpstoch.metrics import neg_log_predictive_density_scorer

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# %%
# Search
# ------
# Linear regression, a stationary kernel and two deep kernels are settings of one estimator. Early
# stopping keeps networks with thousands of parameters from overfitting. Kernels with few parameters
# do better if they are trained on all rows, so we switch it off for these.

pipeline = Pipeline(
    [
        ("scale", StandardScaler()),
        ("gp", SCGDGaussianProcessRegressor(max_iter=200, random_state=0)),
    ]
)
simple = {"gp__hidden_layer_sizes": [()], "gp__early_stopping": [False]}
grid = [
    {**simple, "gp__kernel": [DotProduct()]},
    {**simple, "gp__kernel": [RBF(length_scale=3.0)], "gp__n_components": [200]},
    {"gp__hidden_layer_sizes": [(32,), (32, 32)]},
]
search = GridSearchCV(pipeline, grid, scoring=neg_log_predictive_density_scorer, cv=3)
search.fit(X_train, y_train)

# %%
# Result
# ------
# The score is the negative log predictive density, in nats per patient; lower is better. With 331
# patients, the spread over the folds is larger than the differences between the kernels.

names = ["linear", "RBF", "one layer of 32", "two layers of 32"]
results = pd.DataFrame(
    {
        "NLPD": -search.cv_results_["mean_test_score"],
        "spread over folds": search.cv_results_["std_test_score"],
        "fit (s)": search.cv_results_["mean_fit_time"],
    },
    index=names,
)
print(results.round(3))
print(f"chosen: {names[search.best_index_]}; held-out NLPD {-search.score(X_test, y_test):.3f}")

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.errorbar(results["NLPD"], names, xerr=results["spread over folds"], fmt="o")
ax.set(xlabel="NLPD (nats per patient), mean and spread of three folds")
plt.show()
