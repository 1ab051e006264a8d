"""tokenizer.json and tokenizer_config.json of a model's tokenizer: the way back of `hf_tokenizer`.
Format: huggingface/tokenizers, its JSON serialization.
"""

from __future__ import annotations

from typing import Any

from rebar.errors import UnsupportedModelError
from rebar.graph.weights.end_tokens import CONTROL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from rebar.graph.weights.hf_tokenizer import SPLITS
from rebar.graph.weights.model_file import TokenizerData

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_TO_SPACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_FROM_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_WHOLE = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def hf_tokenizer(data: TokenizerData) -> dict[str, Any]:
    """tokenizer.json. data: with merges, of either kind (read_vocabulary). Ids of unused tokens
    stay free; of tokens that are spelled alike the last one counts.
    """
    spm = data.kind == "spm"
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added(data, id_) for id_ in range(len(data.tokens)) if _whole(data, id_)],
        "normalizer": _spm_normalizer(data) if spm else _normalizer(data),
        "pre_tokenizer": None if spm else _pre_tokenizer(data),
        "post_processor": _post_processor(data),
        "decoder": _spm_decoder(data) if spm else _BYTE_LEVEL | {"use_regex": True},
        "model": _model(data),
    }  # fmt: skip


def tokenizer_config(data: TokenizerData, context: int) -> dict[str, Any]:
    """tokenizer_config.json. context: positions of the model."""
    named = {"bos": data.bos_id, "eos": data.eos_id, "unk": data.unknown_id, "pad": data.pad_id}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    } | {f"{name}_token": data.tokens[id_] for name, id_ in named.items() if id_ is not None}


def _whole(data: TokenizerData, id_: int) -> bool:
    """Whether a token is matched whole, before the rest. Runs of spaces are merged instead."""
    kind, token = data.types[id_], data.tokens[id_]
    if data.kind == "spm" and kind == USER_DEFINED:
        return bool(token.strip(SPACE))
    return kind in (CONTROL, USER_DEFINED, UNKNOWN)


def _added(data: TokenizerData, id_: int) -> dict[str, Any]:
    special = data.types[id_] != USER_DEFINED
    return {"id": id_, "content": data.tokens[id_], **_WHOLE, "special": special}


def _model(data: TokenizerData) -> dict[str, Any]:
    spm = data.kind == "spm"
    unknown = data.tokens[data.unknown_id] if spm and data.unknown_id is not None else None
    merges = [merge.split(" ", 1) for merge in data.merges or ()]
    needed = {token for left, right in merges for token in (left, right, left + right)}
    vocab = {
        token: id_
        for id_, token in enumerate(data.tokens)
        if data.types[id_] != UNUSED or token in needed
    }
    return {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": spm, "byte_fallback": spm,
        "ignore_merges": data.pre == "llama-bpe", "vocab": vocab,
        "merges": merges,
    }  # fmt: skip


def _normalizer(data: TokenizerData) -> dict[str, Any] | None:
    return {"type": "NFC"} if data.pre == "qwen2" else None


def _pre_tokenizer(data: TokenizerData) -> dict[str, Any]:
    if data.pre == "gpt-2":
        return _BYTE_LEVEL | {"use_regex": True}
    if data.pre == "smollm":
        parts = [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL | {"use_regex": True}]
    elif data.pre in SPLITS:
        pattern = {"Regex": SPLITS[data.pre]}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        parts = [split, _BYTE_LEVEL | {"use_regex": False}]
    else:
        raise UnsupportedModelError(
            f"a tokenizer with the pre-tokenizer {data.pre!r} cannot be written as tokenizer.json. "
            "Write the model as .rebar."
        )
    return {"type": "Sequence", "pretokenizers": parts}


def _spm_normalizer(data: TokenizerData) -> dict[str, Any]:
    if not data.add_space_prefix:
        return _FROM_SPACE
    prepend = {"type": "Prepend", "prepend": SPACE}
    return {"type": "Sequence", "normalizers": [prepend, _FROM_SPACE]}


def _spm_decoder(data: TokenizerData) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if data.add_space_prefix:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": parts}


def _post_processor(data: TokenizerData) -> dict[str, Any] | None:
    """What puts bos before a text, where the model wants that."""
    if not data.add_bos or data.bos_id is None:
        return None
    token = data.tokens[data.bos_id]
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    texts = [{"Sequence": {"id": letter, "type_id": i}} for i, letter in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [bos, texts[0]],
        "pair": [bos, texts[0], {"SpecialToken": {"id": token, "type_id": 1}}, texts[1]],
        "special_tokens": {token: {"id": token, "ids": [data.bos_id], "tokens": [token]}},
    }
