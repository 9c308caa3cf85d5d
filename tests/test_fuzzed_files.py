"""Files edited at random, with the right digest: no crash, no hang, no more memory than promised.

``SKGPSTOCH_FUZZED=100000 python -m pytest -m slow tests/test_fuzzed_files.py`` reads so many.
"""

import os
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from conftest import ESTIMATORS, IMAGES, constructor
from fuzzed import Fuzzer, Reader
from sklearn import config_context
from sklearn.base import is_classifier
from sklearn.preprocessing import FunctionTransformer

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    GaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.training import checkpoint
from skgpstoch.training.checkpoint import Checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures with /proc"),
    pytest.mark.filterwarnings("ignore"),  # few rows, few iterations
]
N_FILES = int(os.environ.get("SKGPSTOCH_FUZZED", "600"))
MOST_SECONDS = 5.0
FREE_BYTES = 200e6

RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (40, 4))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(40)
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(
    level=pd.Categorical(RNG.choice([1, 2], 40)),
    text=RNG.choice(["u", "v"], 40),
    day=pd.date_range("2020-01-01", periods=40),
)


def models():
    """One of each class, and some with parts that few have."""
    for cls in ESTIMATORS:
        shape = {"image_shape": (2, 2), "patch_shape": (2, 1)} if cls in IMAGES else {}
        yield constructor(cls)(**shape), X
    for cls in (AutoGaussianProcessRegressor, AutoGaussianProcessClassifier):
        yield cls(random_state=0), FRAME
    quick = {"n_inducing": 5, "max_iter": 2}
    twister = np.random.RandomState(0)
    yield GaussianProcessRegressor(alpha=0.1, optimizer=None, random_state=twister), X
    transform = FunctionTransformer(np.log1p, np.expm1)
    yield SVGPRegressor(**quick, random_state=twister, target_transform=transform), X
    with config_context(enable_metadata_routing=True):
        yield SVGPRegressor(**quick).set_fit_request(sample_weight=True), X


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    for i, (model, rows) in enumerate(models()):
        y = np.where(Y > 0, "up", "down") if is_classifier(model) else np.abs(Y)
        model.fit(rows, y).save(folder / str(i))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Of Adam, L-BFGS and natural gradients."""
    folder = tmp_path_factory.mktemp("seeds")
    found = {"scgd": SCGDGaussianProcessRegressor(hidden_layer_sizes=(4,), max_iter=2)}
    found |= {s: SVGPRegressor(n_inducing=4, max_iter=2, solver=s) for s in ("lbfgs", "natural")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(Checkpoint, "remove", lambda self: None)
        for model in found.values():
            model.set_params(checkpoint_dir=folder, random_state=0).fit(X, Y)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_edited_files_do_no_harm(kind, request, tmp_path):
    paths = request.getfixturevalue({"model": "seeds", "checkpoint": "checkpoints"}[kind])
    seed = int(os.environ.get("SKGPSTOCH_SEED", "0"))
    fuzzer, reader = Fuzzer(paths, np.random.default_rng(seed)), Reader()
    path = tmp_path / "fit.safetensors"
    path.write_bytes(paths[0].read_bytes())
    reader.read(kind, path)  # imports what is imported once
    outcomes, harm = Counter(), []
    n_files = N_FILES if kind == "model" else N_FILES // 4
    for i in range(n_files):
        fuzzer.write(path)
        found = reader.read(kind, path)
        outcomes[found["outcome"]] += 1
        does_harm = (
            found["outcome"].startswith(("crashed", "hung", "raised"))
            or found["seconds"] > MOST_SECONDS
            or found["bytes"] > 4 * path.stat().st_size + FREE_BYTES
        )
        if does_harm:
            harm.append((i, found))
            kept = os.environ.get("SKGPSTOCH_KEPT")
            if kept:
                path.rename(f"{kept}/{kind}-{seed}-{i}")
    reader.close()
    print(kind, dict(outcomes))
    assert not harm, harm[:20]
    assert outcomes["refused"] > n_files // 3
    assert len(outcomes) > 1
