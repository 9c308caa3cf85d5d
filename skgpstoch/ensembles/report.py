"""Report on a fit: its models, their calibration, and what limits the predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.held_out import HeldOutPredictions

N_GROUPS = 5
COVERAGES = (0.95, 0.8)
FORMAT: dict[str, Any] = {"index": False, "float_format": "{:.3g}".format}
FEWEST_OF_CLASS = 10  # rows, with fewer of which it is rare
FEWEST_IN_GROUP = 4  # rows, with fewer of which there are fewer groups


class Report(NamedTuple):
    """Three tables about a fit, as pandas frames.

    Parameters
    ----------
    leaderboard : DataFrame
        The models, the best first: "model", "score" (mean log density of rows held out, in nats per
        row), "weight" in the mixture, and "fit_time" in seconds.
    calibration : DataFrame
        Rows held out in groups, by the predicted std and by the predicted mean ("by"), the lowest
        first ("group"): how many rows count ("n_rows"), the mean of what is predicted
        ("mean_prediction", "mean_std"), the root of the mean squared error ("rmse"), and the shares
        inside the central intervals ("coverage_95", "coverage_80"). Of classes: rows in groups by
        the largest probability, and the probability of each class for all rows ("by": "confidence"
        or "class"), the mean probability ("mean_prediction"), how often it was that class
        ("share"), and the deviation of this share that chance alone would make ("chance").
    limits : DataFrame
        What keeps predictions from being better: "limit", its "share", and "advice".
    """

    leaderboard: Any
    calibration: Any
    limits: Any

    def __str__(self) -> str:
        return "\n\n".join(
            f"{name.capitalize()}\n{table.to_string(**FORMAT)}"
            for name, table in self._asdict().items()
        )

    def _repr_html_(self) -> str:
        """Show the tables in a notebook."""
        return "".join(
            f"<h4>{name.capitalize()}</h4>{table.to_html(**FORMAT)}"
            for name, table in self._asdict().items()
        )


def calibration_by_group(held_out: HeldOutPredictions, weight: np.ndarray) -> list[dict[str, Any]]:
    """Return a line for each group of rows that were held out, by predicted std and mean.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Of m rows.
    weight : ndarray of shape (m,)
        How many rows each counts for.
    """
    lines = []
    several = held_out.error.shape[1] > 1
    for output in range(held_out.error.shape[1]):
        columns = (held_out.error, held_out.std, held_out.mean, held_out.cdf)
        error, std, mean, cdf = (column[:, output] for column in columns)
        for by, key in (("std", std), ("mean", mean)):
            for group, rows in enumerate(groups(key, weight), 1):
                line = {"output": output} if several else {}
                lines.append(
                    line
                    | {"by": by, "group": group}
                    | group_scores(error[rows], std[rows], mean[rows], cdf[rows], weight[rows])
                )
    return lines


def groups(key: np.ndarray, weight: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers of rows in groups that count for about as many rows each, by a key."""
    order = np.argsort(key, kind="stable")
    n_groups = int(np.clip(weight.sum() // FEWEST_IN_GROUP, 1, N_GROUPS))
    below = np.cumsum(weight[order]) - 0.5 * weight[order]
    group = np.minimum((n_groups * below / weight.sum()).astype(int), n_groups - 1)
    for g in range(n_groups):
        if (group == g).any():
            yield order[group == g]


def group_scores(
    error: np.ndarray, std: np.ndarray, mean: np.ndarray, cdf: np.ndarray, weight: np.ndarray
) -> dict[str, float]:
    """Return how well the rows of a group, all (m,), are predicted."""

    def average(values: np.ndarray) -> float:
        return float(np.average(values, weights=weight))

    unit = np.abs(error).max() or 1.0  # squares of very small or large numbers are none
    scores = {
        "n_rows": float(weight.sum()),
        "mean_prediction": average(mean),
        "mean_std": average(std),
        "rmse": unit * np.sqrt(average((error / unit) ** 2)),
    }
    inside = {
        f"coverage_{100 * coverage:.0f}": average(np.abs(cdf - 0.5) <= 0.5 * coverage)
        for coverage in COVERAGES
    }
    return scores | inside


def limits(held_out: HeldOutPredictions, weight: np.ndarray, done: float) -> list[dict[str, Any]]:
    """Return what keeps predictions from being better.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Of m rows.
    weight : ndarray of shape (m,)
        How many rows each counts for.
    done : float
        The share of the planned training for which there was time.
    """
    unit = held_out.std.max(0)  # squares of very small or large numbers are none
    total = weight @ (held_out.std / unit) ** 2
    unknown = float((weight @ (held_out.latent_std / unit) ** 2 / total).mean())
    return [
        {
            "limit": "noise",
            "share": 1.0 - unknown,
            "advice": "share of the predicted variance that is noise: more rows would not lower "
            "it, other inputs might",
        },
        {
            "limit": "rows",
            "share": unknown,
            "advice": "share of the predicted variance that more rows would lower",
        },
        budget_limit(done),
    ]


def class_calibration(
    held_out: HeldOutPredictions, weight: np.ndarray, classes: np.ndarray
) -> list[dict[str, Any]]:
    """Return a line for each group of rows by confidence, and for each class.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Of m rows.
    weight : ndarray of shape (m,)
        How many rows each counts for.
    classes : ndarray of shape (n_classes,)
        Labels.
    """
    p, own = held_out.mean, held_out.mean + held_out.error
    best = p.argmax(1)[:, None]
    top, is_right = (np.take_along_axis(a, best, 1)[:, 0] for a in (p, own))
    lines = [
        {"by": "confidence", "group": group} | share_scores(top[g], is_right[g], weight[g])
        for group, g in enumerate(groups(top, weight), 1)
    ]
    return lines + [
        {"by": "class", "group": label} | share_scores(p[:, c], own[:, c], weight)
        for c, label in enumerate(classes.tolist())
    ]


def share_scores(p: np.ndarray, happened: np.ndarray, weight: np.ndarray) -> dict[str, float]:
    """Return how often what has these probabilities, (m,), happened."""
    total = float(weight.sum())
    return {
        "n_rows": total,
        "mean_prediction": float(weight @ p / total),
        "share": float(weight @ happened / total),
        "chance": float(np.sqrt(weight @ (p * (1.0 - p)))) / total,
    }


def class_limits(
    held_out: HeldOutPredictions, weight: np.ndarray, done: float
) -> list[dict[str, Any]]:
    """Return what keeps predictions of classes from being better, as :func:`limits` does."""
    missed = 1.0 - float(np.average(held_out.mean.max(1), weights=weight))
    counts = weight @ (held_out.mean + held_out.error)
    return [
        {
            "limit": "doubt",
            "share": missed,
            "advice": "expected share of wrong predictions, by the predicted probabilities; other "
            "inputs or more rows might lower it",
        },
        {
            "limit": "rare classes",
            "share": float((counts < FEWEST_OF_CLASS).mean()),
            "advice": f"share of the classes with fewer than {FEWEST_OF_CLASS} held-out rows; more "
            "rows of these classes might help",
        },
        budget_limit(done),
    ]


def budget_limit(done: float) -> dict[str, Any]:
    """Return what the budget has cost."""
    return {
        "limit": "budget",
        "share": 1.0 - done,
        "advice": "share of the planned training that max_time cut",
    }


def share_done(budget: dict[str, Any] | None) -> float:
    """Return the share of the planned training for which there was time."""
    if budget is None or budget["is_enough"]:
        return 1.0
    done = budget["n_steps"] * budget["n_estimators"]
    return float(done / (budget["all_steps"] * budget["all_estimators"]))
