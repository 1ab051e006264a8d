"""rebar doctor"""

from __future__ import annotations

import sys

from rebar.cli.options import DEFAULT_MODEL, Host, Json, Model, Port
from rebar.cli.settings import places


def doctor(
    model: Model = DEFAULT_MODEL,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    json: Json = False,
) -> int:
    """Check machine, installation and cache; each finding has its next step.

    Exit code 0 when nothing fails, 2 when something does. Warnings do not count.
    """
    from rebar.insight.doctor import Subject, as_json, diagnose, report

    where = places()
    findings = diagnose(Subject(where.cache, where.hub, model, host, port, where.isa))
    if json:
        sys.stdout.write(as_json(findings) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in report(findings))
    return 2 if any(f.state == "fail" for f in findings) else 0
