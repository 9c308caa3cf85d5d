"""Seconds of scikit-learn's Gaussian processes over seconds of ours (bench_drop_in.py)."""

from results import OURS, read, subplots

names = {
    "small": "fit, few rows",
    "fit": "fit",
    "evaluation": "evidence and gradient",
    "predict": "predict with std",
    "classifier": "classifier, fit",
}
table = read("bench_drop_in").pivot_table("seconds", ["part", "n"], "peer")
ratio = (table["sklearn"] / table["skgpstoch"]).dropna()
labels = [f"{names[part]}, {n:,} rows" for part, n in ratio.index]
figure, axis = subplots(figsize=(7, 0.3 * len(ratio) + 0.8))
axis.barh(labels, ratio, color=OURS)
axis.axvline(1, color="black", linewidth=1)
axis.invert_yaxis()
axis.set_xlabel("times faster than scikit-learn, two threads")
