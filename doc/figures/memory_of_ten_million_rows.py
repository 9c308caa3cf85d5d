"""Peak memory of fits to ten million rows of Parquet files (bench_out_of_core.py)."""

from results import OTHERS, OURS, read, subplots

table = read("out_of_core").set_index("task")
figure, axis = subplots(figsize=(7, 2))
colors = [OTHERS if "bare" in task else OURS for task in table.index]
axis.barh(table.index, table["peak_mb"], color=colors)
for place, (_, row) in enumerate(table.iterrows()):
    axis.annotate(f" {row['seconds']:.0f} s", (row["peak_mb"], place), va="center", fontsize=9)
axis.invert_yaxis()
axis.set_xlabel("peak memory of the process in MB; at the bars: seconds")
