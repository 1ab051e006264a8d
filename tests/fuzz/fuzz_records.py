"""Fuzzes the index over JSON lines: any bytes give the records that a plain reader finds, or a
DataError.

python -m tests.fuzz.fuzz_records CORPUS -max_total_time=600
"""

from __future__ import annotations

from pathlib import Path

from rebar.dataflow.data import MMapDataset
from rebar.errors import DataError
from tests.dataflow.data.test_index import plain
from tests.fuzz.harness import Target, fuzz


def seeds(folder: Path) -> list[bytes]:
    """The file of case A-j6, and plainer ones."""
    return [
        b'\xef\xbb\xbf{"text":"a"}\r\n\r\n{"text":"b"}\n   \n{"text":"c"}\0\0\0\0',
        b'{"messages":[{"role":"user","content":"x"}]}\n' * 3,
    ]


def read(path: Path) -> None:
    """Every record, decoded where that goes; DataError when one is broken."""
    data = MMapDataset(path)
    found = [bytes(data.record(i)) for i in range(len(data))]
    assert found == [record for _, record in plain(path.read_bytes())]
    for sample in range(len(data)):
        data[sample]


TARGET = Target("d.jsonl", seeds, read, refusal=DataError)

if __name__ == "__main__":
    fuzz(TARGET)
