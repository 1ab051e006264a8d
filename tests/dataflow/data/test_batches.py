"""Windows: the same from any position, for any number of workers and any size of chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebar.dataflow.data import MMapDataset, TrainingBatches
from rebar.errors import DataError
from rebar.graph.batch import NOT_ASKED, Batch
from rebar.graph.window import BatchSource, Window
from tests.dataflow.data.making import batches, chats, write
from tests.dataflow.vocabularies import bpe

Plain = tuple[object, ...]


def plain(window: Window[Batch]) -> Plain:
    """A window as something that == compares to the last id."""
    ids = tuple(
        tuple((i.tobytes(), t.tobytes()) for i, t in batch.sequences) for batch in window.batches
    )
    return ids, window.supervised, window.samples, window.skipped


def windows(source: TrainingBatches, most: int = 10**6) -> Iterator[Plain]:
    while most and (window := source.next_window()):
        yield plain(window)
        most -= 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> MMapDataset:
    return write(tmp_path_factory.mktemp("data") / "d.jsonl", chats(64))


def test_it_is_what_a_trainer_asks_for(data: MMapDataset) -> None:
    source: BatchSource[Batch] = batches(data)
    window = source.next_window()
    assert window is not None
    assert window.supervised == sum(batch.tokens for batch in window.batches)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("stopped_after", [10, 21])
def test_case_j3(data: MMapDataset, stopped_after: int, workers: int) -> None:
    """A resumed run saw other data: an order drawn anew from a later state, or N samples of another
    order passed over (transgenic 59, accelerate 4071). 64 samples, windows of 4, 2 epochs, stopped
    in the first and in the second.
    """
    whole = list(windows(batches(data)))
    assert len(whole) == 32
    for epoch in (whole[:16], whole[16:]):
        assert sorted(sample for w in epoch for sample in w[2]) == list(range(64))  # type: ignore[attr-defined]
    assert whole[:16] != whole[16:]

    first = batches(data, workers=workers)
    seen = list(windows(first, stopped_after))
    position = dict(first.position)
    first.close()
    second = batches(data, workers=workers)
    second.restore(position)
    assert seen + list(windows(second)) == whole


@given(
    st.integers(1, 9), st.integers(0, 3), st.integers(1, 40), st.integers(0, 30), st.integers(0, 5)
)
@settings(deadline=None, max_examples=40)
def test_nothing_but_the_settings_matters(
    tmp_path_factory: pytest.TempPathFactory,
    samples: int,
    workers: int,
    most: int,
    stop: int,
    seed: int,
) -> None:
    """Conversations, documents in pieces, completions, lines to be passed over, samples in which
    nothing is asked for: any window from any start.
    """
    records: list[object] = [*chats(9), {"text": "one two three " * 40}, "{broken", {"x": 1}]
    records += [{"text": ""}, {"prompt": "x" * 90, "completion": "y"}, {"text": "z"}, *chats(5)]
    path = tmp_path_factory.mktemp("any") / "d.jsonl"
    common: dict[str, Any] = {"samples": samples, "seed": seed, "rows": 30, "on_error": "skip"}
    data = write(path, records)
    whole = list(windows(batches(data, **common)))
    some = batches(data, **common, workers=workers, most=most)
    seen = list(windows(some, stop))
    other = batches(data, **common, workers=workers, most=most)
    other.restore(some.position)
    some.close()
    assert seen + list(windows(other)) == whole
    assert sum(w[3] for w in whole) == 2 * 4  # type: ignore[misc]


def test_a_target_is_the_id_that_follows(tmp_path: Path) -> None:
    """Put together again, ids and targets are the text; only the answer is asked for."""
    data = write(tmp_path / "d.jsonl", [{"prompt": "how far", "completion": " too far"}])
    window = batches(data, samples=1).next_window()
    assert window is not None
    ids, targets = window.batches[0].sequences[0]
    tokenizer = bpe()
    assert tokenizer.eos_id is not None
    prompt, answer = tokenizer.encode("how far"), tokenizer.encode(" too far", bos=False)
    assert [*ids.tolist(), targets[-1]] == [*prompt, *answer, tokenizer.eos_id]
    assert targets.tolist() == [NOT_ASKED] * (len(prompt) - 1) + [*answer, tokenizer.eos_id]
    assert window.supervised == len(answer) + 1


def test_a_document_is_asked_for_once(tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 30
    data = write(tmp_path / "d.jsonl", [{"text": text}])
    source = batches(data, samples=100, epochs=1, rows=50)
    window = source.next_window()
    assert window is not None
    pieces = [p for batch in window.batches for p in batch.sequences]
    pieces.sort(key=lambda p: -len(p[0]))  # best fit keeps their order but for the short last one
    tokenizer = bpe()
    ids = [*tokenizer.encode(text), tokenizer.eos_id]
    assert np.concatenate([p[1] for p in pieces]).tolist() == ids[1:]
    assert all((p[0][1:] == p[1][:-1]).all() for p in pieces)
    assert window.supervised == len(ids) - 1


def test_data_of_which_nothing_is_learned_is_refused(tmp_path: Path) -> None:
    """Asked for a number of steps, a run went through such data again and again for ever: a window
    without an answer is no step, and epochs were not counted.
    """
    records: list[object] = [{"messages": [{"role": "user", "content": "only asked"}]}] * 2
    source = batches(write(tmp_path / "d.jsonl", records), epochs=1000)
    with pytest.raises(DataError, match="none of its 2 samples holds any"):
        source.survey()


def test_what_is_cut_and_what_asks_nothing_is_counted(tmp_path: Path) -> None:
    """A-j2: a prompt so long that its answer is cut away."""
    records: list[object] = [
        {"prompt": "x" * 200, "completion": "y"},  # cut before the answer
        {"prompt": "x", "completion": "y" * 200},
        {"messages": [{"role": "user", "content": "only asked"}]},
        *chats(3),
    ]
    data = write(tmp_path / "d.jsonl", records)
    survey = batches(data, rows=60).survey()
    assert survey.tallies["mask"] == {"cut": 2, "nothing_asked": 2}
    assert (survey.sequences, survey.skipped, survey.longest) == (4, 2, 60)
    assert survey.remarks[0] == "conversations longer than the context, which lose their end: 2"
    assert survey.remarks[1].startswith("samples with nothing to be learned, passed over: 2")
    assert "; the first: " in survey.remarks[1]
    assert batches(write(tmp_path / "e.jsonl", chats(3))).survey().remarks == ()
    skipping = batches(data, rows=60, long="skip").survey()
    assert skipping.tallies["mask"] == {"too_long": 2, "nothing_asked": 3}
    with pytest.raises(DataError, match=r"line [12]: .*longer context"):
        batches(data, rows=60, long="raise").survey()


def test_samples_that_ask_nothing_are_told(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", [{"messages": [{"role": "user", "content": "x"}]}] * 5)
    source = batches(data, epochs=1)
    window = source.next_window()
    assert window == Window((), supervised=0, skipped=5)
    assert source.next_window() is None


def test_broken_lines_by_rule(tmp_path: Path) -> None:
    """A-j6: raised with file and line, or passed over and counted, as somebody chose."""
    data = write(tmp_path / "d.jsonl", [*chats(3), "", "{broken", {"text": 5}, *chats(2)])
    source = batches(data, on_error="skip")
    survey = source.survey()
    assert survey.tallies["decode"] == {"invalid": 1}
    assert survey.tallies["tokenize"] == {"invalid": 1}
    assert (survey.sequences, survey.skipped) == (5, 2)
    list(windows(source))
    decode, tokenize, _ = source.pipeline.stages
    assert "d.jsonl, line 5: no JSON" in decode.tally.first("invalid")[0]
    assert "d.jsonl, line 6: the record holds text" in tokenize.tally.first("invalid")[0]
    with pytest.raises(DataError, match=r"line [56]: .*on_error='skip'"):
        list(windows(batches(data)))


def test_a_fault_is_met_again_and_does_not_end_the_epoch(tmp_path: Path) -> None:
    """A generator that has raised is at its end: the next call took that for the epoch's."""
    source = batches(write(tmp_path / "d.jsonl", [*chats(20), "{broken"]), samples=3, workers=2)
    for _ in range(3):
        with pytest.raises(DataError, match="line 21"):
            list(windows(source))
    assert source.position["epoch"] == 0


def test_windows_are_counted_before(data: MMapDataset) -> None:
    source = batches(data, samples=5)
    assert source.windows is None
    source.survey()
    assert source.windows == 26 == len(list(windows(source)))
    assert batches(data).next_window() is not None


def test_the_digest_names_whatever_decides(tmp_path: Path, data: MMapDataset) -> None:
    same = batches(data, workers=3, most=2)
    assert same.digest == batches(data).digest
    other = [
        batches(data, seed=2),
        batches(data, samples=5),
        batches(data, rows=65),
        batches(data, long="skip"),
        batches(data, on_error="skip"),
        batches(write(tmp_path / "d.jsonl", chats(63))),
    ]
    assert len({same.digest, *(source.digest for source in other)}) == 7


@pytest.mark.parametrize(
    "position", [{}, {"epoch": 0, "place": 65, "piece": 0}, {"epoch": -1, "place": 0, "piece": 0}]
)
def test_a_position_of_something_else(data: MMapDataset, position: dict[str, int]) -> None:
    with pytest.raises(DataError, match="Take"):
        batches(data).restore(position)


def test_empty_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no records"):
        batches(write(tmp_path / "d.jsonl", []))
