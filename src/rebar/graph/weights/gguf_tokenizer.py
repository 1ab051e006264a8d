"""The tokenizer's tables out of GGUF keys. Defaults where files leave keys out are llama.cpp's."""

from __future__ import annotations

from typing import Literal

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.weights.end_tokens import NORMAL, end_ids
from rebar.graph.weights.gguf_keys import Keys
from rebar.graph.weights.model_file import TokenizerData

_KINDS: dict[str, Literal["bpe", "spm"]] = {"gpt2": "bpe", "llama": "spm"}
# Files of these pre-tokenizers begin a text with bos unless they say otherwise.
_LLAMA3 = ("llama3", "llama-v3", "llama-bpe")


def read_tokenizer(keys: Keys, vocab_size: int) -> TokenizerData:
    """Raises CorruptFileError for tables that contradict each other, UnsupportedModelError for an
    unknown kind.
    """
    model = keys.text("tokenizer.ggml.model")
    if model not in _KINDS:
        raise UnsupportedModelError(
            f"{keys.where}: tokenizer {model!r} is not supported; supported are gpt2 (BPE) "
            "and llama (SentencePiece). "
            "Use a model with one of these."
        )
    kind = _KINDS[model]
    tokens = _tokens(keys, vocab_size)
    count = len(tokens)
    types = [
        int(value) for value in keys.numbers("tokenizer.ggml.token_type", count) or [NORMAL] * count
    ]
    pre = keys.text("tokenizer.ggml.pre", "default")
    merges = keys.strings("tokenizer.ggml.merges")
    scores = keys.numbers("tokenizer.ggml.scores", count)
    if (merges if kind == "bpe" else scores) is None:
        missing = "merges" if kind == "bpe" else "scores"
        raise CorruptFileError(
            f"{keys.where}: 'tokenizer.ggml.{missing}' is missing. Convert the model again."
        )
    bos = _token_id(keys, "bos", count)
    adds = keys.flag("tokenizer.ggml.add_bos_token", kind == "spm" or pre in _LLAMA3)
    return TokenizerData(
        kind=kind,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=merges,
        bos_id=bos,
        eos_id=_token_id(keys, "eos", count),
        end_ids=end_ids(_named_ends(keys, count), tokens, types),
        unknown_id=_token_id(keys, "unknown", count),
        pad_id=_token_id(keys, "padding", count),
        add_bos=adds and bos is not None,
        add_space_prefix=keys.flag("tokenizer.ggml.add_space_prefix", kind == "spm"),
    )


def _tokens(keys: Keys, vocab_size: int) -> list[str]:
    tokens = keys.strings("tokenizer.ggml.tokens")
    if not tokens or len(tokens) > vocab_size:
        raise CorruptFileError(
            f"{keys.where}: {len(tokens or [])} tokens for an embedding of {vocab_size} rows. "
            "Convert the model again."
        )
    return tokens


def _named_ends(keys: Keys, count: int) -> list[int]:
    ids = (_token_id(keys, name, count) for name in ("eos", "eot", "eom"))
    return [id_ for id_ in ids if id_ is not None]


def _token_id(keys: Keys, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    # Old converters wrote -1 (as uint32) for "none".
    id_ = keys.integer(key, 0xFFFFFFFF)
    if id_ == 0xFFFFFFFF:
        return None
    if id_ >= count:
        raise CorruptFileError(
            f"{keys.where}: key {key!r} is {id_}, the vocabulary has {count} tokens. Convert "
            "the model again."
        )
    return id_
