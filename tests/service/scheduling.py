"""Choices without a model, and the engine's side of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rebar.graph.sequence import Sampled, SamplingParams
from rebar.service.generation import Generation
from rebar.service.messages import RequestPacket
from rebar.service.scheduler import Plan, Scheduler
from tests.service.fakes import END


class NoText:
    """Text of no interest: the scheduler counts ids."""

    stopped = False
    met = None

    def push(self, token: int, /) -> str:
        return ""

    def finish(self) -> str:
        return ""


def generation(
    ticket: int,
    prompt: int | Sequence[int],
    max_tokens: int,
    *,
    score_prompt: bool = False,
    now: float = 0.0,
    **fields: Any,
) -> Generation:
    """A choice; prompts given as a number share no block with others."""
    ids = [1000 + ticket] * prompt if isinstance(prompt, int) else list(prompt)
    packet = RequestPacket(
        ticket=ticket,
        request_id="r",
        trace_id="t",
        prompt=ids,
        sampling=SamplingParams(logprobs=0 if score_prompt else None),
        max_tokens=max_tokens,
        end_ids=(END,),
        score_prompt=score_prompt,
    )
    return Generation(msgspec.structs.replace(packet, **fields), NoText(), now)


def run(scheduler: Scheduler, plan: Plan, token: int = 97) -> list[Generation]:
    """Commits a plan as the engine does; returns who ended."""
    ended = []
    for work, row in zip(plan.work, plan.rows, strict=True):
        delta = work.take(row, [Sampled(token, -1.0) for _ in row.wants])
        scheduler.advanced(work, row)
        if delta.last:
            scheduler.remove(work)
            ended.append(work)
    return ended


def tickets(held: Sequence[Generation]) -> list[int]:
    """Whose they are."""
    return [g.packet.ticket for g in held]


def scheduler_runs(scheduler: Scheduler) -> int:
    """Runs to the end; where the first row began."""
    plan = scheduler.schedule()
    begin = plan.rows[0].first
    while plan.rows:
        run(scheduler, plan)
        scheduler.check_integrity()
        plan = scheduler.schedule()
    return begin
