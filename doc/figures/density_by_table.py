"""How much more probable held-out rows are under ours, by table (bench_density, bench_frames)."""

from results import by_table, dots, subplots

nlpd = by_table("nlpd")
gain = nlpd.sub(nlpd["auto"], axis=0).sort_values("CatBoostConstant")

figure, axis = subplots(figsize=(7.5, 5))
axis.axvline(0, color="black", linewidth=1)
dots(axis, gain)
axis.set_xscale("symlog", linthresh=1, linscale=1.5)
axis.set_xticks([-0.5, 0, 0.5, 1, 2, 5], ["-0.5", "0", "0.5", "1", "2", "5"])
axis.set_xlabel("nats per row that the recommended default is ahead (right: ours is better)")
