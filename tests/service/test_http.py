"""The edges of the HTTP side: ids, error objects, models, tokenizing, metrics, OpenAPI."""

from __future__ import annotations

import logging

import httpx
import pytest

import rebar
from rebar.service.http import routes
from tests.service.fakes import END, START_TURN, words
from tests.service.live import NAME, PROBE, Live, events_of, wait_for
from tests.service.series import series


def test_request_id_comes_back(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rebar.service.request"):
        answer = live.http.post(
            "/v1/chat/completions", json=PROBE, headers={"X-Request-Id": "my-1"}
        )
        wait_for(lambda: "id=my-1" in caplog.text)
    assert answer.headers["x-request-id"] == "my-1"
    lines = [r.getMessage() for r in caplog.records if "id=my-1" in r.getMessage()]
    assert len(lines) == 1
    assert "POST /v1/chat/completions 200" in lines[0]
    assert "prompt_tokens=" in lines[0]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "é"])
def test_request_id_that_is_not_well_formed_is_replaced(live: Live, given: str) -> None:
    headers = {b"X-Request-Id": given.encode()}
    first, second = (live.http.get("/health", headers=headers) for _ in range(2))
    ids = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(ids) == 2
    assert all(value.startswith("req-") for value in ids)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
    ],
)
def test_every_error_is_an_openai_error(
    live: Live, method: str, path: str, status: int, code: str
) -> None:
    answer = live.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.headers["x-request-id"]


def test_a_fault_of_the_server_is_a_500_without_its_details(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(service: object) -> object:
        raise KeyError("secret")

    monkeypatch.setattr(routes, "describe_all", broken)
    answer = live.http.get("/v1/models")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in caplog.text


def test_models(live: Live) -> None:
    listed = live.http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [NAME]
    assert live.http.get(f"/v1/models/{NAME}").json() == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == 128
    assert listed["data"][0]["root"] == NAME


def test_tokenize_and_back(live: Live) -> None:
    answer = live.http.post("/tokenize", json={"prompt": "aé", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 128,
        "tokens": [97, 0xC3, 0xA9],
        "token_strs": ["a", "\ufffd", "\ufffd"],
    }
    assert live.http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {
        "prompt": "aé"
    }
    bare = {"messages": PROBE["messages"], "add_generation_prompt": False}
    assert live.http.post("/tokenize", json=bare).json()["tokens"].count(START_TURN) == 1
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [True]}),
        ("/detokenize", {}),
    ):
        assert live.http.post(path, json=body).status_code == 400, body


def test_chat_logprobs(live: Live) -> None:
    live.runner.script = [0xE4, 0xB8, 0x96, *words("hello")]
    body = live.chat(logprobs=True, top_logprobs=2, max_tokens=9).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == [
        "bytes:\\xe4",
        "bytes:\\xb8",
        "bytes:\\x96",
        "hello",
    ]
    assert [token["bytes"] for token in content[:3]] == [[0xE4], [0xB8], [0x96]]
    assert [token["logprob"] for token in content] == [-0.5] * 4
    assert [len(token["top_logprobs"]) for token in content] == [2] * 4
    assert live.chat(max_tokens=2).json()["choices"][0]["logprobs"] is None
    none = live.chat(logprobs=True, max_tokens=2).json()["choices"][0]["logprobs"]["content"]
    assert none[0]["top_logprobs"] == []


def test_completion_logprobs_and_offsets(live: Live) -> None:
    live.runner.script = [0xC3, 0xA9, *words("hello", " a"), END]
    for prompt in ("é", ["é"], [0xC3, 0xA9], [[0xC3, 0xA9]]):
        body = live.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=9).json()
        choice = body["choices"][0]
        assert choice["text"] == "ééhello a"
        assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 2, 7]
        assert choice["logprobs"]["token_logprobs"] == [None, *[-0.5] * 5]
        assert choice["logprobs"]["top_logprobs"][-1] == {" a": -0.5}


def test_several_prompts_and_choices_in_order(live: Live) -> None:
    live.runner.choose = lambda s, p: int(s.tokens[0]) if p < 3 + s.prompt else END
    body = live.complete(prompt=["a", "b"], n=2, max_tokens=9).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "aaaa"), (1, "aaaa"), (2, "bbbb"), (3, "bbbb"),
    ]  # fmt: skip
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 20,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_usage_says_what_was_not_computed_again(live: Live) -> None:
    """Whole blocks of 16 of the one prompt, counted once however many choices; streams too."""
    live.runner.choose = lambda s, p: 97 if p < 3 + s.prompt else END
    prompt = "once upon a time there was a cache of keys"  # 42 bytes, 42 ids
    asked = {"prompt": prompt, "n": 3, "max_tokens": 9}
    cached = []
    for _ in range(2):
        usage = live.complete(**asked).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert usage["prompt_tokens"] == 42
    options = {"include_usage": True}
    stream = live.complete(**asked, stream=True, stream_options=options).text
    cached.append(events_of(stream)[-2]["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32, 32]


def test_metrics_count_what_happened(live: Live) -> None:
    before = series(live)
    live.runner.script = words("hello")
    prompt = live.chat(max_tokens=5).json()["usage"]["prompt_tokens"]
    live.at_rest()
    after = series(live)

    def grew(name: str, **labels: str) -> float:
        key = f"{name}{sorted(labels.items())}"
        return after[key] - before.get(key, 0)

    route = "/v1/chat/completions"
    assert grew("rebar_generation_tokens_total", model_name=NAME) == 2
    computed = grew("rebar_prompt_tokens_total", model_name=NAME)
    assert computed + grew("rebar_prefix_cache_hits_total", model_name=NAME) == prompt
    assert grew("rebar_http_requests_total", route=route, status="200") == 1
    assert grew("rebar_time_to_first_token_seconds_count", model_name=NAME) == 1
    assert grew("rebar_request_queue_time_seconds_count", model_name=NAME) == 1
    assert grew("rebar_request_prefill_time_seconds_count", model_name=NAME) == 1
    assert grew("rebar_inter_token_latency_seconds_count", model_name=NAME) == 1
    assert grew("rebar_request_success_total", model_name=NAME, finished_reason="stop") == 1
    assert grew("rebar_request_prompt_tokens_sum", model_name=NAME) == prompt
    assert grew("rebar_request_generation_tokens_sum", model_name=NAME) == 2
    key = f"[('model_name', '{NAME}')]"
    assert after["rebar_num_requests_running" + key] == 0
    assert after["rebar_kv_blocks_free" + key] == 64
    for priority in ("high", "normal", "low"):
        labels = [("model_name", NAME), ("priority", priority)]
        assert after[f"sg_request_priority_distribution{labels}"] == 0
    assert after["hal_free_memory_bytes" + key] == live.runner.free_bytes
    assert after["cge_node_count" + key] == live.runner.node_count


def test_guesses_are_counted_and_told(live: Live) -> None:
    """A model that repeats itself: fewer steps than tokens, in /metrics and in the story."""
    key = f"[('model_name', '{NAME}')]"
    before = series(live)
    live.runner.choose = lambda sequence, position: 97 + position % 3
    headers = {"X-Request-Id": "guessed"}
    body = {"prompt": "go", "max_tokens": 60}
    assert live.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    live.at_rest()
    grew = {name: after - before[name] for name, after in series(live).items() if name in before}
    drafted = grew[f"rebar_spec_decode_num_draft_tokens_total{key}"]
    accepted = grew[f"rebar_spec_decode_num_accepted_tokens_total{key}"]
    assert drafted >= accepted > 30
    assert grew[f"rebar_engine_steps_total{key}"] == 60 - accepted
    (choice,) = live.http.get("/v1/requests/guessed").json()["choices"]
    assert (choice["drafted"], choice["accepted"]) == (drafted, accepted)


def test_openapi_document_is_complete(live: Live) -> None:
    document = live.http.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/classify",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/requests/{request_id}",
        "/tokenize",
        "/detokenize",
        "/health",
        "/health/live",
        "/health/ready",
        "/metrics",
    }
    schemas = document["components"]["schemas"]

    def references(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {str(node["$ref"]).rsplit("/", 1)[1]} if "$ref" in node else set()
            return own.union(*(references(value) for value in node.values()))
        if isinstance(node, list):
            return set().union(*(references(value) for value in node))
        return set()

    assert references(document) <= set(schemas)
    chat = document["paths"]["/v1/chat/completions"]["post"]
    said = {"200", "400", "401", "404", "413", "415", "429", "500", "503", "504"}
    assert set(chat["responses"]) == said
    assert document["security"] == [{"bearer": []}, {"x-api-key": []}, {}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert schemas["ChatBody"]["properties"]["messages"]["type"] == "array"


def test_transport_without_a_socket(live: Live) -> None:
    """The app is a plain ASGI application: it answers through httpx's transport too."""
    import asyncio

    from rebar.service.http.app import create_app
    from rebar.service.router import ServiceRouter

    async def get() -> int:
        app = create_app(ServiceRouter([live.service]))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get("/v1/models")).status_code

    assert asyncio.run(get()) == 200


def test_version_of_the_document(live: Live) -> None:
    assert live.http.get("/openapi.json").json()["info"]["version"] == rebar.__version__
