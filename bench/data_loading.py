"""Our data pipeline beside a torch DataLoader: python -m bench.data_loading PEERS MODEL TOKENIZER

PEERS/ov has torch and tokenizers; MODEL is a .gguf or .rebar file, TOKENIZER the tokenizer.json of
the same model. The same file of JSON lines for both, in shuffled order, batches of 32:

records   both decode JSON. Theirs: json.loads over lines in memory, in 2 workers (or none), batches
          sent to the first process. Ours: MMapDataset and Decode, in the same process. 10 epochs.
ids       both decode and encode every text. Theirs with tokenizers.encode_batch in the workers;
          ours with Decode and Tokenize on 2 threads.
shard     ours alone: ids that were encoded once (`encode once` says in which time), cut into
          sequences of 256. It stands beside their `ids`, since both give ids for an epoch.
processor what a batch costs all processes of a side together: three processes get more of a machine
          that others use too than one does, and this hardly depends on that.
memory    what opening and reading adds to all processes together, shared pages counted once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bench.harness import Command, Facts, Line, markdown, median, number, peer, rounds
from bench.peers.data_work import BATCH, EPOCHS, measure
from bench.tokenizers import long_text, repaired

RECORDS = 600 * BATCH
TARGET = 5.0
KEYS = ("batches_s", "processor_us", "ids", "memory_mb")


def write_lines(path: Path, count: int = RECORDS) -> None:
    """Pieces of Python's own documentation of 200 to 2,000 characters, under numbers."""
    text = long_text()
    at = 0
    with path.open("w", encoding="utf-8") as file:
        for n in range(count):
            length = 200 + n * 7919 % 1800
            file.write(json.dumps({"id": n, "text": text[at : at + length]}) + "\n")
            at = (at + length) % (len(text) - 2000)


def batched(items: Iterator[Any]) -> Iterator[list[Any]]:
    """Values, BATCH at a time."""
    while batch := [item.value for item in islice(items, BATCH)]:
        yield batch


def ours(kind: str, lines: Path, model: Path, workers: int) -> Facts:
    """One epoch in this process; of records EPOCHS."""
    from rebar.dataflow.data import DataPipeline, Decode, MMapDataset, Shift, TokenDataset, Tokenize
    from rebar.dataflow.text import Tokenizer
    from rebar.graph.weights import open_model

    tokenizer = Tokenizer.of(open_model(model))
    if kind == "shard":
        tokens = TokenDataset(lines.with_suffix(".ids"), 256)
        pipeline = DataPipeline(tokens, [Shift()], workers=workers)
        return measure([e.ids for e in batch] for batch in batched(pipeline.run()))
    records = MMapDataset(lines)
    decode = Decode(records.where)
    if kind == "records":
        pipeline = DataPipeline(records, [decode], workers=workers)
        return measure(chain.from_iterable(batched(pipeline.run(e)) for e in range(EPOCHS)))
    stages = [decode, Tokenize(tokenizer, None, records.where)]
    pipeline = DataPipeline(records, stages, workers=workers)
    return measure([m.ids for m in batch] for batch in batched(pipeline.run()))


def encode_once(lines: Path, model: Path) -> float:
    """Seconds to make the shard that `shard` reads."""
    from rebar.dataflow.data import MMapDataset, write_tokens
    from rebar.dataflow.text import Tokenizer
    from rebar.graph.weights import open_model

    records, tokenizer = MMapDataset(lines), Tokenizer.of(open_model(model))
    texts = (records[i]["text"] for i in range(len(records)))
    begun = time.perf_counter()
    write_tokens(lines.with_suffix(".ids"), tokenizer, texts)
    return time.perf_counter() - begun


def engines(peers: Path, model: Path, tokenizer: Path, lines: Path) -> dict[str, Command]:
    """Commands by name."""
    own = [sys.executable, "-m", "bench.data_loading", "--ours", str(lines), str(model)]
    found = {
        "records, ours": [*own, "records", "0"],
        "ids, ours": [*own, "ids", "2"],
        "shard, ours": [*own, "shard", "0"],
        "ids, ours, 8 threads": [*own, "ids", "8"],
        "ids, ours, 64 threads": [*own, "ids", "64"],
    }
    theirs = {
        "records, torch": (2, ()),
        "records, torch, no worker": (0, ()),
        "ids, torch": (2, (str(tokenizer),)),
        "ids, torch, no worker": (0, (str(tokenizer),)),
        "records, torch, 8 workers": (8, ()),
    }
    for name, (workers, words) in theirs.items():
        command = peer(peers, "ov", "torch_loader.py", str(lines), str(workers), *words)
        if command:
            found[name] = command
    return found


def compare(peers: Path, model: Path, tokenizer: Path, count: int) -> dict[str, Facts]:
    """Medians by name."""
    with tempfile.TemporaryDirectory() as folder:
        lines, theirs = Path(folder) / "lines.jsonl", Path(folder) / "tokenizer.json"
        write_lines(lines)
        theirs.write_text(repaired(tokenizer.read_text(encoding="utf-8")), encoding="utf-8")
        seconds = encode_once(lines, model)
        found = rounds(engines(peers, model, theirs, lines), count)
        medians: dict[str, Facts] = {
            name: {key: median(runs, key) for key in KEYS} for name, runs in found.items()
        }
        return medians | {"encode once": {"seconds": seconds}}


def lines_of(found: dict[str, Facts]) -> list[Line]:
    """The table's lines."""

    def line(figure: str, mine: str, other: str, target: float = TARGET) -> Line:
        ours, theirs = (found.get(name, {}).get("batches_s") for name in (mine, other))
        ahead = ours / theirs if ours and theirs else None
        shown, met = ("", None) if ahead is None else (f"{ahead:.1f} x", ahead >= target)
        words = f"{target:.0f} x theirs, batches/s"
        return Line(figure, words, number(ours), number(theirs), shown, met)

    table = [
        line("records, 2 workers", "records, ours", "records, torch"),
        line("records, their fastest: no worker", "records, ours", "records, torch, no worker", 1),
        line("ids, 2 workers", "ids, ours", "ids, torch"),
        line("ids, no worker", "ids, ours", "ids, torch, no worker"),
        line("ids from a shard", "shard, ours", "ids, torch"),
    ]
    table.append(processor(found))
    for name in (
        "ids, ours",
        "ids, ours, 8 threads",
        "ids, ours, 64 threads",
        "records, torch",
        "records, torch, 8 workers",
    ):
        memory = found.get(name, {}).get("memory_mb")
        own = "ours" in name
        met = None if memory is None or not own else memory <= 50
        both = ("", "") if memory is None else (f"{memory:.0f} MB", "")
        mine, other = both if own else both[::-1]
        table.append(Line(f"memory: {name}", "50 MB" if own else "", mine, other, "", met))
    seconds = found["encode once"]["seconds"]
    return [*table, same_ids(found), Line("encode once, for the shard", "", f"{seconds:.2f} s")]


def processor(found: dict[str, Facts]) -> Line:
    """What a batch of records costs."""
    mine, other = (found.get(f"records, {side}", {}).get(KEYS[1]) for side in ("ours", "torch"))
    shown = f"{other / mine:.1f} x" if mine and other else ""
    return Line("records, processor us a batch", "", number(mine), number(other), shown)


def same_ids(found: dict[str, Facts]) -> Line:
    """Both sides must come to as many ids, but for the end that ours puts after each document."""
    ours, theirs = (found.get(name, {}).get("ids") for name in ("ids, ours", "ids, torch"))
    met = None if ours is None or theirs is None else ours - RECORDS == theirs
    return Line("ids of the whole file", "as many", number(ours), number(theirs), "", met)


def main() -> None:
    """Measures and prints."""
    if sys.argv[1:2] == ["--ours"]:
        lines, model, kind, workers = sys.argv[2:6]
        print(json.dumps(ours(kind, Path(lines), Path(model), int(workers))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="folder with the peers' virtual environments")
    parser.add_argument("model", type=Path, help="a .gguf or .rebar file")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of the same model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = compare(given.peers, given.model.resolve(), given.tokenizer.resolve(), given.rounds)
    print(json.dumps(found) if given.json else "\n".join(markdown(lines_of(found))))


if __name__ == "__main__":
    main()
