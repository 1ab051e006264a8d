"""The `tokenizers` package, wired as the models' own tokenizer.json files are.

Everything but the wiring comes from the model file's lists. SmolLM2: Digits(individual) then the
GPT-2 ByteLevel. Qwen2: NFC, its regular expression, ByteLevel. Gemma 3: spaces as U+2581, BPE with
byte fallback over merges derived from the vocabulary as transformers 5 does (generate_merges with
positions for scores). Control tokens are special, user-defined ones plain added tokens;
`encode_special_tokens` is what keeps the former out of text.
"""

from __future__ import annotations

from rebar.graph.weights.model_file import TokenizerData
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTROL, USER = 3, 4
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def reference(data: TokenizerData) -> Tokenizer:
    """The reference for the lists of one model file."""
    tokenizer = gemma(data) if data.kind == "spm" else byte_level(data)
    for kind in (CONTROL, USER):
        added = [
            AddedToken(text, special=kind == CONTROL, normalized=False)
            for text, type_ in zip(data.tokens, data.types, strict=True)
            if type_ == kind and not (data.kind == "spm" and not text.strip(" "))
        ]
        (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)(added)
    return tokenizer


def byte_level(data: TokenizerData) -> Tokenizer:
    """GPT-2 style BPE over bytes."""
    vocab = {token: i for i, token in enumerate(data.tokens)}
    merges = [(left, right) for left, right in (m.split(" ") for m in data.merges or [])]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=data.pre == "llama-bpe"))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    regular = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if data.pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = {
        "gpt-2": regular,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), regular]),
        "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), plain]),
        "llama-bpe": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), plain]
        ),
    }[data.pre]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gemma(data: TokenizerData) -> Tokenizer:
    """SentencePiece-style BPE with byte fallback."""
    spelled = [t.replace(" ", "▁") if not t.strip(" ") else t for t in data.tokens]
    vocab = {token: i for i, token in enumerate(spelled)}
    merges = []
    for token, i in vocab.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                merges.append((-i, len(left), len(right), left, right))
    merges.sort(key=lambda m: m[:3], reverse=True)
    unknown = data.tokens[data.unknown_id] if data.unknown_id is not None else None
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            [(m[3], m[4]) for m in merges],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
