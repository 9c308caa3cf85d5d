"""Rivals' error of the mean relative to ours, by table (bench_density.py, bench_frames.py)."""

from results import by_table, dots, subplots

rmse = by_table("rmse")
ratio = rmse.div(rmse["auto"], axis=0).sort_values("CatBoostConstant")

figure, axis = subplots(figsize=(7.5, 5))
axis.axvline(1, color="black", linewidth=1)
dots(axis, ratio)
axis.set_xscale("log")
axis.set_xticks([0.3, 0.5, 1, 2, 5], ["0.3", "0.5", "1", "2", "5"])
axis.minorticks_off()
axis.set_xlabel("RMSE divided by that of the recommended default (left: theirs is better)")
