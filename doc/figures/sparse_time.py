"""NLPD by seconds of training, 512 inducing points on kin40k (bench_svgp_time.py)."""

from results import OURS, read, subplots

names = {
    "SVGPRegressor": "SVGPRegressor",
    "SVGP natural 0.01": "GPyTorch, natural gradients",
    "SVGP Adam 0.03": "GPyTorch, Adam",
}
table = read("bench_svgp_time")
figure, axis = subplots(figsize=(7, 2.8))
for method, name in names.items():
    rows = table[table["method"] == method].sort_values("wall_s")
    best = rows.groupby("budget_s").last() if method == "SVGPRegressor" else rows
    style = {"color": OURS, "marker": "o"} if method == "SVGPRegressor" else {"color": "0.5"}
    axis.plot(best["wall_s"], best["nlpd"], **style)
    end = best.iloc[-1]
    axis.annotate(f" {name}", (end["wall_s"], end["nlpd"]), va="center", fontsize=8)
axis.set_xlim(0, 85)
axis.set_xlabel("seconds of training")
axis.set_ylabel("NLPD, nats per row")
