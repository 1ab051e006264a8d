"""X-Priority and X-Deadline-Ms: how urgent a request is, said outside its body, where a gateway can
say it. The header decides over the body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from rebar.errors import InputError
from rebar.service.classify_request import ClassifyJob
from rebar.service.embedding_request import EmbeddingJob
from rebar.service.messages import HIGH, LOW, NORMAL
from rebar.service.validator import Job

PRIORITIES = {"high": HIGH, "normal": NORMAL, "low": LOW}
MAX_DEADLINE_MS = 86_400_000
J = TypeVar("J", Job, EmbeddingJob, ClassifyJob)
_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def with_urgency(job: J, headers: Mapping[str, str], arrived: float) -> J:
    """The job with what the headers say. arrived: monotonic seconds, from which a deadline counts.

    Raises InputError for a header that means nothing.
    """
    changes: dict[str, int | float] = {}
    named = headers.get("x-priority")
    if named is not None:
        if named.strip().lower() not in PRIORITIES:
            raise InputError(
                "X-Priority must be high, normal or low.", param="X-Priority", code="invalid_value"
            )
        changes["priority"] = PRIORITIES[named.strip().lower()]
    given = headers.get("x-deadline-ms")
    if given is not None:
        if not _NUMBER.fullmatch(given.strip()) or int(given) > MAX_DEADLINE_MS:
            raise InputError(
                f"X-Deadline-Ms must be a number of milliseconds from 1 to {MAX_DEADLINE_MS}.",
                param="X-Deadline-Ms",
                code="invalid_value",
            )
        changes["deadline"] = arrived + int(given) / 1e3
    if not changes:
        return job
    return replace(job, packets=[msgspec.structs.replace(p, **changes) for p in job.packets])
