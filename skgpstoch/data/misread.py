"""Tell of strings that are numbers or dates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from .columns import DATE, DURATION, LEVEL, NUMBER, Column
from .messages import warn

LEAST_NUMBERS = 20  # least number of levels that read as numbers, to warn of strings as numbers
NUMBERS_SHARE = 0.8  # least share of such levels
N_MONTHS = 12
LEAST_DATES = 5  # least number of levels, all of them dates, to warn of strings as dates
STANDS_FOR_MISSING = {"", "-", "--", "?", ".", "na", "n/a", "#n/a", "nan", "nat", "none", "null"}
STANDS_FOR_MISSING |= {"missing", "unknown"}

CONVERSIONS = {
    NUMBER: ", for example with pandas.to_numeric",
    DATE: ", for example with pandas.to_datetime",
    DURATION: ", for example with pandas.to_timedelta(column, unit='s') if it holds seconds",
}

CLOCK = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d+)?)?( ?[ap]\.?m\.?)?"
YEAR, OF_MONTH = r"(\d{4}|\d{2})", r"(0?[1-9]|[12]\d|3[01])"  # months, too, as places differ
MONTH = (
    r"(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?"
    r"|nov(ember)?|dec(ember)?)\.?"
)
FORMS_OF_DATES = (
    rf"\d{{4}}(?P<a>[./-]){OF_MONTH}(?P=a){OF_MONTH}",
    rf"(?P<first>{OF_MONTH})(?P<b>[./-]){OF_MONTH}(?P=b){YEAR}",
    rf"{OF_MONTH}(st|nd|rd|th|\.)?[ -]{MONTH},?[ -]{YEAR}",
    rf"{MONTH},?[ -]({OF_MONTH}(st|nd|rd|th)?,? )?(19|20)\d{{2}}",
    r"(19|20)\d{2}((0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|[./-](0?[1-9]|1[0-2]))",
)
WEEKDAY = r"((mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?"
WRITTEN_DATE = re.compile(
    rf"{WEEKDAY}({'|'.join(FORMS_OF_DATES)})([ T]{CLOCK})?|(?P<time>{CLOCK})", re.IGNORECASE
)
WRITTEN_NUMBER = re.compile(
    r"[-+]?(?P<before>[$€£¥₹]? ?)"
    r"[-+]?(\d{1,3}(?P<mark>[ \u00a0\u202f.,'’])\d{3}((?P=mark)\d{3})*|\d+)((?P<point>[.,])\d+)?"
    r"(?P<after> ?[^\s\d.,;:/+-][^\s\d.,;:]{0,7})?"
)


def warn_of_texts(column: Column) -> None:
    """Warn of a column of strings, most of which read as numbers, or all of which are dates."""
    if (told := told_of_texts(column)) is not None:
        warn(told)


def told_of_texts(column: Column) -> str | None:
    """Say what strings seem to be, and how to convert them; None if they are categories.

    Whole numbers may be codes such as postcodes, unless all have a unit.
    """
    if column.kind != LEVEL or column.order:
        return None
    texts = [level for level in column.levels if isinstance(level, str)]
    known = [text for text in texts if text.lower() not in STANDS_FOR_MISSING]
    if len(known) >= LEAST_DATES and all(map(is_date, known)):  # such as pandas.read_csv returns
        return (
            f"Column {column.name} of X holds dates or times as strings, such as {min(known)!r}. "
            "They are treated as categories. If that is not meant, convert the column, for example "
            f"with {conversion_of_dates(known, len(known) < len(texts))}."
        )
    (affixes, n_alike), *_ = Counter(map(affixes_of, texts)).most_common(1) or [(None, 0)]
    if affixes is None or n_alike < max(LEAST_NUMBERS, NUMBERS_SHARE * len(texts)):
        return None
    others = sorted(text for text in texts if affixes_of(text) != affixes)
    are_codes = not any(affixes) and not any(mark in text for text in texts for mark in ".,")
    if are_codes and not STANDS_FOR_MISSING.intersection(map(str.lower, others)):
        return None
    but = f" (not {others[0]!r}, for example)" if others else ""
    cure = conversion_of_numbers([text for text in texts if affixes_of(text) == affixes], *affixes)
    return (
        f"Column {column.name} of X holds {len(texts)} different strings, and "
        f"{n_alike} of them read as numbers{but}. They are treated as categories. "
        f"If they are numbers, convert the column, for example with {cure}; "
        "if they are categories, add the column to categorical_features."
    )


def cure_of(column: Column, kind: str) -> str:
    """Say how to convert a column to the kind that it had in training rows, if that is known."""
    texts = [level for level in column.levels if isinstance(level, str)]
    (affixes, _), *_ = Counter(map(affixes_of, texts)).most_common(1) or [(None, 0)]
    if kind == NUMBER and texts and {"true", "false"}.issuperset(map(str.lower, texts)):
        return ", for example with column.str.lower() == 'true'"
    if kind == NUMBER and affixes is not None:
        return f", for example with {conversion_of_numbers(texts, *affixes)}"
    return CONVERSIONS.get(kind, "")


def affixes_of(text: str) -> tuple[str, str] | None:
    """Return what is before and after a number, such as a unit; None if a string holds none."""
    if is_number(text):
        return "", ""
    found = WRITTEN_NUMBER.fullmatch(text.strip())
    return None if found is None else (found["before"], found["after"] or "")


def conversion_of_numbers(texts: Sequence[str], before: str, after: str) -> str:
    """Return code that converts a column of such strings to numbers."""
    found = [match for match in map(WRITTEN_NUMBER.fullmatch, map(str.strip, texts)) if match]
    points, marks = ({match[kind] for match in found} - {None} for kind in ("point", "mark"))
    steps = ".str.strip()" if any(text != text.strip() for text in texts) else ""
    steps += f".str.replace({before!r}, '')" if before else ""
    steps += f".str.removesuffix({after!r})" if after else ""
    if "," not in points and all(text.count(".") < 2 for text in texts):
        marks.discard(".")  # it is a point
    for mark in sorted(marks - points):
        steps += f".str.replace({mark!r}, '')"
    if "," in points:
        steps += ".str.replace(',', '.')"
    return f"pandas.to_numeric(column{steps}, errors='coerce')"


def conversion_of_dates(texts: Sequence[str], has_missing: bool) -> str:
    """Return code that converts a column of such strings to dates; times are those of one day."""
    found = [match for match in map(WRITTEN_DATE.fullmatch, map(str.strip, texts)) if match]
    options, coerced = "", ", errors='coerce'" * has_missing
    if found and all(match["time"] for match in found):
        time = found[0]["time"]
        seconds, half = ":%S" * (time.count(":") - 1), " %p" * time[-1].isalpha()
        options = f", format='%{'I' if half else 'H'}:%M{seconds}{half}'"
    elif any(match["first"] and int(match["first"]) > N_MONTHS for match in found):
        options = ", dayfirst=True"
    return f"pandas.to_datetime(column{options}{coerced})"


def is_number(text: str) -> bool:
    """Tell whether Python reads a string as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_date(text: str) -> bool:
    """Tell whether a string is a date, such as 2024-05-31 or 31.5.2024, or a time of day."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return WRITTEN_DATE.fullmatch(text.strip()) is not None
    return "W" not in text  # of weeks
