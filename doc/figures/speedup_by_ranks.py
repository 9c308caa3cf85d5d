"""Speedup of a training step by processes, from measured parts (bench_simulated_ranks.py)."""

from results import read, subplots

table = read("simulated_ranks")
table = table[(table["part"] == "simulated") & (table["network"] == "25 GbE")]
table = table[table["n_inducing"] == 512]
figure, axis = subplots(figsize=(7, 2.8))
for batch_size, rows in table.groupby("batch_size"):
    label = f"{int(batch_size):,} rows a step"
    axis.plot(rows["ranks"], rows["speedup"], "o-", label=label)
axis.plot([1, 64], [1, 64], "k--", linewidth=1, label="ideal")
axis.set_xscale("log", base=2)
axis.set_yscale("log", base=2)
axis.set_xticks([1, 2, 8, 64], ["1", "2", "8", "64"])
axis.set_yticks([1, 2, 8, 64], ["1", "2", "8", "64"])
axis.set_xlabel("processes (simulated; 512 inducing points, 25 GbE)")
axis.set_ylabel("speedup of a step")
axis.legend(frameon=False, fontsize=8)
