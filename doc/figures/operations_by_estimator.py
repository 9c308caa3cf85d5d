"""Operations that a training step sends to the device (bench_traffic.py)."""

from results import OURS, read, subplots

table = read("bench_traffic")
table = table[table["unit"] == "step"].set_index("estimator")["operations"].sort_values()
figure, axis = subplots(figsize=(7, 0.22 * len(table) + 1))
axis.barh(table.index, table, color=OURS)
axis.set_xscale("log")
axis.set_xlabel("operations of a training step: each costs a GPU some 5 to 10 µs to start")
axis.tick_params(axis="y", labelsize=8)
