"""Token shards: ids where they lie, whole texts in pieces that change no id."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rebar.dataflow.data import (
    DataOptions,
    DataPipeline,
    Shift,
    TokenDataset,
    TrainingBatches,
    open_training,
    write_tokens,
)
from rebar.dataflow.data import open as opening
from rebar.dataflow.text import Tokenizer
from rebar.errors import DataError
from rebar.graph.weights import open_model
from tests.dataflow.data.making import chats, write
from tests.dataflow.vocabularies import bpe, spm

NOVEL = Path(__file__).parents[2] / "data" / "northanger_abbey.txt"


def all_ids(source: TrainingBatches) -> list[int]:
    """Everything asked for, in the order of samples."""
    found: dict[int, list[int]] = {}
    while window := source.next_window():
        pairs = [pair for batch in window.batches for pair in batch.sequences]
        assert len(window.samples) == 1
        found[window.samples[0]] = pairs[0][1].tolist()
    return [id for sample in sorted(found) for id in found[sample]]


def test_documents(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "t.ids", bpe()
    texts = ["one two", "", "three " * 50]
    expected = [id for text in texts for id in [*tokenizer.encode(text), tokenizer.eos_id]]
    assert write_tokens(path, tokenizer, iter(texts)) == len(expected)
    data = TokenDataset(path, 16, fingerprint=tokenizer.fingerprint)
    assert data.ids.tolist() == expected
    assert data.ids.dtype == np.uint16
    assert len(data) == -(-(len(expected) - 1) // 16)
    assert data[0].tolist() == expected[:17]
    assert data[-1].tolist() == expected[(len(data) - 1) * 16 :]
    assert pickle.loads(pickle.dumps(data))[1].tolist() == expected[16:33]
    data.verify()


@pytest.mark.parametrize("rows", [1, 7, 64, 10_000])
def test_each_id_is_asked_for_once(tmp_path: Path, rows: int) -> None:
    path, tokenizer = tmp_path / "d.txt", bpe()
    path.write_text(NOVEL.read_text()[:3000])
    source, held = open_training(
        path, tokenizer, None, DataOptions(rows=rows, samples=1, seed=3, cache=tmp_path)
    )
    assert held is None
    ids = [*tokenizer.encode(path.read_text()), tokenizer.eos_id]
    assert all_ids(source) == ids[1:]


@pytest.mark.parametrize("make", ["smollm2", "bpe", "spm", "prefix"])
def test_a_text_in_pieces_has_the_ids_of_the_whole(
    tmp_path: Path, make: str, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Callable[[], Tokenizer]] = {
        "smollm2": lambda: Tokenizer.of(open_model(smollm2_path)),
        "bpe": bpe,
        "spm": spm,
        "prefix": lambda: spm(prefix=True),
    }
    tokenizer = made[make]()
    text = NOVEL.read_text() + "\n\n  indented\r\n\r\nx\n\n\n'quoted' — 日本\n\t\n"
    path = tmp_path / "d.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    whole = [*tokenizer.encode(text), tokenizer.eos_id]
    for piece in (100, 1000, 1 << 20):
        monkeypatch.setattr(opening, "PIECE", piece)
        options = DataOptions(cache=tmp_path / str(piece))
        source, _ = open_training(path, tokenizer, None, options)
        dataset = source.pipeline.dataset
        assert isinstance(dataset, TokenDataset)
        assert dataset.ids.tolist() == whole


@pytest.mark.parity
@pytest.mark.parametrize("name", ["qwen05_path", "gemma3_path"])
def test_real_vocabularies_in_pieces(
    tmp_path: Path,
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.of(open_model(request.getfixturevalue(name)))
    path = tmp_path / "d.txt"
    path.write_text(NOVEL.read_text())
    monkeypatch.setattr(opening, "PIECE", 100)
    dataset = open_training(path, tokenizer, None, DataOptions())[0].pipeline.dataset
    assert isinstance(dataset, TokenDataset)
    assert dataset.ids.tolist() == [*tokenizer.encode(path.read_text()), tokenizer.eos_id]


def test_the_shard_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_text("one two three")
    options = DataOptions(cache=tmp_path)
    first, _ = open_training(path, bpe(), None, options)
    kept = next((tmp_path / "tokens").glob("*.ids"))
    made = kept.stat().st_mtime_ns
    assert open_training(path, bpe(), None, options)[0].digest == first.digest
    assert kept.stat().st_mtime_ns == made
    path.write_text("four five six")
    assert open_training(path, bpe(), None, options)[0].digest != first.digest
    assert open_training(kept, bpe(), None, options)[0].digest == first.digest


def test_damage_is_said(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "t.ids", bpe()
    write_tokens(path, tokenizer, ["one two three"])
    raw = path.read_bytes()
    with pytest.raises(DataError, match="another vocabulary"):
        TokenDataset(path, 4, fingerprint=spm().fingerprint)
    for bad in (raw[:-1], raw[:20], b"X" + raw[1:], raw[:12] + b"\3" + raw[13:]):
        path.write_bytes(bad)
        with pytest.raises(DataError, match="Make it again"):
            TokenDataset(path, 4)
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(DataError, match="damaged"):
        TokenDataset(path, 4).verify()
    with pytest.raises(DataError, match="cannot be read"):
        TokenDataset(tmp_path / "absent", 4)


def test_text_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(DataError, match=r"line 3: no UTF-8.*iconv"):
        open_training(path, bpe(), None, DataOptions(cache=tmp_path))
    with pytest.raises(DataError, match="no such file"):
        open_training(tmp_path / "absent.txt", bpe(), None, DataOptions(cache=tmp_path))


def test_what_is_held_out_is_never_learned(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    write(path, [{"text": record["messages"][1]["content"]} for record in chats(40)])
    options = DataOptions(held_out=0.25, epochs=3, samples=1, seed=5)
    train, held = open_training(path, bpe(), None, options)
    assert held is not None
    learned: set[bytes] = set()
    while window := train.next_window():
        learned |= {ids.tobytes() for ids, _ in window.batches[0].sequences}
    evaluated = []
    while window := held.next_window():
        evaluated += [ids.tobytes() for ids, _ in window.batches[0].sequences]
    assert (len(learned), len(evaluated)) == (30, 10)
    assert learned.isdisjoint(evaluated)
    assert open_training(path, bpe(), None, options)[0].digest == train.digest
    for share in (1.0, -0.5):  # a negative one held out all but the last samples
        with pytest.raises(DataError, match="Hold out a share from 0 to below 1"):
            open_training(path, bpe(), None, DataOptions(held_out=share))


def test_a_fault_has_the_line_of_the_file_whatever_is_held_out(tmp_path: Path) -> None:
    """Stages named samples by their number in the whole file, and got numbers of a part of it."""
    path = tmp_path / "d.jsonl"
    write(path, [*({"text": str(n)} for n in range(30)), "{broken", {"text": "x"}])
    sources = open_training(path, bpe(), None, DataOptions(held_out=0.5, on_error="skip"))
    faults: list[str] = []
    for source in sources:
        assert source is not None
        while source.next_window():
            pass
        faults += source.pipeline.stages[0].tally.first("invalid")
    assert len(faults) == 1
    assert "d.jsonl, line 31: no JSON" in faults[0]


def test_a_folder_is_all_of_its_files(tmp_path: Path) -> None:
    """The same windows as from one file with everything in it, but for what names the files."""
    records = [{"text": f"number {n}"} for n in range(23)]
    folder = tmp_path / "all"
    folder.mkdir()
    for name, part in (("b", records[9:9]), ("a", records[:9]), ("c", records[9:])):
        write(folder / f"{name}.jsonl", part)
    (folder / "notes.txt").write_text("not one of them")
    whole = tmp_path / "whole.jsonl"
    write(whole, records)
    options = DataOptions(samples=3, seed=2, epochs=2)
    apart, together = (open_training(p, bpe(), None, options)[0] for p in (folder, whole))
    for _ in range(16):
        one, other = apart.next_window(), together.next_window()
        assert one is not None
        assert other is not None
        assert one.samples == other.samples
        for a, b in zip(one.batches, other.batches, strict=True):
            assert [i.tolist() for i, _ in a.sequences] == [i.tolist() for i, _ in b.sequences]
    assert apart.next_window() is together.next_window() is None
    assert apart.pipeline.dataset.where(9) == f"{folder / 'c.jsonl'}, line 1"
    assert apart.pipeline.dataset.where(8) == f"{folder / 'a.jsonl'}, line 9"
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="another folder"):
        open_training(tmp_path / "none", bpe(), None, options)


def test_shift_says_what_it_takes(tmp_path: Path) -> None:
    from tests.dataflow.data.test_footprints import measured

    path = tmp_path / "t.ids"
    write_tokens(path, bpe(), [NOVEL.read_text()])
    data = TokenDataset(path, 128)
    pipeline = DataPipeline(data, [], workers=0)
    batch, stage = list(pipeline.run())[:100], Shift()
    truth = measured(stage, batch)
    assert abs(stage.get_memory_footprint(batch) - truth) <= 0.05 * truth
