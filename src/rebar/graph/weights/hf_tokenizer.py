"""The tokenizer's tables out of tokenizer.json and its neighbours. Format: huggingface/tokenizers,
its JSON serialization.

The file spells out a pipeline of parts; only pipelines that this project's tokenizers reproduce
are accepted, by their parts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rebar.errors import CorruptFileError, UnsupportedModelError
from rebar.graph.weights.end_tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    end_ids,
)
from rebar.graph.weights.hf_config import HFConfig, read_json
from rebar.graph.weights.model_file import TokenizerData
from rebar.hal.files import read_bounded

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "qwen2": _LETTERS + r"\p{N}" + _REST,
    "llama-bpe": _LETTERS + r"\p{N}{1,3}" + _REST,
}
_NAMES = {pattern: name for name, pattern in SPLITS.items()}
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
MAX_TEMPLATE_BYTES = 1 << 24
_UNRANKED = -1000.0  # below every merge: what GGUF files give tokens that no merge makes

Part = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is matched before the rest."""

    id: int
    content: str
    special: bool = False


class BPE(msgspec.Struct, frozen=True):
    """The model part."""

    type: str
    vocab: dict[str, int]
    merges: list[str | tuple[str, str]] = []
    unk_token: str | None = None
    byte_fallback: bool = False


class TokenizerFile(msgspec.Struct, frozen=True):
    """tokenizer.json."""

    model: msgspec.Raw
    added_tokens: list[AddedToken] = []
    normalizer: Part | None = None
    pre_tokenizer: Part | None = None
    post_processor: Part | None = None


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class TokenizerConfig(msgspec.Struct, frozen=True):
    """tokenizer_config.json; a token is a string or an object with `content`."""

    bos_token: str | Part | None = None
    eos_token: str | Part | None = None
    pad_token: str | Part | None = None
    unk_token: str | Part | None = None
    add_bos_token: bool | None = None
    chat_template: str | list[dict[str, str]] | None = None


class GenerationConfig(msgspec.Struct, frozen=True):
    """generation_config.json."""

    eos_token_id: int | list[int] | None = None


def read_hf_tokenizer(folder: Path, config: HFConfig, vocab_size: int) -> TokenizerData:
    """Raises UnsupportedModelError for another pipeline, CorruptFileError for tables that
    contradict each other.
    """
    path = folder / "tokenizer.json"
    file, where = read_json(path, TokenizerFile), str(path)
    bpe = _model(file, where)
    settings = _optional(folder / "tokenizer_config.json", TokenizerConfig)
    tokens, types = _tables(file, bpe, vocab_size, where)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe.merges]
    ids = {token: id_ for id_, token in enumerate(tokens)}
    bos = _id_of(settings.bos_token, ids)
    ends = _end_ids(folder, config, settings, ids)
    return TokenizerData(
        kind="spm" if bpe.byte_fallback else "bpe",
        pre="default" if bpe.byte_fallback else _pre(file, where),
        tokens=tokens,
        types=types,
        scores=_scores(tokens, bpe) if bpe.byte_fallback else None,
        merges=merges,
        bos_id=bos,
        eos_id=_id_of(settings.eos_token, ids),
        end_ids=end_ids((id_ for id_ in ends if id_ < len(tokens)), tokens, types),
        unknown_id=ids.get(bpe.unk_token) if bpe.unk_token else _id_of(settings.unk_token, ids),
        pad_id=_id_of(settings.pad_token, ids),
        add_bos=bos is not None
        and (_adds(file.post_processor, tokens[bos]) or settings.add_bos_token is True),
        add_space_prefix=bpe.byte_fallback and _prefixes_space(file, where),
    )


def read_template(folder: Path) -> str | None:
    """chat_template.jinja, else the template (of several, the default one) of
    tokenizer_config.json.
    """
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_bounded(path, MAX_TEMPLATE_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptFileError(f"{path} is not UTF-8. Fetch it again.") from error
    found = _optional(folder / "tokenizer_config.json", TokenizerConfig).chat_template
    if isinstance(found, list):
        return next(
            (entry.get("template") for entry in found if entry.get("name") == "default"), None
        )
    return found


def _optional(path: Path, kind: type[S]) -> S:
    return read_json(path, kind) if path.exists() else kind()


def _model(file: TokenizerFile, where: str) -> BPE:
    try:
        kind = msgspec.json.decode(file.model, type=_Kind).type
        if kind == "BPE":
            return msgspec.json.decode(file.model, type=BPE)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CorruptFileError(
            f"{where}: the model is unreadable ({error}). Fetch it again."
        ) from error
    raise UnsupportedModelError(
        f"{where}: tokenizer model {kind[:40]!r} is not supported, BPE is. Use another model."
    )


def _tables(
    file: TokenizerFile, bpe: BPE, vocab_size: int, where: str
) -> tuple[list[str], list[int]]:
    """Tokens and types by id; ids that nothing names are unused."""
    added = {token.id: token for token in file.added_tokens}
    named = {id_: token for token, id_ in bpe.vocab.items()} | {
        i: t.content for i, t in added.items()
    }
    if not named or min(named) < 0 or max(named) >= vocab_size:
        raise CorruptFileError(
            f"{where}: token ids reach {max(named, default=-1)}, the embedding has "
            f"{vocab_size} rows. Fetch it again."
        )
    if len(set(bpe.vocab.values())) != len(bpe.vocab):
        raise CorruptFileError(f"{where}: two tokens have one id. Fetch it again.")
    count = max(named) + 1
    tokens = [named.get(id_, f"[PAD{id_}]") for id_ in range(count)]
    types = [
        UNUSED if id_ not in named else _type_of(tokens[id_], added.get(id_), bpe)
        for id_ in range(count)
    ]
    return tokens, types


def _type_of(token: str, added: AddedToken | None, bpe: BPE) -> int:
    if token == bpe.unk_token and bpe.byte_fallback:
        return UNKNOWN
    if added is not None:
        return CONTROL if added.special else USER_DEFINED
    return BYTE if bpe.byte_fallback and _BYTE_TOKEN.fullmatch(token) else NORMAL


def _scores(tokens: list[str], bpe: BPE) -> list[float]:
    """SentencePiece's scores of a BPE model: minus the rank of the first merge that makes a
    token.
    """
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(bpe.merges):
        made = merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
        ranks.setdefault(made, rank)
    return [-float(ranks[token]) if token in ranks else _UNRANKED for token in tokens]


def _parts(part: Part | None) -> list[Part]:
    """A sequence's parts, flat."""
    if part is None:
        return []
    inner = part.get("normalizers") or part.get("pretokenizers") or part.get("processors")
    if part.get("type") != "Sequence" or not isinstance(inner, list):
        return [part]
    return [entry for entry in inner if isinstance(entry, dict)]


def _pre(file: TokenizerFile, where: str) -> str:
    """The pre-tokenizer's name in GGUF's words, by its parts."""
    if any(part.get("type") != "NFC" for part in _parts(file.normalizer)):
        raise _unknown_pipeline(where, "normalizer", file.normalizer)
    parts = _parts(file.pre_tokenizer)
    kinds = [part.get("type") for part in parts]
    own_regex = bool(parts) and parts[-1].get("use_regex", True) is True
    plain = bool(parts) and parts[-1].get("add_prefix_space", False) is False
    if kinds == ["ByteLevel"] and own_regex and plain:
        return "gpt-2"
    if (
        kinds == ["Digits", "ByteLevel"]
        and parts[0].get("individual_digits") is True
        and own_regex
        and plain
    ):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not own_regex and plain:
        pattern = parts[0].get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str) and regex in _NAMES and parts[0].get("behavior") == "Isolated":
            return _NAMES[regex]
    raise _unknown_pipeline(where, "pre-tokenizer", file.pre_tokenizer)


def _prefixes_space(file: TokenizerFile, where: str) -> bool:
    """Whether a text gets a space in front: a Prepend normalizer or Metaspace says so; other
    parts are refused.
    """
    normalizers = [part.get("type") for part in _parts(file.normalizer)]
    pre = _parts(file.pre_tokenizer)
    if not set(normalizers) <= {"Prepend", "Replace"}:
        raise _unknown_pipeline(where, "normalizer", file.normalizer)
    if any(part.get("type") not in ("Metaspace", "Split") for part in pre):
        raise _unknown_pipeline(where, "pre-tokenizer", file.pre_tokenizer)
    schemes = {
        part.get("prepend_scheme", "always") for part in pre if part.get("type") == "Metaspace"
    }
    return "Prepend" in normalizers or bool(schemes & {"first", "always"})


def _unknown_pipeline(where: str, what: str, part: Part | None) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{where}: this {what} is not supported: {str(part)[:200]}. Use a GGUF file of the model."
    )


def _adds(post: Part | None, bos: str) -> bool:
    """Whether the template for single texts begins with bos."""
    for part in _parts(post):
        single = part.get("single")
        if isinstance(single, list) and single and isinstance(single[0], dict):
            special = single[0].get("SpecialToken")
            if isinstance(special, dict) and special.get("id") == bos:
                return True
    return False


def _id_of(token: str | Part | None, ids: dict[str, int]) -> int | None:
    content = token.get("content") if isinstance(token, dict) else token
    return ids.get(content) if isinstance(content, str) else None


def _end_ids(
    folder: Path, config: HFConfig, settings: TokenizerConfig, ids: dict[str, int]
) -> set[int]:
    generation = _optional(folder / "generation_config.json", GenerationConfig)
    found: set[int] = set()
    for value in (config.eos_token_id, generation.eos_token_id, _id_of(settings.eos_token, ids)):
        found |= set(value) if isinstance(value, list) else {value} if value is not None else set()
    return {id_ for id_ in found if id_ >= 0}
