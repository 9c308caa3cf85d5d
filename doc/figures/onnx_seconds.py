"""Seconds of 10,000 predictions in ONNX Runtime and here (bench_onnx.py)."""

from results import OTHERS, OURS, read, subplots

table = read("bench_onnx").set_index("model")
figure, axis = subplots(figsize=(7, 0.4 * len(table) + 1))
table[["onnx_s", "predict_s"]].rename(
    columns={"onnx_s": "ONNX Runtime", "predict_s": "predict(X, return_std=True)"}
).plot.barh(ax=axis, color=[OURS, OTHERS])
axis.set_ylabel("")
axis.invert_yaxis()
axis.set_xlabel("seconds of 10,000 rows, one thread")
