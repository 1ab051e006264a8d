"""Processes that read one data set share it: what each has for itself does not grow with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rebar.dataflow.data import MMapDataset

# Opens the file, reads every record in the order of an epoch, decodes it, and says what it holds.
WORKER = """
import sys
from rebar.dataflow.data import DataPipeline, Decode, MMapDataset
data = MMapDataset(sys.argv[1])
pipeline = DataPipeline(data, [Decode(data.where)], workers=1, prefetch_bytes=1 << 20)
count = sum(1 for _ in pipeline.run(int(sys.argv[2])))
print(count, flush=True)
sys.stdin.readline()
"""
RECORDS, SIZE = 40_000, 1_500  # 60 MB
ALLOWED = 50 << 20


def started(path: Path, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def held(pid: int, path: Path) -> tuple[int, int]:
    """Bytes that belong to no file, so to this process alone; and its part of the data file's pages
    and its index's, shared ones divided among those who share them.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))
    part, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = str(path) in line
        elif inside and line.startswith("Pss:"):
            part += int(line.split()[1])
    return own << 10, part << 10


def measured(path: Path, count: int) -> tuple[int, int]:
    """Both sums over `count` processes that have read everything."""
    workers = [started(path, n) for n in range(count)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert int(worker.stdout.readline()) == len(MMapDataset(path))
        sums = [held(worker.pid, path) for worker in workers]
        return sum(own for own, _ in sums), sum(part for _, part in sums)
    finally:
        for worker in workers:
            worker.communicate("\n")


def test_workers_do_not_multiply_memory(tmp_path: Path) -> None:
    """The report's 12 GB of copies: each worker had the records as objects. Five processes over
    60 MB against five over nothing: what they have beyond that is all the data costs them, and the
    pages of the file exist once, not five times.
    """
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    small.write_text(json.dumps({"text": "x" * SIZE}) + "\n")
    with large.open("w") as file:
        for n in range(RECORDS):
            file.write(json.dumps({"n": n, "text": "x" * (SIZE - 20)}) + "\n")
    for path in (small, large):
        MMapDataset(path)  # the index is there before
    nothing, _ = measured(small, 5)
    everything, pages = measured(large, 5)
    assert everything - nothing < ALLOWED
    index = large.with_name(large.name + ".rebar-index")
    mapped = large.stat().st_size + index.stat().st_size
    assert mapped // 2 < pages < mapped + (1 << 20)
