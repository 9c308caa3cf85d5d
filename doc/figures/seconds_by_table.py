"""Median seconds of a fit, ours and the rivals' (bench_density.py, bench_frames.py)."""

from results import OTHERS, OURS, RIVALS, by_table, subplots

seconds = by_table("cpu_s").median()[["auto", *RIVALS]].rename({"auto": "ours", **RIVALS})
figure, axis = subplots(figsize=(7.5, 1.8))
colors = [OURS if name == "ours" else OTHERS for name in seconds.index]
axis.barh(seconds.index, seconds, color=colors)
axis.set_xscale("log")
axis.invert_yaxis()
axis.set_xlabel("median CPU seconds of a fit, nineteen tables of at most 2,500 rows")
