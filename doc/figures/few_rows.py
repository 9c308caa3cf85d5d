"""Median NLPD over ten tables by the number of rows, ours and the rivals' (bench_small.py)."""

from results import OURS, RIVALS, read, subplots

names = {"auto": "ours", "ExactARD": "exact process, one length-scale an input", **RIVALS}
nlpd = read("bench_small").pivot_table("nlpd", ["n", "set"], "model").groupby("n").median()
figure, axis = subplots(figsize=(7, 3))
for (model, name), marker, grey in zip(
    names.items(), "oDs^v", ("", "0.2", "0.4", "0.55", "0.7"), strict=True
):
    color = OURS if model == "auto" else grey
    axis.plot(nlpd.index, nlpd[model], marker=marker, color=color, label=name)
axis.set_xscale("log")
axis.set_xticks(nlpd.index, nlpd.index)
axis.minorticks_off()
axis.set_ylim(top=2.5)
axis.set_xlabel("training rows")
axis.set_ylabel("NLPD, nats per row")
axis.legend(frameon=False, fontsize=8)
