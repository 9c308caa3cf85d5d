"""
=============================
One model, from two processes
=============================

Two processes fit one model. Both run the same program: each reads its own rows and calls ``fit`` in
a ``process_group``, and both get the same model. Here ``torchrun`` starts them on one machine; for
several machines, start it on each. Any other launcher works, too.
"""

# %%
# The program
# -----------
# Each rank reads its own half of the rows. Only the ``with`` block shows that there are other
# ranks.

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import skgpstoch
from skgpstoch import SVGPRegressor

PROGRAM = """
import sys

import numpy as np

from skgpstoch import SVGPRegressor
from skgpstoch.distributed import process_group

folder = sys.argv[1]
rows = np.load(f"{folder}/rows.npy", mmap_mode="r")
with process_group(timeout=60) as group:
    mine = np.array_split(rows, group.size)[group.rank]
    model = SVGPRegressor(n_inducing=30, solver="natural", max_iter=5, random_state=0)
    model.fit(mine[:, :1], mine[:, 1])
    print(f"rank {group.rank} of {group.size} had {len(mine)} rows")
if group.rank == 0:
    model.save(f"{folder}/model.safetensors")
"""

# %%
# The rows
# --------
# The first process sees only the left half of the function, the second only the right half.

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0.0, 10.0, 20_000))
y = np.sin(2.0 * x) + 0.3 * rng.standard_normal(len(x))

# %%
# Two processes
# -------------

with tempfile.TemporaryDirectory() as folder:
    np.save(Path(folder, "rows.npy"), np.column_stack([x, y]))
    Path(folder, "program.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", f"{folder}/program.py", folder]
    print(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    model = skgpstoch.load(Path(folder, "model.safetensors"))

# %%
# One process
# -----------
# One process has all rows, and makes other minibatches. The means of the two models differ by far
# less than the noise.

alone = SVGPRegressor(n_inducing=30, solver="natural", max_iter=5, random_state=0)
alone.fit(x[:, None], y)
X_new = np.linspace(0.0, 10.0, 400)[:, None]
mean, std = model.predict(X_new, return_std=True)
difference = np.abs(mean - alone.predict(X_new))
print(f"largest difference of means: {difference.max():.4f}, where the noise is {std.mean():.2f}")

# %%
# The function of both halves
# ---------------------------

fig, ax = plt.subplots(figsize=(7, 3.5))
shown = slice(None, None, 40)
ax.scatter(x[shown], y[shown], s=4, c=np.where(x[shown] < np.median(x), "C0", "C1"), alpha=0.6)
ax.plot(X_new[:, 0], mean, "k")
ax.fill_between(X_new[:, 0], mean - 2 * std, mean + 2 * std, color="k", alpha=0.15, lw=0)
ax.set(xlabel="x", ylabel="y", title="Rows of two processes, and the model of both")
plt.show()
