"""Share of flights inside 90 % intervals, by delay at departure (bench_coverage_by_group.py)."""

from results import OURS, read, subplots

table = read("coverage_by_group")
coverage = 100 * table.pivot_table("coverage", "group", "model", sort=False)
ours = "recommended default"
styles = {
    "boosted trees, conformal": ("0.35", "s", "--"),
    "boosted trees, quantiles": ("0.55", "^", ":"),
    "scikit-learn's process": ("0.7", "D", "-."),
}

figure, axis = subplots(figsize=(7.5, 3.8))
axis.axhline(90, color="black", linewidth=1)
axis.text(1.01, 90, "nominal", transform=axis.get_yaxis_transform(), va="center", fontsize=9)
for name, (color, marker, line) in styles.items():
    axis.plot(coverage.index, coverage[name], line, marker=marker, color=color, label=name)
axis.plot(
    coverage.index, coverage[ours], marker="o", color=OURS, linewidth=2.5, label=f"ours: {ours}"
)
axis.set_xlabel("flights by their delay at departure, in minutes")
axis.set_ylabel("% inside the 90 % interval")
axis.legend(frameon=False, loc="lower left", fontsize=9)
