"""NLPD by seconds of training, kin40k with 36,000 rows (bench_time_to_accuracy.py)."""

from results import OURS, read, subplots

lines = {  # method in the CSV → label, place of the label beside the line's end
    "SCGD": ("SCGDGaussianProcessRegressor", OURS),
    "MLPRegressor": ("MLPRegressor,\none variance", "0.35"),
    "HistGradientBoosting": ("boosted trees,\none variance", "0.5"),
    "SVGP natural": ("GPyTorch's SVGP,\nnatural gradients", "0.35"),
    "SVGP Adam 0.1": ("GPyTorch's SVGP,\nAdam", "0.5"),
}
table = read("bench_time_to_accuracy")
figure, axis = subplots(figsize=(7.5, 3.8))
for method, (label, color) in lines.items():
    rows = table[table["method"] == method].sort_values("wall_s")
    axis.plot(rows["wall_s"], rows["nlpd"], color=color, linewidth=2.5 if color == OURS else 1.2)
    end = rows.iloc[-1]
    axis.annotate(
        label,
        (end["wall_s"], end["nlpd"]),
        xytext=(5, 0),
        textcoords="offset points",
        color=color,
        va="center",
        fontsize=8,
    )
axis.set_xscale("log")
axis.set_xlim(0.02, 1500)
axis.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
axis.set_xlabel("seconds of training")
axis.set_ylabel("NLPD of held-out rows, nats")
