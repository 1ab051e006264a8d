"""Memory of a whole process that serves SmolLM2: weights, the KV budget, and little besides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ALLOWANCE = 250 << 20  # interpreter, libraries, activations, rotation tables, tokenizer tables

SCRIPT = """
import json, sys, threading
from pathlib import Path
import rebar

model = rebar.load(sys.argv[1], kv_tokens=8192, max_context=2048, cache=Path(sys.argv[2]))
prompts = [[(7 * i + j) % 40000 + 100 for j in range(512)] for i in range(8)]
ask = lambda ids: model.generate(ids, max_tokens=16, temperature=0.8, seed=1)
threads = [threading.Thread(target=ask, args=(ids,)) for ids in prompts]
[t.start() for t in threads]
[t.join() for t in threads]
model.chat("What is the capital of France?", max_tokens=16)
plan = model._worker.engine.runner.plan
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024
weights = plan.of("mapped") + plan.of("weights")
print(json.dumps({"peak": peak, "kv": plan.of("kv"), "weights": weights}))
"""


def test_a_process_takes_weights_cache_and_little_more(smollm2_path: Path, tmp_path: Path) -> None:
    """Eight prompts of 512 ids at once, sampled, then a conversation; the highest resident set."""
    command = [sys.executable, "-c", SCRIPT, str(smollm2_path), str(tmp_path)]
    for _ in range(2):  # the first run converts, in the same process; the second one only maps
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == "", "a model left open at exit is nothing to complain about"
        facts = json.loads(done.stdout)
        assert facts["peak"] <= facts["weights"] + facts["kv"] + ALLOWANCE, facts
