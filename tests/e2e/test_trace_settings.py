"""Triton's trace settings under tritonclient, over gRPC and HTTP: they act, or are refused by name."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from support.collector import SERVER, Collector, collector
from support.http import get, post
from support.processes import InflightProcess
from support.servers import Start, start_gateway, start_worker, wait_ready
from support.triton import MODEL, inputs, tensor

DEFAULTS = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1",
    "trace_count": "-1",
    "trace_mode": "opentelemetry",
}


class Settings:
    """The settings of a worker by either client, in HTTP's form."""

    def __init__(self, protocol: str, worker: InflightProcess) -> None:
        self.protocol = protocol
        package = tritonclient.grpc if protocol == "grpc" else tritonclient.http
        self.client = package.InferenceServerClient(worker.address(protocol))

    def get(self, model: str | None = None) -> dict[str, Any]:
        return self._read(self.client.get_trace_settings(model))

    def update(self, settings: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        return self._read(self.client.update_trace_settings(model, settings))

    def _read(self, answer: Any) -> dict[str, Any]:
        if self.protocol == "http":
            return dict(answer)
        values = {name: list(setting.value) for name, setting in answer.settings.items()}
        return {name: value if name == "trace_level" else value[0] for name, value in values.items()}


@dataclass
class Traced:
    """A worker and the collector that it exports to."""

    collector: Collector
    worker: InflightProcess

    def ask(self, model: str = MODEL, trace: str | None = None, flags: str = "01") -> None:
        headers = None if trace is None else {"traceparent": f"00-{trace}-{'1' * 16}-{flags}"}
        with tritonclient.grpc.InferenceServerClient(self.worker.address("grpc")) as client:
            if model == MODEL:
                client.infer(model, inputs([40, 41], 2, runtime_top_k=1), headers=headers)
            else:
                made = [tensor("text_input", [[b"Hi"]], "BYTES"), tensor("max_tokens", [[2]], "INT32")]
                client.infer(model, made, headers=headers)

    def asked_for(self, requests: int, model: str = MODEL) -> int:
        """How many of so many requests are traced whose client does not say."""
        before = self._models().count(model)
        for _ in range(requests):
            self.ask(model)
        self.settle()
        return self._models().count(model) - before

    def settle(self) -> None:
        """Waits until all that was made is there: spans arrive in the order in which they are made."""
        trace = secrets.token_hex(16)
        self.ask("ensemble", trace)
        self.collector.wait_for(trace, "inflight-worker")

    def _models(self) -> list[str]:
        spans = [span for span in self.collector.all() if span.kind == SERVER]
        return [str(span.attributes["gen_ai.request.model"]) for span in spans]


@pytest.fixture(scope="module")
def traced(start_for_session: Start) -> Iterator[Traced]:
    with collector() as kept:
        options = ("--http-port=0", f"--otlp-endpoint={kept.address}")
        yield Traced(kept, start_worker(start_for_session, *options))


@pytest.fixture(params=["grpc", "http"])
def settings(request: pytest.FixtureRequest, traced: Traced) -> Settings:
    made = Settings(request.param, traced.worker)
    made.client.is_server_ready()
    with tritonclient.grpc.InferenceServerClient(traced.worker.address("grpc")) as client:
        traced.worker.wait_until("it is ready", client.is_server_ready)
    return made


@pytest.mark.migrates(
    "Triton",
    'curl localhost:8000/v2/trace/setting -d \'{"trace_level": ["TIMESTAMPS"], "trace_rate": "2"}\'',
    'curl localhost:8000/v2/trace/setting -d \'{"trace_level": ["TIMESTAMPS"], "trace_rate": "2"}\','
    " at the port of `inflight worker --http-port 8000 --otlp-endpoint http://localhost:4317`",
)
def test_trace_settings_act(settings: Settings, traced: Traced) -> None:
    url = {"url": f"http://{traced.collector.address}"}
    assert settings.get() == settings.get(MODEL) == {**DEFAULTS, **url}
    told = settings.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "2"})
    assert told == settings.get() == {**DEFAULTS, **url, "trace_rate": "2"}
    assert traced.asked_for(4) == 2
    settings.update({"trace_rate": "1", "trace_count": "3"})
    assert traced.asked_for(5) == 3
    assert settings.get()["trace_count"] == "0"
    # What has a trace of its own goes on, as with Triton.
    trace = secrets.token_hex(16)
    traced.ask(trace=trace)
    traced.collector.wait_for(trace, "inflight-worker")
    # One model's come before those of all.
    assert settings.update({"trace_level": "OFF"}, MODEL)["trace_level"] == ["OFF"]
    settings.update({"trace_rate": None, "trace_count": None})
    assert settings.get() == {**DEFAULTS, **url}
    off = secrets.token_hex(16)
    traced.ask(trace=off)
    assert traced.asked_for(2) == 0
    assert traced.collector.of(off) == []
    assert settings.update({"trace_level": None}, MODEL) == {**DEFAULTS, **url}
    assert traced.asked_for(2) == 2


def test_what_cannot_act_is_refused_by_name(settings: Settings) -> None:
    before = settings.get()
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"trace_file": "/tmp/x"}, "trace file location can not be updated through network protocol"),
        ({"trace_level": ["TENSORS"]}, "`trace_level` is `TENSORS`; it must be `OFF` or `TIMESTAMPS`"),
        ({"trace_mode": "triton"}, "`trace_mode` is `triton`; it must be `opentelemetry`"),
        ({"log_frequency": "50"}, "`log_frequency` is about trace files"),
        ({"trace_rate": "0"}, "`trace_rate` is `0`; it must be a whole number, 1 or more"),
        ({"trace_count": "-2"}, "`trace_count` is `-2`; it must be a whole number, -1 or more"),
        ({"trace_depth": "1"}, "unknown trace setting `trace_depth`"),
    ]
    for setting, reason in refusals:
        with pytest.raises(InferenceServerException) as refused:
            # A setting beside it that could act does not either.
            settings.update({"trace_rate": "9", **setting} if "trace_rate" not in setting else setting)
        assert reason in str(refused.value)
    with pytest.raises(InferenceServerException, match="`nobody` is not found"):
        settings.update({"trace_level": "OFF"}, "nobody")
    assert settings.get() == before


def test_without_a_collector_there_is_nothing_to_turn_on(start: Start) -> None:
    worker = start_worker(start, "--http-port=0")
    gateway = start_gateway(start, [worker])
    for protocol in ("grpc", "http"):
        settings = Settings(protocol, worker)
        assert settings.get() == {**DEFAULTS, "trace_level": ["OFF"]}
        assert settings.update({"trace_level": "OFF"})["trace_level"] == ["OFF"]
        with pytest.raises(InferenceServerException, match="start it with `--otlp-endpoint`"):
            settings.update({"trace_level": "TIMESTAMPS"})
    # A gateway may have several servers, and a setting is one server's.
    http = wait_ready(gateway)
    for answer in (get(http, "/v2/trace/setting"), post(http, "/v2/logging", {"log_info": False})):
        assert answer.status == 501
        assert "send it to a worker's or Triton's own port" in answer.json()["error"]


@pytest.mark.migrates(
    "Triton",
    "curl localhost:8000/v2/logging -d '{\"log_verbose_level\": 1}'",
    "curl localhost:8000/v2/logging -d '{\"log_verbose_level\": 1}', at the port of"
    " `inflight worker --http-port 8000`",
)
def test_log_settings_act_over_http(start: Start) -> None:
    worker = start_worker(start, "--http-port=0")
    address = worker.address("http")
    with tritonclient.http.InferenceServerClient(address) as client:
        told = client.get_log_settings()
        assert told == {
            "log_file": "",
            "log_error": True,
            "log_warning": True,
            "log_info": True,
            "log_verbose_level": 0,
            "log_format": "ISO8601",
        }
        assert "DEBUG" not in worker.log
        assert client.update_log_settings({"log_verbose_level": 2}) == {**told, "log_verbose_level": 2}
        with pytest.raises(InferenceServerException, match="log file location can not be updated"):
            client.update_log_settings({"log_file": "/tmp/x"})
    for wrong in (b"{", b"[]", b'{"log_info": []}', b'{"log_verbose_level": -1}'):
        answer = post(address, "/v2/logging", wrong)
        assert answer.status == 400, (wrong, answer.body)
        assert json.loads(answer.body)["error"]
    with tritonclient.grpc.InferenceServerClient(worker.address("grpc")) as client:
        client.is_server_live()
    worker.wait_until("it says more", lambda: "TRACE" in worker.log or "DEBUG" in worker.log)
