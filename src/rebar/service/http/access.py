"""Who may ask and from where, as a server is started."""

from __future__ import annotations

from dataclasses import dataclass, field

from rebar.service.http.keys import ApiKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """keys: none lets everybody in. origins: of web pages that may read answers (cors.py)."""

    keys: ApiKeys = field(default_factory=ApiKeys)
    origins: tuple[str, ...] = ()
