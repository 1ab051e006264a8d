"""Which adapters the next engine gets, and which is let go because it ended too many."""

from __future__ import annotations

from rebar.service.adapter_ledger import AdapterLedger
from rebar.service.messages import AdapterNews, AdapterOrder

A, B = AdapterOrder("aa", "/a"), AdapterOrder("bb", "/b")


def digests(ledger: AdapterLedger) -> list[str]:
    return [order.digest for order in ledger.again().adapters]


def test_the_next_engine_gets_what_is_wanted_now() -> None:
    ledger = AdapterLedger(most=3)
    ledger.given([A, B])
    assert digests(ledger) == ["aa", "bb"]
    ledger.given([AdapterOrder("aa")])
    ledger.heard([AdapterNews("bb", "it is damaged")])
    assert digests(ledger) == []


def test_the_first_that_was_on_its_way_is_the_cause() -> None:
    """One at a time, and only engines that ended before it was loaded count against it."""
    ledger = AdapterLedger(most=3)
    ledger.given([A, B])
    assert ledger.strike() == ledger.strike() == []
    assert digests(ledger) == ["aa", "bb"]
    (news,) = ledger.strike()
    assert (news.digest, "ended 3 times while it loaded this" in news.error) == ("aa", True)
    assert digests(ledger) == ["bb"]
    assert ledger.strike() == ledger.strike() == []
    ledger.again()
    ledger.heard([AdapterNews("bb")])
    for _ in range(10):
        assert ledger.strike() == []
    assert digests(ledger) == ["bb"]


def test_who_asks_again_begins_anew() -> None:
    """And one that was taken off in between is nobody's cause."""
    ledger = AdapterLedger(most=2)
    ledger.given([A])
    assert ledger.strike() == []
    ledger.given([AdapterOrder("aa"), A])
    assert ledger.strike() == []
    assert [n.digest for n in ledger.strike()] == ["aa"]
    ledger.given([A, AdapterOrder("aa")])
    assert ledger.strike() == ledger.strike() == []
