"""How much more probable the held-out rows are under ours (bench_density.py, bench_frames.py)."""

import numpy as np
import pandas as pd
from results import read, subplots

rivals = {
    "CatBoostConstant": "CatBoost",
    "HistGradientBoosting": "boosted trees",
    "RealMLP": "RealMLP",
}
table = pd.concat([read("bench_density_2500"), read("bench_frames")])
nlpd = table[table["split"] == 0].pivot_table("nlpd", "set", "model")
gain = nlpd[list(rivals)].rsub(nlpd["auto"], axis=0).mul(-1).sort_values("CatBoostConstant")

figure, axis = subplots(figsize=(7.5, 5))
row = np.arange(len(gain))
axis.axvline(0, color="black", linewidth=1)
for (model, name), marker, grey in zip(rivals.items(), "os^", ("0.2", "0.5", "0.7"), strict=True):
    axis.plot(gain[model], row, marker, color=grey, label=name, markersize=6)
axis.set_yticks(row, gain.index)
axis.set_xscale("symlog", linthresh=1, linscale=1.5)
axis.set_xticks([-0.5, 0, 0.5, 1, 2, 5], ["-0.5", "0", "0.5", "1", "2", "5"])
axis.set_xlabel("nats per row that the recommended default is ahead (right: ours is better)")
axis.grid(axis="y", color="0.93")
axis.legend(frameon=False, loc="lower right")
