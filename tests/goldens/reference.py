"""Reference engines on given ids: transformers in float32 on dequantized weights, and llama.cpp.

Both import their library when called: it is there only in the environment of `./test parity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SLICE = 256  # positions whose logits are held at once: 256 MB for a vocabulary of 262,144

Logits = NDArray[np.float32]


def transformers_model(path: Path) -> PreTrainedModel:
    """The GGUF file's weights, dequantized to float32, in the library's own model."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


def transformers_logits(model: PreTrainedModel, ids: NDArray[np.int32]) -> Iterator[Logits]:
    """Logits of one context, SLICE positions at a time."""
    import torch

    if getattr(model.config, "final_logit_softcapping", None) is not None:
        raise ValueError("this slicing of the head leaves out the soft cap of the logits")
    with torch.inference_mode():
        hidden = model.model(input_ids=torch.tensor(ids[None].astype(np.int64))).last_hidden_state
        for start in range(0, len(ids), SLICE):
            yield model.lm_head(hidden[0, start : start + SLICE]).float().numpy()


def transformers_embeddings(
    path: Path, texts: list[list[int]], pooling: str
) -> list[NDArray[np.float64]]:
    """Vectors of length 1: mean or last of the states behind the final norm, in float32."""
    import torch

    model, found = transformers_model(path), []
    with torch.inference_mode():
        for ids in texts:
            states = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            vector = (states.mean(dim=0) if pooling == "mean" else states[-1]).double().numpy()
            found.append(vector / np.linalg.norm(vector))
    return found


def llama_cpp_logits(path: Path, ids: NDArray[np.int32], threads: int = 1) -> Iterator[Logits]:
    """As above from llama.cpp, which keeps its own quantized kernels."""
    from llama_cpp import Llama

    model = Llama(
        str(path), n_ctx=len(ids), n_batch=SLICE, n_threads=threads, n_threads_batch=threads,
        logits_all=True, verbose=False,
    )  # fmt: skip
    for start in range(0, len(ids), SLICE):
        model.eval(ids[start : start + SLICE].tolist())
        yield model.scores[start : start + SLICE].astype(np.float32)
    model.close()


def llama_cpp_embeddings(
    path: Path, texts: list[list[int]], pooling: str
) -> list[NDArray[np.float64]]:
    """Vectors of length 1 as llama.cpp pools them; pooling: mean or last."""
    import llama_cpp

    kind = getattr(llama_cpp, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    model = llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=512, n_ubatch=512, embedding=True, pooling_type=kind,
        n_threads=2, verbose=False,
    )  # fmt: skip
    found = []
    for ids in texts:
        model._batch.reset()
        model._batch.add_sequence(ids, 0, True)
        model._ctx.kv_cache_clear()
        model._ctx.decode(model._batch)
        pointer = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)
        vector = np.ctypeslib.as_array(pointer, shape=(model.n_embd(),)).astype(np.float64)
        found.append(vector / np.linalg.norm(vector))
    model.close()
    return found


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Rows of log probabilities in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def negative_log_probability(
    slices: Iterator[Logits], ids: NDArray[np.int32]
) -> tuple[float, dict[int, NDArray[np.float64]]]:
    """Mean over every position but the first, in nats; and the rows of log probabilities kept."""
    from tests.goldens.golden import ROWS

    total, start = 0.0, 0
    rows: dict[int, NDArray[np.float64]] = {}
    for logits in slices:
        logprobs = log_softmax(logits)
        known = ids[start + 1 : start + 1 + len(logits)]
        total -= float(logprobs[np.arange(len(known)), known].sum())
        rows |= {p: logprobs[p - start] for p in ROWS if start <= p < start + len(logits)}
        start += len(logits)
    return total / (len(ids) - 1), rows
