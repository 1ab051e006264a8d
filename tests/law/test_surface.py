"""The public names of the layers, as recorded: what is added or dropped here is a decision.

(After httpx's test of exported members.)
"""

from __future__ import annotations

from importlib import import_module

import pytest

SURFACE = {
    "rebar": "Answer Model RebarError __version__ load",
    "rebar.hal": (
        "Activation BLOCK_POSITIONS Backend Block DeviceManager DeviceStats Domain Indices "
        "KVFormat KVStorage Launch Limits LoraPair LoraTable Machine Matrix Operand Pool "
        "PoolStats Program QuantizedRows Rows SharedMemory Step Vector WeightFormat aligned "
        "launches read_machine"
    ),
    "rebar.graph": (
        "Builder CompiledGraph Cost Decoder DecoderConfig Graph MemoryEntry MemoryPlan ModelFile "
        "Node Observer PagedKVCache RopeConfig Row Runner RunnerOptions Sampled Sampler "
        "SamplingParams Sequence StoredTensor Tensor TokenizerData Values Wanted build_decoder "
        "fuse load_runner plan_memory"
    ),
    "rebar.graph.weights": (
        "ModelFile StoredTensor TokenizerData WeightType open_model pack packed_nbytes "
        "provenance_of verify_digests write_rebar"
    ),
    "rebar.dataflow.data": (
        "BatchSizer BatchStage DataOptions DataPipeline Dataset Decode Example Item MMapDataset "
        "Marked Mask Pack Shift Stage Survey Tally TokenDataset Tokenize TrainingBatches generator "
        "open_training samples_at write_tokens"
    ),
    "rebar.dataflow.text": "ChatTemplate TextStream Tokenizer build_vocabulary",
}


@pytest.mark.parametrize("name", SURFACE)
def test_the_public_names_are_the_recorded_ones(name: str) -> None:
    module = import_module(name)
    assert sorted(module.__all__) == SURFACE[name].split()
    for public in module.__all__:
        assert getattr(module, public) is not None


def test_a_name_that_is_not_public_is_told() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = import_module("rebar").nonsense
