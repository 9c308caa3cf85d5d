"""Fit to Dask arrays and frames on the workers that hold them; needs dask and distributed.

Each worker that has rows is a rank of a :func:`~skgpstoch.distributed.process_group`, made for one
fit and destroyed at its end. Rows go from worker to worker, never to the caller, who gets an
ordinary estimator.
"""

try:
    from .fitting import fit
    from .predictions import predict
except ModuleNotFoundError as error:
    raise ImportError(
        "skgpstoch.dask needs Dask. Install it with `pip install "
        "'dask[array,dataframe]' distributed`."
    ) from error

__all__ = ["fit", "predict"]
