"""Files are written whole or not at all; they keep links and permissions, and leave nothing."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import skgpstoch
from skgpstoch import GaussianProcessRegressor, predict_to
from skgpstoch.data import SequenceRows
from skgpstoch.data.devices import HOST
from skgpstoch.data.whole_file import whole_file
from skgpstoch.training.checkpoint import Checkpoint

X = np.linspace(0.0, 1.0, 9)[:, None]
MODEL = GaussianProcessRegressor(alpha=0.1, optimizer=None).fit(X, X[:, 0])
posix = pytest.mark.skipif(os.name != "posix", reason="has no such permissions, links or locks")


def save_rows(path):
    pytest.importorskip("pyarrow")
    predict_to(MODEL, SequenceRows(X), path)


def save_checkpoint(path):
    Checkpoint(path.parent, path.stem).save({"step": 1})


WRITERS = {"save": MODEL.save, "predict_to": save_rows, "checkpoint": save_checkpoint}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
@every_writer
@pytest.mark.parametrize("before", [0o600, 0o640, 0o664])
def test_a_file_keeps_its_permissions(write, before, tmp_path):
    path = tmp_path / "file.safetensors"
    write(path)
    path.chmod(before)
    content = path.read_bytes()
    write(path)
    assert mode(path) == before
    assert len(path.read_bytes()) == len(content)


@posix
def test_a_new_file_has_the_permissions_of_others(tmp_path):
    (tmp_path / "other").touch()
    MODEL.save(tmp_path / "file")
    assert mode(tmp_path / "file") == mode(tmp_path / "other")


@posix
def test_what_is_written_is_never_open_to_more(tmp_path):
    (tmp_path / "file").touch(0o600)
    with whole_file(tmp_path / "file") as partial:
        assert mode(partial) == 0o600


@posix
@every_writer
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_a_link(write, is_there, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "file.safetensors"
    if is_there:
        target.write_bytes(b"old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert len(target.read_bytes()) > 100
    assert os.listdir(tmp_path / "elsewhere") == ["target"]
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "file.safetensors"]


@posix
def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="got a device or a pipe"):
        MODEL.save(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@every_writer
def test_what_a_killed_process_has_left_is_removed(write, tmp_path):
    path = tmp_path / "file.safetensors"
    (tmp_path / f".file.safetensors.{'0' * 32}.tmp").write_bytes(b"half of it")
    others = [".file.safetensors.tmp", f".other.{'0' * 32}.tmp", "notes.tmp"]
    for name in others:
        (tmp_path / name).touch()
    write(path)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, *others])


@posix
def test_what_another_process_is_writing_is_left_alone(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as partial:
        partial.write_bytes(b"slow")
        MODEL.save(path)
        assert partial.exists()
    assert path.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as partial:
        partial.write_bytes(bytes(9 // partial.stat().st_size))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.slow
def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "a.model"
    path.write_text("before")
    full = OSError(errno.ENOSPC, "No space left on device")  # as Python and pyarrow raise it
    with pytest.raises(OSError, match=r"No space left on device.*a\.model"), whole_file(path):
        raise full
    assert os.listdir(tmp_path) == ["a.model"]
    assert path.read_text() == "before"


def test_threads_may_write_one_file(tmp_path):
    """And remove what others seem to have left, at any moment."""
    path, at_once = tmp_path / "file", threading.Barrier(4)

    def use(_):
        at_once.wait()
        for _ in range(30):
            MODEL.save(path)
            assert_array_equal(skgpstoch.load(path).predict(X), MODEL.predict(X))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert os.listdir(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from skgpstoch.data.whole_file import whole_file
with whole_file(sys.argv[1]) as partial:
    partial.write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
@pytest.mark.processes
def test_a_killed_process_leaves_nothing_that_stays(tmp_path):
    path = tmp_path / "file"
    MODEL.save(path)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert_array_equal(skgpstoch.load(path).predict(X), MODEL.predict(X))
    MODEL.save(path)
    assert os.listdir(tmp_path) == ["file"]


def test_a_read_only_file_is_replaced_and_stays_read_only(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(0o400)
    with whole_file(path) as partial:
        assert partial.stat().st_mode & 0o777 == 0o600  # it can be written
        partial.write_text("after")
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("name", ["a" * 255, "\U0001f600" * 63])
@posix
def test_names_may_be_as_long_as_files_have(name, tmp_path):
    MODEL.save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    MODEL.save(tmp_path / name)
    assert_array_equal(skgpstoch.load(tmp_path / name).predict(X), MODEL.predict(X))


@posix
def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a pipe"):
        skgpstoch.load(tmp_path / "pipe")
    checkpoint = Checkpoint(tmp_path, "fit")
    os.mkfifo(checkpoint.path)
    with pytest.raises(ValueError, match="it is a pipe"):
        checkpoint.load(HOST)
