"""Methods of single models that ensembles do not have."""

from __future__ import annotations

from typing import NoReturn

FITS_AGAIN = "its models are combined on held-out rows, so more rows need a new fit"
NO_FUNCTION = "it combines several models and has no single function f"


class Lacking:
    """Stands for a missing method: `hasattr` is False, and the error says what to use instead.

    Parameters
    ----------
    why : str
        Why there is no such method.
    instead : str
        What to call, or which class has it.
    """

    def __init__(self, why: str, instead: str) -> None:
        self.why, self.instead = why, instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, model: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"{owner.__name__} has no {self.name}: {self.why}. {self.instead}",
            name=self.name,
            obj=owner if model is None else model,
        )
