"""Checkpoints: sound or refused, found again whatever was killed, under names that never meet."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from rebar.errors import CorruptFileError, InputError, TrainingError
from rebar.graph.checkpoint import CheckpointStore
from rebar.graph.checkpoint_file import State, read_checkpoint, write_checkpoint
from rebar.hal import files

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


def two(folder: Path) -> tuple[CheckpointStore, list[str], Path, bytes]:
    """A folder of two checkpoints, what it warns of, and the newer one."""
    told: list[str] = []
    store = CheckpointStore(folder, warn=told.append)
    store.save(1, {"step": 1}, ARRAYS)
    path = store.save(2, {"step": 2}, ARRAYS)
    return store, told, path, path.read_bytes()


def test_a_file_cut_at_any_byte_is_refused_and_the_one_before_is_taken(tmp_path: Path) -> None:
    store, told, path, whole = two(tmp_path)
    for nbytes in range(len(whole)):
        path.write_bytes(whole[:nbytes])
        found = store.newest()
        assert found is not None
        assert found.state == {"step": 1}, nbytes
        assert found.arrays["m"].tobytes() == ARRAYS["m"].tobytes()
        assert path.name in told.pop(), nbytes
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptFileError, match="do not have their digest"):
        read_checkpoint(path)


def test_a_bit_changed_anywhere_is_refused_and_the_one_before_is_taken(tmp_path: Path) -> None:
    store, told, path, whole = two(tmp_path)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        found = store.newest()
        assert found is not None
        assert found.state == {"step": 1}, at
        assert path.name in told.pop(), at


def signed(header: dict[str, Any], data: bytes = b"") -> bytes:
    """A file with the digest that is its own, whatever it holds."""
    text = json.dumps({"__metadata__": {"sha256": "0" * 64}} | header).encode()
    whole = len(text).to_bytes(8, "little") + text + data
    return whole.replace(b"0" * 64, hashlib.sha256(whole).hexdigest().encode(), 1)


STRANGE: dict[str, bytes] = {
    "no state": signed({}),
    "a state that is no JSON": signed({"__metadata__": {"sha256": "0" * 64, "state": "{"}}),
    "a state that is a list": signed({"__metadata__": {"sha256": "0" * 64, "state": "[]"}}),
    "a state too deep": signed({"__metadata__": {"sha256": "0" * 64, "state": "[" * 10**5}}),
    "data that nobody described": signed({}, b"1234"),
    "halves": signed(
        {
            "__metadata__": {"sha256": "0" * 64, "state": "{}"},
            "values": {"dtype": "F16", "shape": [3], "data_offsets": [0, 6]},
        },
        b"123456",
    ),
    "a type that is none": signed(
        {"values": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}, b"1234"
    ),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_stranger_s_file_with_a_right_digest_is_passed_over(tmp_path: Path, kind: str) -> None:
    """Anybody can compute a digest: what it covers is looked at as well."""
    store, told, path, _ = two(tmp_path)
    path.write_bytes(STRANGE[kind])
    found = store.newest()
    assert found is not None
    assert found.state == {"step": 1}
    assert path.name in told[0]


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


def test_a_part_is_no_checkpoint(tmp_path: Path) -> None:
    """A-l2: what a killed save left behind is all there is."""
    store = CheckpointStore(tmp_path)
    left = tmp_path / ".checkpoint-00000007-20260102T030405.999999Z.safetensors.x1y2.part"
    left.write_bytes(b"half")
    assert store.newest() is None
    store.save(1, {"step": 1}, ARRAYS)
    assert not left.exists()


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


def test_a_clock_that_goes_back_loses_nothing(tmp_path: Path) -> None:
    """Steps decide which is newer. Of one step that was saved twice both are the same state; the
    one just saved stays, though its time is the earlier one.
    """
    seconds = iter((30, 20, 10))
    store = CheckpointStore(
        tmp_path, keep=1, now=lambda: datetime(2026, 1, 2, 3, 4, next(seconds), tzinfo=UTC)
    )
    first = store.save(7, {"step": 7}, ARRAYS)
    second = store.save(7, {"step": 7}, ARRAYS)
    assert store.paths() == [first, second]
    third = store.save(8, {"step": 8}, ARRAYS)
    assert store.paths() == [third]


def test_broken_ones_take_no_place_of_sound_ones(tmp_path: Path) -> None:
    """Two broken ones of later steps once counted as the two to keep, so that a run that went on
    before them took each of its checkpoints away with the next.
    """
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20, 30):
        path = store.save(step, {"step": step}, ARRAYS)
        if step > 10:
            path.write_bytes(b"broken")
    for step in (11, 12, 13):
        store.save(step, {"step": step}, ARRAYS)
    assert [int(p.name.split("-")[1]) for p in store.paths()] == [30, 20, 13, 12]
    for step in (30, 31):
        store.save(step, {"step": step}, ARRAYS)
    steps = [int(p.name.split("-")[1]) for p in store.paths()]
    assert steps == [31, 30]
    assert store.newest() is not None


SAVER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
import numpy as np
from rebar.graph.checkpoint import CheckpointStore
moment = datetime(2026, 1, 2, tzinfo=UTC)
store = CheckpointStore(Path(sys.argv[1]), keep=999, now=lambda: moment)
for i in range(20):
    store.save(5, {"by": sys.argv[2], "nr": i}, {"values": np.full(999, i, np.float32)})
"""


def test_runs_that_save_the_same_step_at_once_lose_nothing(tmp_path: Path) -> None:
    """Three processes, one folder, one step, one moment."""
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    runs = [subprocess.Popen([*command, str(i)]) for i in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    found = [read_checkpoint(path) for path in CheckpointStore(tmp_path).paths()]
    said = sorted((saved.state["by"], saved.state["nr"]) for saved in found)
    assert said == [(str(by), nr) for by in range(3) for nr in range(20)]
    assert all((saved.arrays["values"] == saved.state["nr"]).all() for saved in found)


def test_a_folder_that_takes_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="--out"):
        CheckpointStore(tmp_path / "file").save(1, {}, ARRAYS)
    with pytest.raises(InputError):
        CheckpointStore(tmp_path, keep=0)
    assert CheckpointStore(tmp_path / "none").newest() is None


@pytest.mark.parametrize("reserved", [True, False])
def test_a_disk_that_is_full_leaves_the_former_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserved: bool
) -> None:
    """A-l2: the newest name won although its write was cut. A file that may not grow (here by a
    limit of the process, which any user can set) is told, taken away, and the former one is found:
    where room is reserved first, and where it ends in the middle of a write.
    """
    if not reserved:
        monkeypatch.setattr(files, "_reserve", lambda *_: None)
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
