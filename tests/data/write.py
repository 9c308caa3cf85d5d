"""Write files of this version, which later versions have to load: `python tests/data/write.py`."""

from pathlib import Path

import numpy as np
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skgpstoch

HERE = Path(__file__).parent


def main() -> None:
    """Fit small models, and keep them with their predictions."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (40, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(40)
    quick = {"max_iter": 20, "random_state": 0}
    models = {
        "exact": skgpstoch.GaussianProcessRegressor(RBF([1.0, 1.0]) + WhiteKernel(0.1)),
        "sparse": skgpstoch.SVGPRegressor(n_inducing=10, **quick),
        "networks": skgpstoch.SCGDGaussianProcessRegressor(
            hidden_layer_sizes=(16,), n_estimators=2, **quick
        ),
    }
    for name, model in models.items():
        path = HERE / f"{name}-{skgpstoch.__version__}.safetensors"
        model.fit(X, y).save(path)
        mean, std = model.predict(X[:10], return_std=True)
        np.savez(path.with_suffix(".npz"), X=X[:10], mean=mean, std=std)


if __name__ == "__main__":
    main()
