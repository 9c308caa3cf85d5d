"""Report on a fit: its models, their calibration, and what limits the predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc
from scipy.stats import norm

from ...data.findings import LONGEST_CELL, Finding
from ...data.held_out import HeldOutPredictions
from ...training.recipes.held_out import FEWEST_TESTED
from ...training.recipes.mean_findings import clear_z

N_GROUPS = 5
COVERAGES = (0.95, 0.8)
FEWEST_OF_CLASS = 10  # rows; with fewer, a class is rare
FEWEST_IN_GROUP = 4  # rows; if they do not suffice, there are fewer groups
JUDGED_COVERAGE = 0.9  # of the intervals whose coverage is tested in groups
N_TESTED = 10  # groups by the predicted std
MOST_REPORTED_LEVELS = 30  # levels that are listed: those that are farthest off
GROUPS = "coverage of groups"
ALL = "all"
ADVICE_BY_VERDICT = {
    "too narrow": "Add inputs that tell when y varies more, or fit this group on its own. "
    "More rows of the group help most.",
    "too wide": "If that matters, add inputs that tell when y varies less. More rows help, too.",
}
ADVICE_FOR_ALL = {
    "too narrow": "Check the coverage on new rows, because the mixture of all models may cover "
    "more than one that has not seen a row. If it does not, ask for a higher coverage.",
    "too wide": "Check the coverage on new rows. If it is too high there as well, ask for a lower "
    "coverage.",
}


def shown(number: float) -> str:
    """Return a number with three digits, or all integer digits of thousands."""
    return f"{number:.0f}" if abs(number) >= 1000.0 else f"{number:.3g}"


FORMAT: dict[str, Any] = {"index": False, "float_format": shown}


class Report(NamedTuple):
    """Four tables about a fit, as pandas frames.

    With `target_transform`, all but scores are of the transformed y.

    Parameters
    ----------
    leaderboard : DataFrame
        The models, the best first: "model", "score" (mean log density of rows held out, in nats per
        row), "common_score" (of the rows that all models have predicted), "weight" in the mixture,
        "mean_weight" in the mean if that has weights of its own, and "fit_time" in seconds.
    calibration : DataFrame
        Held-out rows in groups, by the predicted std and by the predicted mean ("by"), the lowest
        first ("group"): the number of rows ("n_rows"), means of the predictions
        ("mean_prediction", "mean_std"), the root mean squared error ("rmse"), and the shares inside
        central intervals ("coverage_95", "coverage_80"), but for counts. For classes: rows in
        groups by the largest probability, and all rows for each class ("by": "confidence" or
        "class"); the mean probability ("mean_prediction"), how often it was that class ("share"),
        and the standard deviation of this share by chance alone ("chance").
    limits : DataFrame
        What keeps predictions from being better: "limit", its "share", and "advice".
    coverage : DataFrame or None
        The share of held-out rows inside 90 % intervals ("coverage_90"): of all rows, of tenths by
        the predicted std, lowest first, and by category ("by" and "group"), of at most 30 levels,
        those that are farthest off. Beside it are the number of rows ("n_rows"), the standard
        deviation of this share by chance alone ("chance"), how far off it is in such deviations
        ("z"), and whether intervals are clearly too narrow or too wide ("verdict"). If those of all
        rows are, groups are compared with all rows. None for classes and counts.
    """

    leaderboard: Any
    calibration: Any
    limits: Any
    coverage: Any = None

    def __str__(self) -> str:
        return "\n\n".join(
            f"{name.capitalize()}\n{table.to_string(**FORMAT, max_colwidth=LONGEST_CELL)}"
            for name, table in self._tables()
        )

    def _repr_html_(self) -> str:
        """Show the tables in a notebook."""
        return "".join(
            f"<h4>{name.capitalize()}</h4>{table.to_html(**FORMAT)}"
            for name, table in self._tables()
        )

    def _tables(self) -> list[tuple[str, Any]]:
        """Return the tables that there are, by name."""
        return [(name, table) for name, table in self._asdict().items() if table is not None]


def calibration_by_group(held_out: HeldOutPredictions, weight: np.ndarray) -> list[dict[str, Any]]:
    """Return a line for each group of held-out rows, by predicted std and mean.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Predictions of m rows.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
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


def groups(
    key: np.ndarray, weight: np.ndarray, most: int = N_GROUPS, fewest_rows: int = FEWEST_IN_GROUP
) -> Iterator[np.ndarray]:
    """Yield the numbers of rows in groups of about the same weight, ordered by a key."""
    order = np.argsort(key, kind="stable")
    n_groups = int(np.clip(weight.sum() // fewest_rows, 1, most))
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

    unit = np.abs(error).max() or 1.0  # squares of very small or large numbers under- or overflow
    scores = {
        "n_rows": float(weight.sum()),
        "mean_prediction": average(mean),
        "mean_std": average(std),
        "rmse": unit * np.sqrt(average((error / unit) ** 2)),
    }
    if np.isnan(cdf).any():  # of counts
        return scores
    inside = {
        f"coverage_{100 * coverage:.0f}": average(np.abs(cdf - 0.5) <= 0.5 * coverage)
        for coverage in COVERAGES
    }
    return scores | inside


# ---- coverage of groups --------------------------------------------------------------------------


def coverage_by_group(
    held_out: HeldOutPredictions,
    weight: np.ndarray,
    rows_by_level: Iterable[tuple[str, Any, np.ndarray]] = (),
) -> list[dict[str, Any]]:
    """Return a line for all held-out rows, and for groups by predicted std and by category.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Predictions of m rows.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
    rows_by_level : iterable of (str, object, ndarray of shape (m,))
        Names of columns, levels, and which rows have them.

    Returns
    -------
    lines : list of dict
        Groups of 30 rows or more; of levels, at most the 30 that are farthest off.
    """
    n_outputs, by_level = held_out.cdf.shape[1], list(rows_by_level)
    lines: list[dict[str, Any]] = []
    for output, (cdf, std) in enumerate(zip(held_out.cdf.T, held_out.std.T, strict=True)):
        if np.isnan(cdf).any():  # of counts
            continue
        tenths = enumerate(groups(std, weight, N_TESTED, FEWEST_TESTED), 1)
        several = {"output": output} if n_outputs > 1 else {}
        tested = [
            (ALL, "rows", np.arange(len(cdf))),
            *(("std", tenth, rows) for tenth, rows in tenths),
            *(
                (f"column {name}", "missing" if level is None else level, np.flatnonzero(has_it))
                for name, level, has_it in by_level
            ),
        ]
        tested = [each for each in tested if weight[each[2]].sum() >= FEWEST_TESTED]
        limit, expected = clear_z(n_outputs * len(tested)), JUDGED_COVERAGE
        for by, group, rows in tested:
            found = tested_coverage(cdf[rows], weight[rows], expected)
            is_off = abs(found["z"]) > limit
            verdict = ("too narrow" if found["z"] < 0.0 else "too wide") if is_off else ""
            if by == ALL and is_off:
                least = 0.5 / found["n_rows"]  # of none or all rows
                expected = float(np.clip(found["coverage_90"], least, 1.0 - least))
            lines.append(several | {"by": by, "group": group} | found | {"verdict": verdict})
    levels = [i for i, line in enumerate(lines) if line["by"] not in (ALL, "std")]
    near = sorted(levels, key=lambda i: -abs(lines[i]["z"]))[MOST_REPORTED_LEVELS:]
    return [line for i, line in enumerate(lines) if i not in set(near)]


def tested_coverage(cdf: np.ndarray, weight: np.ndarray, expected: float) -> dict[str, float]:
    """Return how often rows of a group, (m,), are inside their intervals, and how sure that is."""
    n, p = float(weight.sum()), JUDGED_COVERAGE
    share = float(np.average(np.abs(cdf - 0.5) <= 0.5 * p, weights=weight))
    chance = float(np.sqrt(expected * (1.0 - expected) / n))
    z = binomial_z(share * n, n, expected)
    return {"n_rows": n, "coverage_90": share, "chance": chance, "z": z}


def binomial_z(k: float, n: float, p: float) -> float:
    """Return the standard normal number that is as unlikely as k of n successes, or 0."""
    fewer = betainc(n - k, k + 1.0, 1.0 - p) if k < n else 1.0  # P(K ≤ k)
    more = betainc(k, n - k + 1.0, p) if k > 0.0 else 1.0  # P(K ≥ k)
    fewer, more = np.maximum([fewer, more], np.finfo(float).tiny)  # of many rows they vanish
    return float(min(norm.ppf(fewer), 0.0) + max(norm.isf(more), 0.0))


def of_coverage(lines: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield groups whose intervals are clearly too narrow or too wide, or one finding of none.

    Parameters
    ----------
    lines : list of dict
        As :func:`coverage_by_group` returns them.
    """
    if not lines:
        return
    limit = clear_z(len(lines))
    off = [line for line in lines if line["verdict"]]
    if not off:
        yield Finding(GROUPS, "X", max(abs(line["z"]) for line in lines), limit)
    of_all = {line.get("output"): line["coverage_90"] for line in off if line["by"] == ALL}
    for line in off:
        by, group, verdict = line["by"], line["group"], line["verdict"]
        expected = JUDGED_COVERAGE if by == ALL else of_all.get(line.get("output"), JUDGED_COVERAGE)
        rows = {ALL: "", "std": f" of group {group} by predicted std"}.get(
            by, f" where {by} is {group!r}"
        )
        output = f" of output {line['output']}" if "output" in line else ""
        text = (
            f"{JUDGED_COVERAGE:.0%} intervals{output} cover {line['coverage_90']:.1%} of the "
            f"{line['n_rows']:.0f} held-out rows{rows} (chance: "
            f"{expected:.0%} ± {line['chance']:.1%}), so they are {verdict}"
            f"{'' if by == ALL else ' there'}."
        )
        advice = (ADVICE_FOR_ALL if by == ALL else ADVICE_BY_VERDICT)[verdict]
        yield Finding(GROUPS, f"{by}: {group}{output}", abs(line["z"]), limit, "note", text, advice)


def limits(held_out: HeldOutPredictions, weight: np.ndarray, done: float) -> list[dict[str, Any]]:
    """Return what keeps predictions from being better.

    Parameters
    ----------
    held_out : HeldOutPredictions
        Predictions of m rows.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
    done : float
        The share of the planned training for which there was time.
    """
    unit = held_out.std.max(0)  # squares of very small or large numbers under- or overflow
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
        Predictions of m rows.
    weight : ndarray of shape (m,)
        How many rows each row counts for.
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
    is_time = classes.dtype.kind in "mM"  # a list of these has Python's dates, which no file has
    labels = classes if is_time else classes.tolist()
    return lines + [
        {"by": "class", "group": label} | share_scores(p[:, c], own[:, c], weight)
        for c, label in enumerate(labels)
    ]


def share_scores(p: np.ndarray, happened: np.ndarray, weight: np.ndarray) -> dict[str, float]:
    """Return how often events with these probabilities, (m,), happened."""
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
    """Return the share of training that the budget has cut."""
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
