"""Peak resident memory of a whole process beside what was planned: python -m bench.memory MODEL

`rebar generate` reads a long prompt and answers; what it held at once is set against its weights,
its KV cache and an allowance for everything else (interpreter, activations, tables, tokenizer).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from bench.harness import Facts, measure, rebar

BOOK = Path(__file__).parent.parent / "tests" / "data" / "northanger_abbey.txt"
ALLOWED_MB = 120.0
PROMPT_CHARACTERS = 8000  # some two thousand tokens


def peak_mb(model: Path, threads: int) -> float:
    """MB (10^6) that the process held at most, from the kernel's account of its child.

    ru_maxrss of a child begins with what its parent held when it forked, so this must be called
    from a small process. CalledProcessError when the engine fails.
    """
    command = rebar(
        "generate", "-", "--model", str(model), "--max-tokens", "64", "--temperature", "0",
        "--threads", str(threads),
    )  # fmt: skip
    text = BOOK.read_text(encoding="utf-8")[:PROMPT_CHARACTERS].encode()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(text)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_maxrss * 1024 / 1e6


def facts(model: Path, threads: int) -> Facts | None:
    """peak_mb, plan_mb by pool, and limit_mb: weights, KV budget and the allowance."""
    words = ("--only", "prefill128", "--repeats", "1", "--json", "--threads", str(threads))
    engine = measure(rebar("bench", "engine", str(model), *words))
    if engine is None:
        return None
    plan = engine["plan_mb"]
    limit = plan["mapped"] + plan["weights"] + plan["kv"] + ALLOWED_MB
    return {"peak_mb": peak_mb(model, threads), "plan_mb": plan, "limit_mb": limit}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a .gguf or .rebar file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = facts(given.model.resolve(), given.threads)
    if found is None or given.json:
        print(json.dumps(found))
        return
    plan = found["plan_mb"]
    print(
        f"peak {found['peak_mb']:,.0f} MB of {found['limit_mb']:,.0f} MB "
        f"(weights {plan['mapped'] + plan['weights']:,.0f}, KV {plan['kv']:,.0f}, "
        f"everything else {ALLOWED_MB:,.0f})"
    )


if __name__ == "__main__":
    main()
