"""NLPD of held-out rows by max_time, relative to the longest, by table (bench_anytime.py)."""

from results import read, subplots

table = read("bench_anytime")
table = table[table["model"] == "auto"]
nlpd = table.pivot_table("nlpd", "set", "budget")
nlpd = nlpd.drop(index=["bike", "pol", "wine"])  # whose targets repeat
behind = nlpd.sub(nlpd[nlpd.columns.max()], axis=0)
figure, axis = subplots(figsize=(7, 2.8))
for marker, (name, row) in zip("osD^vP*Xd", behind.iterrows(), strict=True):
    axis.plot(row.index, row, marker=marker, label=name, markersize=4)
axis.set_xscale("log")
axis.set_xticks(behind.columns, [f"{s} s" for s in behind.columns])
axis.minorticks_off()
axis.set_xlabel("max_time")
axis.set_ylabel("nats per row behind\nthe longest fit")
axis.legend(frameon=False, ncols=2)
