"""Ctrl-C: the first keeps the best so far, the second ends everything."""

import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from families import slow_cases
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV

from skgpstoch import (
    AutoGaussianProcessClassifier,
    AutoGaussianProcessRegressor,
    DeepGPRegressor,
    DeepKernelEnsembleClassifier,
    DeepKernelEnsembleRegressor,
    DLMRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    QSGPRegressor,
    SCGDGaussianProcessRegressor,
    StackedDensityRegressor,
    SVGPClassifier,
    on_interrupt,
)
from skgpstoch.estimators import first_rank
from skgpstoch.methods.automatic import class_fit, process, process_fit
from skgpstoch.methods.automatic.class_process import ExactProcessClassifier
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.objectives import optimal_q, variational
from skgpstoch.training import interrupts
from skgpstoch.training.interrupts import Record, keeps_best, one_fit, was_interrupted

pytestmark = pytest.mark.usefixtures("one_kernel")

X = np.linspace(-3.0, 3.0, 20)[:, None]
Y = np.sin(X[:, 0])


@pytest.fixture
def clock(monkeypatch):
    """A record that knows of nothing, somebody at the keyboard, and a clock that tests set."""
    now = [100.0]
    monkeypatch.setattr(interrupts, "RECORD", Record())
    monkeypatch.setattr(interrupts, "is_attended", lambda: True)
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of an interrupt that a test kept
        yield now


def interrupted_fit():
    """Whether an interrupt of a fit is kept."""
    with one_fit():
        return keeps_best()


# ---- the rule ----------------------------------------------------------------------------------


def test_the_second_in_one_fit_is_raised(clock):
    with one_fit():
        assert [keeps_best(), keeps_best()] == [True, False]


def test_nobody_keeps_the_second_whoever_catches_it(clock):
    """The default caught it once more, as the first, and returned without its networks."""
    with one_fit():
        assert [keeps_best() for _ in range(4)] == [True, False, False, False]


def test_the_second_in_a_series_of_fits_is_raised(clock):
    """However long each fit takes: what counts is that the next one begins at once."""
    assert interrupted_fit()
    for _ in range(5):
        with one_fit():
            clock[0] += 1000.0
        clock[0] += 5.0
    assert not interrupted_fit()


def test_a_fit_after_a_pause_is_another_matter(clock):
    assert interrupted_fit()
    clock[0] += 11.0
    assert interrupted_fit()


def test_after_one_that_was_raised_the_next_is_kept(clock):
    """Somebody who is back at the prompt and fits again at once."""
    assert [interrupted_fit() for _ in range(4)] == [True, False, True, False]


def test_fits_within_a_fit_are_one(clock):
    with one_fit():
        assert not was_interrupted()
        assert interrupted_fit()
        with one_fit():
            assert was_interrupted()
    with one_fit():
        assert not was_interrupted()


def test_nobody_at_the_keyboard_keeps_nothing(clock, monkeypatch):
    monkeypatch.setattr(interrupts, "is_attended", lambda: False)
    assert not interrupted_fit()
    with on_interrupt("keep"):
        assert [interrupted_fit() for _ in range(3)] == [True, False, False]
    assert not interrupted_fit()


def test_a_block_decides(clock):
    """However long a pause is: only the first in it is kept, or none."""
    with on_interrupt():
        assert interrupted_fit()
        clock[0] += 1000.0
        assert not interrupted_fit()
        with on_interrupt("raise"):
            assert not interrupted_fit()
        with on_interrupt("keep"):
            assert interrupted_fit()
        assert not interrupted_fit()
    assert interrupted_fit()


@pytest.mark.parametrize("action", ["keep", "raise"])
def test_a_block_hears_in_a_process_that_was_started_to_ignore(action):
    """As the shell starts `python train.py &` of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), on_interrupt(action), one_fit():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_action_is_checked():
    with pytest.raises(ValueError, match="action must be one of"), on_interrupt("ignore"):
        pass


# ---- fits --------------------------------------------------------------------------------------


def pressing(obj_func, initial_theta, bounds):
    """An optimizer of the exact search that is always interrupted."""
    obj_func(initial_theta)
    raise KeyboardInterrupt


def test_a_search_ends_at_the_second():
    """A loop of a hundred fits does not need a hundred presses."""
    calls = []

    def counted(obj_func, initial_theta, bounds):
        calls.append(0)
        pressing(obj_func, initial_theta, bounds)

    model = GaussianProcessRegressor(RBF(), optimizer=counted)
    search = GridSearchCV(model, {"alpha": np.logspace(-9, 0, 10)}, cv=10)
    kept = pytest.warns(
        ConvergenceWarning, match="Interrupt again to stop the fits that follow too"
    )
    with kept, pytest.raises(KeyboardInterrupt):
        search.fit(X, Y)
    assert len(calls) == 2


def test_raise_leaves_the_estimator_as_it_was():
    model = GaussianProcessRegressor(RBF(), optimizer=pressing)
    with on_interrupt("raise"), pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert not hasattr(model, "kernel_")


def test_no_networks_after_an_interrupted_process(monkeypatch):
    """The fit ends with the process, whose own search has kept its best."""
    fit = process.ExactProcessRegressor.fit

    def interrupted(*args, **kwargs):
        assert keeps_best()
        return fit(*args, **kwargs)

    monkeypatch.setattr(process.ExactProcessRegressor, "fit", interrupted)
    rows = np.linspace(-3.0, 3.0, 200)[:, None]
    with pytest.warns(ConvergenceWarning, match="best model so far") as said:
        model = AutoGaussianProcessRegressor(random_state=0).fit(rows, np.sin(rows[:, 0]))
    assert len(said) == 1
    assert list(model.estimators_) == ["process"]


@pytest.mark.slow
def test_the_default_within_a_stack_has_a_model_after_an_interrupt():
    """The stack was lost: no model of the default had begun."""
    pressed = GaussianProcessRegressor(RBF(), optimizer=pressing)
    stack = StackedDensityRegressor(
        [("pressed", pressed), ("default", AutoGaussianProcessRegressor(random_state=0))], cv=2
    )
    rows = np.linspace(-3.0, 3.0, 60)[:, None]
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="interrupted"):
        stack.fit(rows, np.sin(rows[:, 0]))
    assert np.isfinite(stack.log_predictive_density(rows, np.sin(rows[:, 0]))).all()


@pytest.mark.parametrize(
    ("cls", "module", "part"),
    [
        (ExactProcessRegressor, process_fit, "left_out_precisions"),
        (ExactProcessClassifier, class_fit, "find_modes"),
    ],
)
def test_an_interrupt_between_searches_keeps_a_process(cls, module, part, monkeypatch):
    computed, calls = getattr(module, part), []

    def interrupted(*args):
        calls.append(part)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return computed(*args)

    monkeypatch.setattr(module, part, interrupted)
    X = np.linspace(-1, 1, 40)[:, None]
    y = (X[:, 0] > 0.1).astype(int)
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="best model so far"):
        model = cls(random_state=0).fit(X, y)
    assert len(model.kernels_) == 1
    assert np.isfinite(model.log_predictive_density(X, y)).all()


@pytest.fixture
def python_handler():
    """Python's own handler of Ctrl-C, which workers of a test run may lack."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressing_when(name, n_times=1):
    """Return a trace function that presses Ctrl-C when a function of the package is entered."""
    presses = [signal.SIGINT] * n_times

    def trace(frame, event, arg):
        is_ours = "skgpstoch" in frame.f_code.co_filename and frame.f_code.co_name == name
        if is_ours and interrupts.RECORD.depth and presses:
            signal.raise_signal(presses.pop())

    return trace


def traced_fit(model, trace, y):
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return model.fit(CLOSING_X, y)
    finally:
        sys.settrace(before)


CLOSING_X = np.random.default_rng(0).normal(size=(40, 2))
REAL = np.sin(CLOSING_X[:, 0])
LABELS = (REAL > 0.1).astype(int)
QUICK = {"max_iter": 2, "random_state": 0}
CLOSINGS = {  # estimators, their targets, and functions of their closing passes
    DeepKernelEnsembleClassifier(n_estimators=2, **QUICK): (LABELS, ["calibrate", "_finish"]),
    DeepKernelEnsembleRegressor(n_estimators=2, **QUICK): (REAL, ["calibrate", "findings"]),
    SVGPClassifier(n_inducing=5, **QUICK): (LABELS, ["solution", "budget_of", "causes"]),
    SCGDGaussianProcessRegressor(**QUICK): (REAL, ["solution", "causes"]),
    DeepGPRegressor(n_inducing=5, **QUICK): (REAL, ["_finish", "of_rows"]),
    DLMRegressor(n_inducing=5, **QUICK): (REAL, ["_set_posterior", "_set_attributes"]),
    GaussianProcessClassifier(RBF()): (LABELS, ["_set_mode", "_findings"]),
    GaussianProcessClassifier(): (LABELS, ["_set_mode"]),  # its kernel is fixed
    GaussianProcessRegressor(RBF(), alpha=0.01): (REAL, ["_of_rows", "_findings"]),
    AutoGaussianProcessClassifier(random_state=0): (LABELS, ["weights_of", "_combine"]),
    AutoGaussianProcessRegressor(random_state=0): (REAL, ["stacking_weights", "weights_of"]),
}


@pytest.mark.parametrize(
    ("model", "y", "part"),
    [(model, y, part) for model, (y, parts) in CLOSINGS.items() for part in parts],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@slow_cases("AutoGaussian.*(_combine|stacking)", "findings", "causes")
def test_the_first_in_a_closing_pass_is_remembered(model, y, part, python_handler):
    trace = pressing_when(part)
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="interrupted after"):
        assert np.isfinite(traced_fit(clone(model), trace, y).predict(CLOSING_X)).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_the_second_in_a_closing_pass_ends_everything(python_handler):
    model = SVGPClassifier(n_inducing=5, **QUICK)
    with on_interrupt("keep"), pytest.raises(KeyboardInterrupt):
        traced_fit(model, pressing_when("solution", 2), LABELS)
    assert not hasattr(model, "posterior_")


@pytest.mark.parametrize("part", ["validate_inputs", "solution"])
def test_nothing_is_remembered_without_a_model_or_a_keyboard(part, python_handler):
    action = "keep" if part == "validate_inputs" else "raise"  # before any training
    with on_interrupt(action), pytest.raises(KeyboardInterrupt):
        traced_fit(SVGPClassifier(n_inducing=5, **QUICK), pressing_when(part), LABELS)


# ---- signals -----------------------------------------------------------------------------------

JOB = """
import fcntl, os, termios, warnings
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal controls this, as if a shell had started it

import numpy as np
from sklearn.gaussian_process.kernels import RBF
from skgpstoch import GaussianProcessRegressor

def slow(obj_func, theta, bounds):
    print("fitting", flush=True)
    while True:
        obj_func(theta)

def loop():
    for _ in range(3):
        GaussianProcessRegressor(RBF(), optimizer=slow).fit(X, np.sin(X[:, 0]))
        print("kept", flush=True)

warnings.simplefilter("ignore")
X = np.linspace(-3, 3, 50)[:, None]
try:
    loop()
except KeyboardInterrupt:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nobody is at the keyboard any more
    loop()
"""


@pytest.mark.processes
class TwoRanks:
    size, rank = 2, 1


def test_the_first_while_ranks_take_the_model_is_remembered(monkeypatch, python_handler):
    """A rank that missed it had no model, and the others lost the rank."""
    monkeypatch.setattr(first_rank, "on_first", lambda group, fit: None)
    monkeypatch.setattr(first_rank, "adopt", lambda *given: signal.raise_signal(signal.SIGINT))
    said = pytest.warns(ConvergenceWarning, match="after training had ended; the model is complete")
    with on_interrupt("keep"), one_fit(), said:
        first_rank.fit_on_first(SVGPClassifier(), TwoRanks, None)
    with on_interrupt("raise"), one_fit(), pytest.raises(KeyboardInterrupt):
        first_rank.fit_on_first(SVGPClassifier(), TwoRanks, None)


def test_an_interrupt_of_all_ranks_is_one(python_handler):
    """A terminal sends it to each; rank 0 took what another told it of for the second one."""
    pulse = first_rank.Pulse(TwoRanks, is_handled=True)
    said = pytest.warns(ConvergenceWarning, match="interrupted after a training had ended")
    with said, on_interrupt("keep"), one_fit(), interrupts.handled_by(pulse.handle):
        with interrupts.interruptible():
            pass
        signal.raise_signal(signal.SIGINT)
        pulse.interrupt()
        time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_the_closing_pass_after_an_interrupt_is_quick(monkeypatch, python_handler):
    """On 130,000 rows it took twice as long as the whole fit."""
    steps = []

    def counted(survey, moments, start, tol, rounding, max_iter, deadline=None):
        steps.append(max_iter)
        return newton(survey, moments, start, tol, rounding, max_iter, deadline)

    newton = optimal_q.damped_newton
    monkeypatch.setattr(optimal_q, "damped_newton", counted)
    model = SVGPClassifier(n_inducing=5, **QUICK)
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="interrupted"):
        traced_fit(clone(model), pressing_when("train_step"), LABELS)
    assert steps[-1] == variational.FEW_PASSES  # and no second start
    assert steps.count(variational.FEW_PASSES) == 1
    model.fit(CLOSING_X, LABELS)
    assert variational.MOST_PASSES in steps


@pytest.mark.slow
def test_the_time_limit_is_not_blamed_for_what_an_interrupt_cut(python_handler):
    model = DeepKernelEnsembleRegressor(n_estimators=2, max_time=60, random_state=0)
    with on_interrupt("keep"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        traced_fit(model, pressing_when("calibrate"), REAL)
    said = [str(each.message) for each in said]
    assert any("interrupted" in each for each in said)
    assert not any("max_time" in each for each in said)
    assert model.budget_ is None


@pytest.mark.slow
def test_a_search_that_was_cut_leaves_no_checkpoint(tmp_path, python_handler):
    """The same fit, started again, took what an interrupt had left of it, in silence."""
    model = QSGPRegressor(checkpoint_dir=tmp_path, **QUICK)
    with on_interrupt("keep"), pytest.warns(ConvergenceWarning, match="interrupted"):
        traced_fit(model, pressing_when("lbfgs"), REAL)
    again = clone(model).fit(CLOSING_X, REAL).predict(CLOSING_X)
    whole = QSGPRegressor(**QUICK).fit(CLOSING_X, REAL).predict(CLOSING_X)
    np.testing.assert_array_equal(again, whole)
    assert np.abs(model.predict(CLOSING_X) - whole).max() > 1e-3


@pytest.mark.slow
def test_real_signals():
    """At a terminal a loop ends at the second; without one at the first."""
    keyboard, terminal = pytest.importorskip("pty").openpty()
    pipes = {"stdin": terminal, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    job = subprocess.Popen(
        [sys.executable, "-c", JOB], **pipes, start_new_session=True, text=True, bufsize=1
    )

    def says(word):
        assert job.stdout.readline().strip() == word
        time.sleep(0.1)  # so that it computes by the time of an interrupt

    try:
        says("fitting")
        os.write(keyboard, b"\x03")  # Ctrl-C
        says("kept")
        says("fitting")
        os.write(keyboard, b"\x03")
        says("fitting")  # in the next loop
        job.send_signal(signal.SIGINT)
        assert job.stdout.read() == ""
        assert job.wait(60) == -signal.SIGINT
    finally:
        job.kill()
        job.wait()
        job.stdout.close()
        os.close(keyboard)
        os.close(terminal)
