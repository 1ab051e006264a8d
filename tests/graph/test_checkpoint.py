"""Checkpoints: sound or refused, found again whatever was killed, under names that never meet."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rebar.errors import CorruptFileError, InputError, TrainingError
from rebar.graph.checkpoint import CheckpointStore
from rebar.graph.checkpoint_file import State, read_checkpoint, write_checkpoint

STATE: State = {"step": 3, "loss": 0.1 + 0.2, "best": None, "position": {"epoch": 1, "place": 7}}
ARRAYS = {"values": np.arange(40, dtype=np.float32), "m": -np.ones(40, dtype=np.float32)}


def test_what_is_loaded_is_what_was_written(tmp_path: Path) -> None:
    odd = np.array([np.nan, -0.0, np.inf, 1e-45], dtype=np.float32)
    write_checkpoint(tmp_path / "c.safetensors", STATE, ARRAYS | {"odd": odd})
    saved = read_checkpoint(tmp_path / "c.safetensors")
    assert saved.state == STATE
    assert saved.arrays["odd"].tobytes() == odd.tobytes()
    assert {k: v.tobytes() for k, v in ARRAYS.items()}.items() <= {
        k: v.tobytes() for k, v in saved.arrays.items()
    }.items()


def test_the_reference_library_reads_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c.safetensors", STATE, ARRAYS)
    read = load_file(tmp_path / "c.safetensors")
    assert {k: v.tobytes() for k, v in read.items()} == {k: v.tobytes() for k, v in ARRAYS.items()}


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c.safetensors", STATE, ARRAYS)
    whole = (tmp_path / "c.safetensors").read_bytes()
    cut = tmp_path / "cut.safetensors"
    for nbytes in range(1, len(whole)):
        cut.write_bytes(whole[:nbytes])
        with pytest.raises(CorruptFileError, match=r"cut\.safetensors"):
            read_checkpoint(cut)
    cut.write_bytes(whole + b"\0")
    with pytest.raises(CorruptFileError):
        read_checkpoint(cut)


def test_a_changed_byte_anywhere_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c.safetensors", STATE, ARRAYS)
    whole = bytearray((tmp_path / "c.safetensors").read_bytes())
    for at in range(len(whole)):
        whole[at] ^= 1
        (tmp_path / "bad.safetensors").write_bytes(whole)
        with pytest.raises(CorruptFileError):
            read_checkpoint(tmp_path / "bad.safetensors")
        whole[at] ^= 1


def test_broken_ones_are_named_and_passed_over(tmp_path: Path) -> None:
    """A-l2: the newest name is not the newest whole one."""
    told: list[str] = []
    store = CheckpointStore(tmp_path, keep=5, warn=told.append)
    paths = [store.save(step, {"step": step}, ARRAYS) for step in (10, 20, 30)]
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    paths[1].write_bytes(b"")
    found = store.newest()
    assert found is not None
    assert found.state == {"step": 10}
    assert [p.name in t for p, t in zip(reversed(paths[1:]), told, strict=True)] == [True, True]


def test_the_last_ones_stay_and_the_best_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in range(1, 6):
        store.save(step, {"step": step}, ARRAYS)
        if step in (1, 2):
            store.save(step, {"step": step}, ARRAYS, "best")
    assert [p.name.split("-")[1] for p in store.paths()] == ["00000005", "00000004"]
    assert [p.name.split("-")[1] for p in store.paths("best")] == ["00000002"]


def test_names_never_meet_even_when_the_clock_stands(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)
    stores = [CheckpointStore(tmp_path, keep=9, now=lambda: moment) for _ in range(2)]
    paths = [store.save(7, {"run": i}, ARRAYS) for i, store in enumerate(stores * 2)]
    assert len(set(paths)) == 4
    assert paths[0].name == "checkpoint-00000007-20260102T030405.999999Z.safetensors"
    assert paths[1].name == "checkpoint-00000007-20260102T030406.000000Z.safetensors"


def test_a_folder_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="--out"):
        CheckpointStore(tmp_path / "file").save(1, {}, ARRAYS)
    with pytest.raises(InputError):
        CheckpointStore(tmp_path, keep=0)
    assert CheckpointStore(tmp_path / "none").newest() is None


def test_a_disk_that_is_full_leaves_the_former_as_they_were(tmp_path: Path) -> None:
    """A-l2: the newest name won although its write was cut. A file that may not grow (here by a
    limit of the process, which any user can set) is told, taken away, and the former one is found.
    """
    told: list[str] = []
    store = CheckpointStore(tmp_path, warn=told.append)
    first = store.save(1, {"step": 1}, ARRAYS)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(TrainingError, match="Older ones are as they were"):
            store.save(2, {"step": 2}, {"values": np.zeros(1 << 20, dtype=np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".checkpoints.lock", first.name]
    found = store.newest()
    assert found is not None
    assert (found.path, found.state, told) == (first, {"step": 1}, [])


WRITER = """
import sys
import numpy as np
from rebar.graph.checkpoint import CheckpointStore
store = CheckpointStore(__import__("pathlib").Path(sys.argv[1]), keep=2)
step = int(sys.argv[2])
while True:
    step += 1
    print(step, flush=True)  # begins to save what it has computed
    store.save(step, {"step": step}, {"values": np.full(2_000_000, step, dtype=np.float32)})
"""


def test_a_kill_at_any_moment_costs_one_interval(tmp_path: Path) -> None:
    """A-l2: twenty writers are killed in the middle of a save each; the next goes on from what is
    found, which is what was being written or the one before, and nothing of the dead is left lying
    about.
    """
    told: list[str] = []
    store = CheckpointStore(tmp_path, warn=told.append)
    reached = 0
    for kill in range(20):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(reached)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        begun = int(writer.stdout.readline())
        if kill % 2:
            begun = int(writer.stdout.readline())
        time.sleep(0.002 * kill)  # a save takes tens of milliseconds
        writer.send_signal(signal.SIGKILL)
        begun = int((writer.stdout.read().split() or [str(begun)])[-1])
        writer.wait()
        writer.stdout.close()
        found = store.newest()
        step = found.state["step"] if found is not None else reached
        assert begun - 1 <= step <= begun
        if found is not None:
            assert np.all(found.arrays["values"] == step)
        reached = step
    assert told == []
    assert reached > 5
    store.save(reached + 1, {"step": reached + 1}, ARRAYS)
    assert list(tmp_path.glob(".*.part")) == []
