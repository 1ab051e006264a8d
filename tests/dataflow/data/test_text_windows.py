from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.data.dataset import MMapDataset
from rebar.dataflow.data.subset import split
from rebar.dataflow.data.text_windows import TextWindows, whole_text
from rebar.errors import DataError
from rebar.graph.batch import Batch
from rebar.graph.window import Share, Window

IDS = np.arange(1000, dtype=np.int32)


def source(**changes: int) -> TextWindows:
    sizes = {"context": 16, "samples": 4, "rows": 32, "seed": 3, "epochs": 2}
    return TextWindows(IDS, **(sizes | changes))


def all_of(text: TextWindows | Share[Batch]) -> list[Window[Batch]]:
    found = []
    while (window := text.next_window()) is not None:
        found.append(window)
    return found


def starts(windows: list[Window[Batch]]) -> list[int]:
    return [int(ids[0]) for w in windows for b in w.batches for ids, _ in b.sequences]


def test_each_piece_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    windows = all_of(source())
    assert len(windows) == source().windows == 2 * 16
    first, second = starts(windows[:16]), starts(windows[16:])
    for found in (first, second):
        assert len(found) == 61
        assert np.all(np.diff(sorted(found)) == 16)
        assert min(found) < 16
        assert found != sorted(found)
    assert min(first) != min(second)  # borders move
    for window in windows:
        assert window.supervised == window.tokens == sum(b.tokens for b in window.batches)
        for batch in window.batches:
            assert batch.rows <= 32
            assert all(np.array_equal(targets, ids + 1) for ids, targets in batch.sequences)


def test_it_goes_on_anywhere_as_it_would_have() -> None:
    whole = source()
    for _ in range(20):
        position = whole.position
        expected = starts([w for w in [whole.next_window()] if w is not None])
        other = source()
        other.restore(position)
        assert starts([w for w in [other.next_window()] if w is not None]) == expected


def test_another_seed_another_order_another_digest() -> None:
    assert starts(all_of(source(seed=4))) != starts(all_of(source()))
    digests = {source(**c).digest for c in ({}, {"seed": 4}, {"context": 8}, {"samples": 5})}
    assert len(digests) == 4
    assert source(epochs=9).digest == source().digest  # more of the same


def test_ranks_share_the_windows_and_the_last_round_is_uneven() -> None:
    alone = all_of(source(samples=12, epochs=1))
    shares = [Share(source(samples=12, epochs=1), rank, 4) for rank in range(4)]
    mine = [all_of(share) for share in shares]
    assert [share.windows for share in shares] == [2] * 4
    assert [len(windows) for windows in mine] == [2, 2, 1, 1]
    dealt = [mine[i % 4][i // 4].samples for i in range(6)]
    assert dealt == [w.samples for w in alone]
    a, b = (Share(source(), rank, 2) for rank in range(2))
    a.next_window()
    b.restore(a.position)
    again = Share(source(), 1, 2)
    again.next_window()
    assert starts([w for w in [b.next_window()] if w]) == starts(
        [w for w in [again.next_window()] if w]
    )


def test_held_out_text_is_read_whole() -> None:
    batches = whole_text(IDS[:100], context=16, rows=40)
    pairs = [pair for batch in batches for pair in batch.sequences]
    assert np.array_equal(np.concatenate([t for _, t in pairs]), np.arange(1, 100))
    assert max(len(batch.sequences) for batch in batches) == 2


@pytest.mark.parametrize("wrong", [{"context": 0}, {"rows": 8}, {"epochs": 0}, {"context": 500}])
def test_what_holds_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(DataError, match=r"--|context"):
        source(**wrong)


def test_a_split_is_of_the_seed_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": str(i)}) + "\n" for i in range(40)))
    whole = MMapDataset(path)
    train, held = split(whole, 0.1, seed=1)
    assert (len(train), len(held)) == (36, 4)
    assert sorted([*train.numbers, *held.numbers]) == list(range(40))
    assert bytes(held.raws(np.array([2]))[0]) == bytes(whole.record(int(held.numbers[2])))
    assert held.where(0) == whole.where(int(held.numbers[0]))
    assert train.digest != held.digest
    assert list(split(whole, 0.1, seed=1)[1].numbers) == list(held.numbers)
    assert list(split(whole, 0.1, seed=2)[1].numbers) != list(held.numbers)
    for share in (0.0, 1.0, 0.999):
        with pytest.raises(DataError, match="--eval-split"):
            split(whole, share, seed=1)
