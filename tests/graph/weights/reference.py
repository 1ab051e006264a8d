"""Values of stored tensors by the reference library."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from rebar.graph.weights.model_file import StoredTensor
from rebar.graph.weights.types import FORMATS


def values_of(tensor: StoredTensor) -> NDArray[np.float32]:
    """The values of an unpacked tensor, rows in output order."""
    data = np.array(tensor.data)
    if tensor.type == "F32":
        found: NDArray[np.float32] = data.view("<f4").reshape(tensor.shape)
    elif tensor.type == "F16":
        found = data.view("<f2").astype(np.float32).reshape(tensor.shape)
    else:
        kind = GGMLQuantizationType(FORMATS[tensor.type].ggml)
        found = dequantize(data.reshape(*tensor.shape[:-1], -1), kind).reshape(tensor.shape)
    return found if tensor.rows is None else found[tensor.rows]
