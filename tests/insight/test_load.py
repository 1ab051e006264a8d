"""Load against a real server over a scripted model: what is counted is what happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rebar.cli.main import main
from rebar.errors import InputError
from rebar.insight.find_rate import RateSearch, ServiceLevel, rate_table
from rebar.insight.load import LoadRun, Pace, Slo, Tally, times_of
from rebar.insight.load_report import FORMULAS, CpuUse, measure_load, table
from rebar.insight.load_target import CpuReading, LoadTarget
from rebar.insight.workload import Lengths, Workload
from tests.service.fakes import ScriptedRunner
from tests.service.live import Live, scripted_service, serving

SMALL = Workload(
    prompt=Lengths.parse("5-20"), output=Lengths.parse("8"), model="scripted", per_token=1.0
)


@pytest.fixture(scope="module")
def live_server() -> Iterator[Live]:
    runner = ScriptedRunner(kv_blocks=4096, max_context=512)
    with serving(runner, scripted_service(runner, max_running=16, max_waiting=16)) as live:
        yield live


@pytest.fixture
def live(live_server: Live) -> Iterator[Live]:
    live_server.runner.reset()
    live_server.runner.choose = lambda sequence, position: ord("a") + position % 26
    yield live_server
    live_server.probe()


def load(live: Live, workload: Workload = SMALL, **pace: Any) -> LoadRun:
    return LoadRun(LoadTarget(live.url), workload, Pace(**pace), keep=True)


def test_all_are_answered_and_counted(live: Live) -> None:
    run = load(live, concurrency=4, requests=20)
    tally = run.run()
    assert (tally.sent, tally.completed, tally.failed, tally.left, tally.open) == (20, 20, 0, 0, 0)
    assert tally.most_open == 4
    assert tally.output_tokens == 20 * 8
    assert tally.finishes == {"length": 20}
    assert tally.e2e.count == tally.ttft.count == tally.tpot.count == 20
    assert tally.prompt_tokens == sum(o.prompt_tokens for o in run.outcomes.values()) > 100
    for outcome in run.outcomes.values():
        times = times_of(outcome)
        assert times.ttft is not None
        assert 0 <= times.ttft <= times.e2e
        assert times.ttft + sum(times.gaps) <= times.e2e + 1e-6


def test_arrivals_do_not_wait_for_answers(live: Live) -> None:
    """An open loop: with a server that takes its time, requests pile up instead of coming late."""
    live.runner.slow = 0.02
    tally = load(live, rate=200.0, requests=30).run()
    assert tally.completed == 30
    assert tally.most_open > 16


def test_waiting_for_a_place_counts_for_whom_it_happens_to(live: Live) -> None:
    """No coordinated omission: who came and could not be sent waited, and so it is told."""
    live.runner.slow = 0.02
    tally = load(live, rate=500.0, requests=10, concurrency=1).run()
    # An answer takes 8 steps or more, so the last of ten waits for nine of them.
    assert tally.ttft.greatest > 5 * tally.ttft.least
    assert tally.late.greatest > tally.ttft.least


def test_refusals_carry_when_to_come_back(live: Live) -> None:
    live.runner.slow = 0.05
    tally = load(live, concurrency=60, requests=60).run()
    assert tally.refused > 0
    assert tally.completed + tally.refused == 60
    assert len(tally.retry_after) == tally.refused
    assert set(tally.errors) == {"http_429 rate_limit_exceeded"}
    assert tally.error_rate == tally.refused / 60


def test_who_leaves_is_counted_apart_and_cancelled(live: Live) -> None:
    live.runner.slow = 0.01
    leaving = replace(SMALL, leave=1.0, output=Lengths.parse("60"))
    tally = load(live, leaving, concurrency=10, requests=20).run()
    assert (tally.left, tally.completed, tally.failed) == (20, 0, 0)
    live.at_rest()
    hurried = replace(leaving, hurry=0.2)
    tally = load(live, hurried, concurrency=10, requests=10).run()
    assert tally.left == 10
    live.at_rest()


def test_an_answer_that_is_late_is_given_up(live: Live) -> None:
    live.runner.slow = 0.3
    tally = load(live, concurrency=2, requests=2, timeout=0.2).run()
    assert tally.errors == {"timeout": 2}
    live.runner.slow = 0.0
    live.at_rest()


def test_nobody_there_is_an_error_by_name() -> None:
    run = LoadRun(LoadTarget("http://127.0.0.1:9"), SMALL, Pace(concurrency=1, requests=3))
    assert run.run().errors == {"connect: ConnectionRefusedError": 3}


def test_ctrl_c_ends_it_with_what_there_is(live: Live) -> None:
    """Open requests are broken off and no error; those that were over are in the result.

    A shell that starts ./test in the background has it ignore SIGINT; then a thousand answers came.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    live.runner.slow = 0.02
    run = load(live, concurrency=4, requests=1000)
    tally = run.tally
    done = threading.Event()

    def interrupt() -> None:
        while tally.completed < 5 and not done.wait(0.01):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run.run() is tally
    done.set()
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert tally.interrupted
    assert tally.completed >= 5
    assert 0 < tally.aborted <= 4
    assert tally.failed == tally.open == 0
    live.at_rest()


def test_goodput_counts_what_keeps_every_limit(live: Live) -> None:
    target = LoadTarget(live.url)
    pace = Pace(concurrency=2, requests=10)
    all_good = measure_load(target, SMALL, pace, Slo.parse("ttft=60s,itl=60s,tpot=60s,e2e=60s"))
    assert all_good["good_share"] == 1.0
    none = measure_load(target, SMALL, pace, Slo.parse("e2e=0ms"))
    assert (none["good_share"], none["goodput_s"], none["completed"]) == (0.0, 0.0, 10)


@pytest.mark.parametrize("text", ["ttft", "ttft=5", "rate=3s", "ttft=-1s", "ttft=1m"])
def test_a_level_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no limit"):
        Slo.parse(text)


@pytest.mark.parametrize(
    "pace", [{}, {"rate": 1.0}, {"rate": -1.0, "requests": 1}, {"concurrency": 2}]
)
def test_a_pace_without_end_or_beginning_is_refused(pace: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Pace(**pace)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/llm/v1/", "https://h:443/llm"),
        ("http://[::1]:7", "http://[::1]:7"),
    ],
)
def test_addresses_are_taken_as_clients_write_them(url: str, base: str) -> None:
    assert LoadTarget(url).base == base


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:99999"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="address"):
        LoadTarget(url)


def test_a_key_cannot_break_the_request() -> None:
    with pytest.raises(InputError, match="API key"):
        LoadTarget("http://h", "a\r\nX: y")
    assert b"Authorization: Bearer k\r\n" in LoadTarget("http://h", "k").request("/x", b"{}", "r")


def test_the_servers_processor_time_is_its_own_or_unknown(live: Live) -> None:
    before = LoadTarget(live.url).cpu()
    assert before is not None
    assert before.source == "the server's processes"
    assert before.cores >= 1
    first, then = CpuReading(8.0, 4, "it"), CpuReading(12.0, 4, "it")
    assert CpuUse.between(first, then, 2.0) == CpuUse(0.5, 4, "it")
    assert CpuUse.between(first, CpuReading(12.0, 4, "another"), 2.0) is None
    assert CpuUse.between(first, None, 2.0) is None


def test_the_report_has_its_formulas_and_its_doubts(live: Live) -> None:
    facts = measure_load(
        LoadTarget(live.url), SMALL, Pace(rate=100.0, requests=5), Slo(), warm_up=1
    )
    text = "\n".join(table(facts | {"url": "u", "client_core": 0.95}))
    assert all(line in text for line in FORMULAS)
    assert "the server may be faster than this" in text
    assert "5 answered, 0 failed" in text
    json.dumps(facts)


def test_the_verb_prints_facts(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "serve", live.url, "--requests", "6", "--concurrency", "2", "--warm-up", "1"]
    words += ["--prompt-tokens", "5", "--output-tokens", "4", "--text", "ARCHITECTURE.md"]
    assert main([*words, "--json", "--ignore-eos", "--slo", "ttft=60s"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["completed"], facts["output_tokens"], facts["model"]) == (6, 24, "scripted")
    assert facts["good_share"] == 1.0
    assert main([*words, "--rate", "50"]) == 0
    assert "TTFT  first arrival of text" in capsys.readouterr().out
    for wrong in (["--extra", "["], ["--extra", "3"], ["--text", "/nowhere"]):
        assert main([*words, *wrong]) == 2


class Pretended(RateSearch):
    """A server that answers at once below 10 requests a second, and late or not at all above."""

    asked: list[float] = []  # noqa: RUF012

    def _capacity(self) -> float:
        return 16.0

    def _run(self, rate: float, number: int) -> dict[str, Any]:
        self.asked.append(rate)
        slow = 100.0 if rate <= 10 else 400.0
        return {
            "ttft_ms": {"p99": slow}, "error_rate": 0.0 if rate < 12 else 0.5, "completed": 100,
            "server_cpu": {"share": rate / 12, "cores": 2, "source": "s"},
            "output_tokens_s": 40 * rate,
        }  # fmt: skip


def test_the_highest_good_rate_is_found_and_confirmed() -> None:
    search = Pretended(LoadTarget("h"), SMALL, ServiceLevel(), 1.0, 1.0, lambda line: None)
    search.asked.clear()
    facts = search.find()
    assert 9.75 <= facts["rate"] <= 10.0  # within a 64th of 16
    assert search.asked[-1] == facts["rate"]
    assert search.asked.count(search.asked[-1]) == 2
    assert facts["busy_enough"] is True
    assert "keep P99 TTFT < 350 ms, errors < 0.3%" in rate_table(facts)[0]


def test_no_rate_may_be_good_enough() -> None:
    level = ServiceLevel(ttft=0.05)
    facts = Pretended(LoadTarget("h"), SMALL, level, 1.0, 1.0, lambda line: None).find()
    assert (facts["rate"], facts["run"], facts["busy_enough"]) == (0.0, None, None)
    assert rate_table(facts)[0].startswith("no rate keeps")


def test_the_search_measures_a_real_server(
    live: Live, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebar.insight.find_rate.LEAST_REQUESTS", 5)
    monkeypatch.setattr("rebar.insight.find_rate.SATURATING", 4)
    words = ["bench", "serve", live.url, "--find-rate", "--duration", "0.1", "--json"]
    words += ["--prompt-tokens", "5", "--output-tokens", "4", "--slo", "ttft=60s"]
    assert main(words) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert 0 < facts["rate"] < facts["capacity"]
    assert "requests/s get through" in said.err


def test_an_empty_tally_divides_by_nothing() -> None:
    assert Tally().error_rate == 0.0


def test_a_run_lives_in_a_running_loop_too(live: Live) -> None:
    """Two runs side by side, as proofs use them."""

    async def both() -> list[Tally]:
        runs = [load(live, replace(SMALL, seed=s), concurrency=2, requests=5) for s in (1, 2)]
        return await asyncio.gather(*(run.drive() for run in runs))

    assert [tally.completed for tally in asyncio.run(both())] == [5, 5]
