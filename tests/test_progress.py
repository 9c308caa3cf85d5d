"""The line of progress, by a pretended clock on a pretended terminal."""

import io
import multiprocessing
import sys
import types

import pytest

from skgpstoch import AutoGaussianProcessClassifier, AutoGaussianProcessRegressor, SVGPRegressor
from skgpstoch.data.deadline import Allowance, Deadline
from skgpstoch.training.history import History, Pace
from skgpstoch.training.observers import PAUSE, SILENT_SECONDS, ProgressLine, shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


def training(step=30, n_steps=120, allowance=None):
    history = History(loss_curve=[1.0, 0.9], scores=[0.51234], scored_epochs=[2])
    known = {"step": step, "n_steps": n_steps, "pace": Pace(allowance), "history": history}
    return types.SimpleNamespace(**known)


@pytest.fixture
def line():
    times = types.SimpleNamespace(now=50.0)
    line = ProgressLine(Terminal(), "SVGPRegressor", clock=lambda: times.now)
    line.times = times
    return line


def test_the_line_appears_after_a_while(line):
    line.on_step(training())
    line.times.now += 0.99 * SILENT_SECONDS
    line.on_step(training())
    line.on_end(training())
    assert line.stream.getvalue() == ""
    line.times.now += 0.02 * SILENT_SECONDS
    line.on_step(training())
    wanted = "\rSVGPRegressor: epoch 3, step 30 of 120, score 0.5123 (nats per row), 30 s left"
    assert line.stream.getvalue() == wanted


def test_it_is_updated_in_place_but_not_often(line):
    line.times.now += SILENT_SECONDS
    for _ in range(100):
        line.on_step(training())
        line.times.now += PAUSE / 10
    assert 9 <= line.stream.getvalue().count("\r") <= 11
    assert "\n" not in line.stream.getvalue()


def test_shorter_texts_leave_nothing_of_longer_ones(line):
    line.write("long text")
    line.write("short")
    line.on_end(training())
    assert line.stream.getvalue() == "\rlong text\rshort    \r     \r"


def test_a_deadline_says_how_much_time_is_left(line):
    line.times.now += SILENT_SECONDS
    line.on_step(training(allowance=Allowance(Deadline(line.times.now + 7.0, line.clock))))
    assert line.stream.getvalue().endswith(" 7 s left")


@pytest.mark.parametrize("cls", [AutoGaussianProcessRegressor, AutoGaussianProcessClassifier])
def test_defaults_have_it(cls):
    assert cls().verbose == "auto"


def test_it_is_for_those_who_can_see_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    for verbose, is_shown in (("auto", True), (0, False), (1, False)):
        found = shown("SVGPRegressor", verbose)
        assert any(isinstance(each, ProgressLine) for each in found) == is_shown
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert not shown("SVGPRegressor", "auto")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    assert shown("SVGPRegressor", "auto")
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "another")
    assert not shown("SVGPRegressor", "auto")


def test_fits_show_it_and_clean_up(monkeypatch, capsys):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("skgpstoch.training.observers.SILENT_SECONDS", 0.0)
    X = [[0.1 * i] for i in range(30)]
    model = SVGPRegressor(n_inducing=5, max_iter=3, solver="adam", verbose="auto", random_state=0)
    model.fit(X, [row[0] for row in X])
    assert "SVGPRegressor: epoch 1, step 1 of 3" in stream.getvalue()
    assert stream.getvalue().endswith(" \r")
    assert capsys.readouterr().out == ""
