"""torch with transformers: LoRA steps, for their speed or along the same curve as ours.

python peer_torch_lora.py speed HF_FOLDER THREADS STEPS: 4 x 256 random ids, r 8, alpha 16 on q and
v, AdamW; tokens a second and peak memory.
python peer_torch_lora.py learn MODEL.gguf WORK.npz THREADS: trains on the ids of WORK from its
adapter, with its settings, and evaluates on its held-out ids. One line of JSON.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


class Lora(torch.nn.Module):
    """A linear layer with an adapter beside it."""

    def __init__(
        self, base: torch.nn.Linear, a: torch.Tensor, b: torch.Tensor, scale: float
    ) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.A, self.B = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = base(x) + scale B A x."""
        return self.base(x) + (x @ self.A.T) @ self.B.T * self.scale


def adapted(model: torch.nn.Module, matrices: dict[str, np.ndarray], scale: float) -> list:
    """Puts adapters on modules by name; gives their parameters."""
    for p in model.parameters():
        p.requires_grad_(False)
    for name in sorted({key.rsplit(".lora_", 1)[0] for key in matrices}):
        parent, child = name.rsplit(".", 1)
        owner = model.get_submodule(parent)
        a, b = (torch.tensor(matrices[f"{name}.lora_{side}.weight"]) for side in "AB")
        setattr(owner, child, Lora(getattr(owner, child), a, b, scale))
    return [p for p in model.parameters() if p.requires_grad]


def speed(folder: str, steps: int) -> dict[str, float]:
    """As ../shared/peers/torch_lora_bench.py does it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    matrices = {}
    for i, layer in enumerate(model.model.layers):
        for part in ("q_proj", "v_proj"):
            linear = getattr(layer.self_attn, part)
            name = f"model.layers.{i}.self_attn.{part}"
            matrices[f"{name}.lora_A.weight"] = 0.01 * np.random.randn(8, linear.in_features)
            matrices[f"{name}.lora_B.weight"] = np.zeros((linear.out_features, 8))
    matrices = {name: m.astype(np.float32) for name, m in matrices.items()}
    optimizer = torch.optim.AdamW(adapted(model, matrices, 2.0), 1e-4)
    x, times = torch.randint(100, 40000, (4, 256)), []
    for _ in range(steps):
        begin = time.perf_counter()
        model(x, labels=x).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"tokens_s": x.numel() / statistics.median(times[2:]), "peak_mb": peak / 1e6}


def learn(path: Path, work: Path) -> dict[str, list]:
    """Losses of every step, and on held-out ids every so many."""
    data = np.load(work)
    settings = json.loads(str(data["settings"]))
    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    matrices = {key: data[key] for key in data.files if ".lora_" in key}
    parameters = adapted(model, matrices, settings["scale"])
    optimizer = torch.optim.AdamW(parameters, 1.0, weight_decay=settings["weight_decay"])
    model.train()
    losses, held_out = [], [[0, evaluated(model, data["held_out"])]]
    for step, (ids, rate) in enumerate(zip(data["ids"], settings["rates"], strict=True)):
        optimizer.param_groups[0]["lr"] = rate
        loss = mean_loss(model, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings["clip"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % settings["every"] == 0 or step + 1 == len(data["ids"]):
            held_out.append([step + 1, evaluated(model, data["held_out"])])
    return {"losses": losses, "held_out": held_out}


def mean_loss(model: torch.nn.Module, ids: np.ndarray) -> torch.Tensor:
    """ids (sequences, n + 1): the mean loss of the n that follow another."""
    ids = torch.tensor(ids, dtype=torch.int64)
    logits = model(ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def evaluated(model: torch.nn.Module, held_out: np.ndarray) -> float:
    """Mean loss on held-out ids."""
    with torch.no_grad():
        return statistics.fmean(mean_loss(model, ids[None]).item() for ids in held_out)


if __name__ == "__main__":
    if sys.argv[1] == "speed":
        torch.set_num_threads(int(sys.argv[3]))
        print(json.dumps(speed(sys.argv[2], int(sys.argv[4]))))
    else:
        torch.set_num_threads(int(sys.argv[4]))
        print(json.dumps(learn(Path(sys.argv[2]), Path(sys.argv[3]))))
