"""Log loss of rivals minus ours, by table (bench_probabilities.py)."""

from results import read, subplots

rivals = {
    "CatBoost": ("CatBoost", "0.2", "o"),
    "HistGradientBoosting": ("boosted trees", "0.4", "s"),
    "RealMLP": ("RealMLP", "0.6", "^"),
    "LogisticRegression": ("logistic regression", "0.75", "v"),
}
loss = read("bench_probabilities").pivot_table("log_loss", "set", "model")
behind = loss.sub(loss["auto"], axis=0).sort_values("CatBoost")

figure, axis = subplots(figsize=(7.5, 3.5))
axis.axvline(0, color="black", linewidth=1)
for model, (name, grey, marker) in rivals.items():
    axis.plot(behind[model], range(len(behind)), marker, color=grey, label=name)
axis.set_yticks(range(len(behind)), behind.index)
axis.grid(axis="y", color="0.93")
axis.set_xscale("symlog", linthresh=0.1)
axis.set_xticks([0, 0.05, 0.1, 0.2, 0.5], ["0", "0.05", "0.1", "0.2", "0.5"])
axis.set_xlabel("log loss less that of the recommended default (right: ours is better)")
axis.legend(frameon=False, fontsize=8, loc="lower right")
