"""Tokenize: a record to ids, and which of them are asked for.

Three kinds of records, told by their keys. {"messages": [...]} (and "tools"): the model's own chat
template, as serving renders it; the assistant's turns are asked for (text/turns.py). {"prompt",
"completion"}: the text as it stands, as /v1/completions takes it, then the completion and an end
token, which are asked for; both as lists of messages: a conversation of which the completion's
turns are asked for. {"text"}: a document, asked for as a whole, with an end token.

A control token that is spelled out in a message is text, as in serving. In the other kinds it is
the token, as in /v1/completions: whoever renders a template into them means it. An end or beginning
that the text spells itself does not come twice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from rebar.dataflow.data.estimate import Estimate, texts_of
from rebar.dataflow.data.faults import Faults, OnError, Where
from rebar.dataflow.data.footprint import array_bytes, items_bytes, view_bytes
from rebar.dataflow.data.parse import Json
from rebar.dataflow.data.stage import Item, Stage
from rebar.dataflow.text.chat import ChatTemplate
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.dataflow.text.turns import Part, conversation
from rebar.errors import InputError

KEYS = ("messages", "prompt and completion", "text")


class Marked(msgspec.Struct, frozen=True):
    """ids (n,). asked (n,): which of them are learned; None: all. A document may be cut anywhere; a
    conversation has one beginning.
    """

    ids: NDArray[np.int32]
    asked: NDArray[np.bool_] | None
    document: bool


MARKED = sys.getsizeof(Marked(np.empty(0, np.int32), None, False))


class Tokenize(Stage[Json, Marked]):
    """Records of the three kinds to ids. What is none of them meets the rule `on_error`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        where: Where,
        on_error: OnError = "raise",
    ) -> None:
        """template: None for a model without one: conversations are then faults."""
        super().__init__()
        self._tokenizer = tokenizer
        self._template = template
        self._faults = Faults(on_error, where, self.tally)
        self._on_error = on_error
        self._end = tokenizer.eos_id
        self._begin = tokenizer.bos_id if tokenizer.add_bos else None
        self._estimate = Estimate(tokenizer, template)

    @property
    def settings(self) -> Mapping[str, str | int]:
        """Vocabulary and template, by their digests, and the rule for faults."""
        return {
            "tokenizer": self._tokenizer.fingerprint,
            "template": self._template.digest if self._template else "",
            "on_error": self._on_error,
        }

    def process_batch(self, batch: Sequence[Item[Json]]) -> list[Item[Marked]]:
        """One item for each usable record; documents in one call without the GIL."""
        found: dict[int, Marked] = {}
        documents: list[int] = []
        for number, item in enumerate(batch):
            try:
                if is_document(item.value):
                    documents.append(number)
                else:
                    found[number] = self._marked(item.value)
            except InputError as error:
                self._faults.meet(item.sample, error)
        found.update(self._documents(batch, documents))
        return [batch[number].having(found[number]) for number in sorted(found)]

    def _documents(self, batch: Sequence[Item[Json]], numbers: list[int]) -> dict[int, Marked]:
        texts = [batch[number].value["text"] for number in numbers]
        arrays = self._tokenizer.encode_arrays(
            texts, special=True, before=self._begin, after=self._end
        )
        return {
            n: Marked(self._once(ids), None, True) for n, ids in zip(numbers, arrays, strict=True)
        }

    def _once(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Without the ids put around a text that spells them itself."""
        if self._begin is not None and len(ids) > 1 and ids[1] == self._begin:
            ids = ids[1:]
        if self._end is not None and len(ids) > 1 and int(ids[-2]) in self._tokenizer.end_ids:
            ids = ids[:-1]
        return ids

    def _marked(self, record: Json) -> Marked:
        if not isinstance(record, dict):
            raise _unknown(record)
        if "messages" in record:
            return self._conversation(record["messages"], 0, record.get("tools"))
        prompt, completion = record.get("prompt"), record.get("completion")
        if isinstance(prompt, str) and isinstance(completion, str):
            return _joined(self._completion(prompt, completion))
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._conversation([*prompt, *completion], len(prompt), record.get("tools"))
        raise _unknown(record)

    def _conversation(self, messages: Json, first: int, tools: Json) -> Marked:
        """first: only turns from this message on are asked for."""
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise InputError("messages is no list of objects. Give role and content of each.")
        if not isinstance(tools, list | None):
            raise InputError("tools is no list. Give descriptions of functions, or leave it out.")
        if self._template is None:
            raise InputError(
                "this model has no chat template. Give prompt and completion, or text."
            )
        parts, endless = conversation(self._template, self._tokenizer, messages, tools, first=first)
        if endless:
            self.tally.add("turns_without_end", endless)
        return _joined(parts)

    def _completion(self, prompt: str, completion: str) -> list[Part]:
        said = self._tokenizer.encode(completion, special=True, bos=False)
        if self._end is not None and not (said and said[-1] in self._tokenizer.end_ids):
            said.append(self._end)
        return [
            Part(self._tokenizer.encode(prompt, special=True), asked=False),
            Part(said, asked=True),
        ]

    def get_memory_footprint(self, batch: Sequence[Item[Json]]) -> int:
        """Bytes of ids and marks; how many ids: estimate.py."""
        texts: list[str] = []  # of documents, whose ids lie in one array
        said: list[str] = []
        added = 0
        for item in batch:
            if is_document(item.value):
                texts.append(item.value["text"])
            elif isinstance(item.value, dict):
                messages = _messages(item.value)
                said += texts_of(messages, item.value.get("tools"))
                added += self._added(item.value, messages)
        around = sum(id is not None for id in (self._begin, self._end))
        documents = self._estimate.of_texts(texts) + around * len(texts)
        asked = self._estimate.of_texts(said) + added
        apart = len(batch) - len(texts)
        return int(
            items_bytes(len(batch))
            + len(batch) * MARKED
            + len(texts) * view_bytes(1)
            + (sys.getsizeof(b"") + view_bytes(1) if texts else 0)  # the one array of them all
            + apart * (array_bytes(0, np.int32) + array_bytes(0, np.bool_))
            + documents * 4
            + asked * 5
        )

    def _added(self, record: Json, messages: Sequence[Json]) -> int:
        if "messages" in record or isinstance(record.get("prompt"), list):
            return self._estimate.added(messages)
        return sum(id is not None for id in (self._begin, self._end))


def _messages(record: Json) -> list[Json]:
    """What a record says, as messages."""
    if isinstance(record.get("messages"), list):
        return list(record["messages"])
    found: list[Json] = []
    for key in ("prompt", "completion"):
        value = record.get(key)
        found += value if isinstance(value, list) else [{"content": value}]
    return found


def is_document(record: Json) -> bool:
    """{"text": ...} and no conversation."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("text"), str)
        and "messages" not in record
        and "prompt" not in record
    )


def _joined(parts: Sequence[Part]) -> Marked:
    ids = np.array([id for part in parts for id in part.ids], dtype=np.int32)
    asked = np.repeat([part.asked for part in parts], [len(part.ids) for part in parts])
    return Marked(ids, asked, document=False)


def _unknown(record: Json) -> InputError:
    said = ", ".join(record) if isinstance(record, Mapping) else type(record).__name__
    return InputError(
        f"the record holds {said or 'nothing'}, which is not {' or '.join(KEYS)}. Rename its keys."
    )
