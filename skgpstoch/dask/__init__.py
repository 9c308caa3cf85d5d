"""Fit to Dask arrays and frames on the workers that hold them; this needs dask and distributed.

Each worker that has rows becomes a rank of a :func:`~skgpstoch.distributed.process_group`, which is
made for one fit and destroyed at its end. Rows move only between workers, never to the caller. The
caller gets an ordinary fitted estimator.
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

for _name in __all__:  # pickles name the public path, wherever a class lives
    globals()[_name].__module__ = __name__
