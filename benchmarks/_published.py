"""Figures as printed in the papers that the benchmarks compare with."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Mean over the paper's splits, and their standard deviation or the mean's standard error."""

    mean: float
    std: float


# Shoham and Avron, "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional
# RKHS", tables 2 to 5, five splits of 90 % / 10 %, a network of two ReLU layers of 128 before the
# kernel: batch size, set, then MINIMAX, SCGD, SVGP, BSGD. NLML in nats per row, in the units of
# the file.
SCGD_METHODS = ("MINIMAX", "SCGD", "SVGP", "BSGD")
SCGD_TABLES = {
    ("nlml", "linear"): """  Table 2
         32 bike      -1.482±0.249 -1.454±0.264 -0.895±0.296 -1.167±0.701
         32 elevators -1.588±0.287 -1.530±0.195 -0.150±0.436 -1.125±0.017
         32 kin40k    -1.713±0.063 -1.760±0.090  0.792±0.881 -0.684±0.028
         32 pol        2.128±0.097  2.016±0.126  1.643±0.108  2.689±0.175
         32 protein    0.392±0.060  0.393±0.053  0.848±0.218  0.640±0.016
         64 bike      -1.378±0.275 -1.366±0.259 -0.644±0.297 -1.282±0.617
         64 elevators -1.523±0.276 -1.427±0.173 -0.152±0.440 -1.139±0.019
         64 kin40k    -1.654±0.045 -1.682±0.110  0.298±0.970 -0.952±0.059
         64 pol        2.206±0.299  2.171±0.250  1.610±0.128  2.413±0.069
         64 protein    0.325±0.013  0.381±0.060  0.659±0.104  0.618±0.021
        128 bike      -1.340±0.039 -1.358±0.029 -0.832±0.231 -1.311±0.126
        128 elevators -1.678±0.018 -1.399±0.022  0.044±0.003 -1.173±0.005
        128 kin40k    -1.590±0.024 -1.618±0.030  0.003±0.536 -1.224±0.038
        128 pol        2.215±0.156  2.150±0.140  1.583±0.014  2.223±0.037
        128 protein    0.289±0.008  0.327±0.010  0.709±0.069  0.576±0.003
    """,
    ("nlml", "gaussian"): """  Table 3
         16 bike      -1.013±0.082 -1.005±0.040 -1.038±0.029  0.105±0.107
         16 elevators -1.094±0.018 -1.135±0.009 -0.915±0.012 -1.081±0.014
         16 kin40k    -1.559±0.015 -1.606±0.031 -0.697±0.027 -0.515±0.042
         16 pol        2.066±0.029  1.980±0.027  1.892±0.035  2.656±0.192
         16 protein    0.485±0.007  0.476±0.007  0.625±0.016  0.716±0.010
         32 bike      -0.929±0.023 -0.968±0.065 -1.098±0.030  0.083±0.055
         32 elevators -1.042±0.023 -1.111±0.016 -0.926±0.007 -1.092±0.011
         32 kin40k    -1.585±0.018 -1.571±0.017 -0.796±0.031 -0.695±0.021
         32 pol        2.115±0.027  2.112±0.029  1.807±0.023  2.521±0.192
         32 protein    0.479±0.008  0.479±0.004  0.595±0.006  0.674±0.009
         64 bike      -0.912±0.035 -0.946±0.049 -1.153±0.011 -0.114±0.060
         64 elevators -0.988±0.013 -1.056±0.018 -0.932±0.004 -1.111±0.007
         64 kin40k    -1.547±0.022 -1.539±0.039 -0.864±0.026 -0.947±0.040
         64 pol        2.433±0.081  2.399±0.059  1.754±0.023  2.237±0.030
         64 protein    0.479±0.007  0.474±0.007  0.585±0.011  0.644±0.011
    """,
    ("rmse", "linear"): """  Table 4
         32 bike       0.099±0.011  0.095±0.007  0.093±0.055  0.082±0.073
         32 elevators  0.111±0.008  0.158±0.114  0.217±0.071  0.090±0.003
         32 kin40k     0.061±0.012  0.056±0.011  0.651±0.310  0.126±0.010
         32 pol        2.280±0.130  2.328±0.123  2.593±0.174  3.402±0.152
         32 protein    0.426±0.024  0.428±0.023  0.550±0.079  0.483±0.006
         64 bike       0.112±0.012  0.108±0.012  0.127±0.054  0.078±0.064
         64 elevators  0.111±0.013  0.114±0.023  0.216±0.071  0.094±0.010
         64 kin40k     0.065±0.015  0.060±0.010  0.443±0.338  0.097±0.009
         64 pol        2.449±0.160  2.263±0.151  2.415±0.115  3.067±0.145
         64 protein    0.430±0.007  0.426±0.021  0.494±0.046  0.473±0.003
        128 bike       0.125±0.005  0.123±0.011  0.111±0.024  0.056±0.004
        128 elevators  0.110±0.004  0.101±0.002  0.250±0.007  0.091±0.003
        128 kin40k     0.073±0.002  0.071±0.003  0.283±0.193  0.078±0.003
        128 pol        2.469±0.174  2.413±0.234  2.537±0.094  2.642±0.110
        128 protein    0.435±0.009  0.436±0.009  0.513±0.023  0.461±0.006
    """,
    ("rmse", "gaussian"): """  Table 5
         16 bike       0.081±0.012  0.096±0.022  0.046±0.007  0.220±0.014
         16 elevators  0.096±0.003  0.098±0.004  0.089±0.002  0.089±0.003
         16 kin40k     0.039±0.002  0.040±0.002  0.110±0.007  0.147±0.007
         16 pol        2.212±0.146  2.200±0.104  2.674±0.081  3.774±0.440
         16 protein    0.387±0.009  0.388±0.009  0.471±0.008  0.507±0.012
         32 bike       0.093±0.010  0.095±0.012  0.047±0.010  0.235±0.024
         32 elevators  0.100±0.004  0.098±0.004  0.088±0.003  0.089±0.002
         32 kin40k     0.039±0.002  0.039±0.001  0.096±0.005  0.124±0.003
         32 pol        2.210±0.133  2.209±0.080  2.552±0.117  3.338±0.151
         32 protein    0.387±0.008  0.389±0.010  0.461±0.009  0.493±0.007
         64 bike       0.101±0.008  0.106±0.014  0.035±0.001  0.209±0.009
         64 elevators  0.089±0.003  0.098±0.007  0.088±0.003  0.088±0.003
         64 kin40k     0.041±0.001  0.041±0.002  0.088±0.005  0.096±0.003
         64 pol        2.348±0.077  2.353±0.088  2.512±0.081  3.020±0.071
         64 protein    0.388±0.008  0.389±0.005  0.456±0.005  0.481±0.004
    """,
}


def scgd_table(measure: str, kernel: str) -> dict[tuple[int, str, str], Published]:
    """Published ``measure`` ("nlml", "rmse") with ``kernel``, by (batch size, set, method)."""
    table = {}
    for line in SCGD_TABLES[measure, kernel].splitlines()[1:-1]:
        batch_size, name, figures = line.split(maxsplit=2)
        for method, figure in zip(SCGD_METHODS, figures.split(), strict=True):
            table[int(batch_size), name, method] = Published(*map(float, figure.split("±")))
    return table


# Test log-likelihoods, negated, on the twenty splits of Gal and Ghahramani, "Dropout as a Bayesian
# Approximation" (2016), in nats per row of the target in its own units: the best without
# pretraining ("published") and TabPFN v2's, as issue 28 of this project collected them. wine_red's
# targets lie on a lattice, on which densities can be made as large as one likes.
GAL_NLL: dict[str, dict[str, float]] = {
    "boston": {"published": 2.35},
    "concrete": {"published": 2.83, "TabPFN v2": 2.21},
    "energy": {"published": 0.53, "TabPFN v2": 0.15},
    "power": {"published": 2.60, "TabPFN v2": 2.28},
    "yacht": {"published": 0.16, "TabPFN v2": -0.73},
    "wine_red": {"published": 0.89},
}
