"""The flags of rebar bench serve, and what it prints."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rebar.cli.output import emit, note, progress
from rebar.errors import InputError

if TYPE_CHECKING:
    from rebar.insight.load import Pace, Tally
    from rebar.insight.load_target import LoadTarget
    from rebar.insight.workload import Workload

INTERRUPTED = 130
DEFAULT_REQUESTS = 200
LENGTHS = "64, 20-200 or lognormal:120,0.6 (median, sigma)"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags:
    """Who comes, how often, and what they want."""

    rate: Annotated[float, Parameter(help="Requests a second, Poisson; 0: closed loop.")] = 0.0
    concurrency: Annotated[
        int, Parameter(help="Most requests at a time; 0: no bound. 16 without --rate.")
    ] = 0
    requests: Annotated[
        int | None, Parameter(help=f"How many; {DEFAULT_REQUESTS} without --duration.")
    ] = None
    duration: Annotated[float | None, Parameter(help="Seconds in which they come.")] = None
    prompt_tokens: Annotated[str, Parameter(help=f"Of prompts: {LENGTHS}.")] = "20-200"
    output_tokens: Annotated[str, Parameter(help="Of answers, as max_tokens; likewise.")] = "16-64"
    shared_tokens: Annotated[int, Parameter(help="Tokens with which every prompt begins.")] = 0
    ignore_eos: Annotated[bool, Parameter(help="Ask for answers of the full length.")] = False
    temperature: Annotated[float, Parameter(help="Of sampling.")] = 0.7
    seed: Annotated[int, Parameter(help="The same seed, the same requests.")] = 0
    text: Annotated[
        Path | None, Parameter(help="File that prompts are cut from; default: common words.")
    ] = None
    route: Annotated[Literal["chat", "completions"], Parameter(help="Of the API.")] = "chat"
    model: Annotated[str | None, Parameter(help="Name in requests; default: the first.")] = None
    extra: Annotated[str, Parameter(help="JSON object of more fields for every body.")] = "{}"
    leave: Annotated[float, Parameter(help="Share of users who leave in mid-answer.")] = 0.0
    slo: Annotated[str, Parameter(help="What a good answer keeps: ttft=350ms,itl=100ms.")] = ""
    timeout: Annotated[float, Parameter(help="Seconds that a user waits for the end.")] = 600.0
    warm_up: Annotated[int, Parameter(help="Requests before the run, which do not count.")] = 3
    api_key: Annotated[str, Parameter(help="Sent as a bearer token.")] = ""

    def pace(self) -> Pace:
        """How they come."""
        from rebar.insight.load import Pace

        endless = self.requests is None and self.duration is None
        return Pace(
            rate=self.rate,
            concurrency=self.concurrency or (0 if self.rate else 16),
            requests=DEFAULT_REQUESTS if endless else self.requests,
            duration=self.duration,
            timeout=self.timeout,
        )

    def workload(self, target: LoadTarget) -> Workload:
        """What they want, in this server's tokens."""
        from rebar.insight.workload import CHARACTERS_PER_TOKEN, Lengths, Workload, words

        text = words(self.seed)
        if self.text is not None:
            try:
                text = self.text.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{self.text} cannot be read: {error}.", param="text") from error
        return Workload(
            prompt=Lengths.parse(self.prompt_tokens),
            output=Lengths.parse(self.output_tokens),
            seed=self.seed,
            route=self.route,
            model=self.model or target.model(),
            text=" ".join(text.split()),
            per_token=target.characters_per_token(text) or CHARACTERS_PER_TOKEN,
            shared=self.shared_tokens,
            leave=self.leave,
            extra=self._extra(),
        )

    def _extra(self) -> dict[str, Any]:
        try:
            given = jsonlib.loads(self.extra)
        except ValueError as error:
            raise InputError(f"--extra is no JSON: {error}.", param="extra") from error
        if not isinstance(given, dict):
            raise InputError('--extra is no JSON object. Write {"top_p": 0.9}.', param="extra")
        more = {"ignore_eos": True} if self.ignore_eos else {}
        return {"temperature": self.temperature} | more | given


def measure(url: str, flags: LoadFlags, *, json: bool) -> int:
    """One run; 130 when Ctrl-C ended it."""
    from rebar.insight.load import Slo
    from rebar.insight.load_report import measure_load, table
    from rebar.insight.load_target import LoadTarget

    target = LoadTarget(url, flags.api_key)
    pace, slo = flags.pace(), Slo.parse(flags.slo)
    workload = flags.workload(target)
    with progress() as shown:

        def report(seconds: float, tally: Tally) -> None:
            if pace.requests is not None:
                shown("requests", tally.sent - tally.open, pace.requests)
            else:
                shown("seconds", int(seconds), int(pace.duration or 0))

        facts = measure_load(target, workload, pace, slo, warm_up=flags.warm_up, progress=report)
    if json:
        emit(facts, json=True)
    else:
        sys.stdout.write("\n".join(table(facts)) + "\n")
    return INTERRUPTED if facts["interrupted"] else 0


def find(url: str, flags: LoadFlags, *, json: bool) -> int:
    """The highest good rate; 1 when there is none."""
    from rebar.insight.find_rate import RateSearch, ServiceLevel, rate_table
    from rebar.insight.load import Slo
    from rebar.insight.load_target import LoadTarget

    target = LoadTarget(url, flags.api_key)
    ttft = Slo.parse(flags.slo).ttft
    level = ServiceLevel() if ttft is None else ServiceLevel(ttft=ttft)
    search = RateSearch(
        target, flags.workload(target), level, flags.duration or 15.0, flags.timeout, _note
    )
    facts = search.find()
    if json:
        emit(facts, json=True)
    else:
        sys.stdout.write("\n".join(rate_table(facts)) + "\n")
    return 0 if facts["run"] else 1


def _note(line: str) -> None:
    note(f"bench: {line}")
