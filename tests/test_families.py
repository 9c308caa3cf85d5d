"""Every estimator is in a family, and every class keeps some promise for its family."""

from pathlib import Path

import pytest
from conftest import PUBLIC
from families import FAMILIES, PROMISES, by_family, named, representatives

MEMBERS = [cls for family in FAMILIES.values() for cls in family]


def test_every_public_estimator_is_in_one_family():
    assert {cls for cls in PUBLIC if hasattr(cls, "fit")} <= set(MEMBERS)
    assert len(set(MEMBERS)) == len(MEMBERS)


@pytest.mark.parametrize("cls", MEMBERS, ids=named)
def test_every_class_stands_for_its_family_in_some_promise(cls):
    assert any(cls in representatives(turn, MEMBERS) for turn in range(len(PROMISES)))


def test_every_promise_is_tested():
    folder = Path(__file__).parent
    paths = [folder / "conftest.py", *folder.rglob("test_*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert [promise for promise in PROMISES if f'"{promise}"' not in text] == []


@pytest.mark.parametrize("promise", PROMISES)
def test_the_default_run_has_one_class_a_family_and_both_runs_have_all(promise):
    params = by_family(promise, MEMBERS)
    assert [param.values[0] for param in params] == MEMBERS
    quick = [param.values[0] for param in params if not param.marks]
    assert [sum(cls in family for cls in quick) for family in FAMILIES.values()] == [1] * len(
        FAMILIES
    )
