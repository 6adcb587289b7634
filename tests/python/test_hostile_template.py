"""A model whose chat template overflows the stack: its own chats fail, and the gateway goes on."""

from __future__ import annotations

from pathlib import Path

from inflight.launch.model import DEMO_DIRECTORY
from support.http import Response, get, post
from support.processes import InflightProcess
from support.servers import Start, start_gateway, wait_ready

TEMPLATE = (
    "{% if messages[0].content == 'bad' %}{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{% endif %}"
    "{{ messages[0].content }}"
)


def _worker(start: Start, directory: Path, name: str) -> InflightProcess:
    options = ("--executor=simulated", "--grpc-port=0", "--metrics-port=0")
    return start("worker", str(directory), f"--served-model-name={name}", *options)


def test_a_hostile_template_ends_its_own_chats_only(start: Start, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("tokenizer.json", "config.json"):
        (hostile / name).write_bytes((DEMO_DIRECTORY / name).read_bytes())
    (hostile / "chat_template.jinja").write_text(TEMPLATE)
    workers = [_worker(start, hostile, "hostile"), _worker(start, DEMO_DIRECTORY, "honest")]
    gateway = start_gateway(start, workers)
    address = wait_ready(gateway)
    gateway.wait_until("it has both models", lambda: len(get(address, "/v1/models").json()["data"]) == 2)

    def chat(model: str, content: str) -> Response:
        messages = [{"role": "user", "content": content}]
        body = {"model": model, "max_tokens": 2, "messages": messages}
        return post(address, "/v1/chat/completions", body)

    assert chat("hostile", "good").status == 200
    for _ in range(3):
        answer = chat("hostile", "bad")
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "messages"
        assert chat("honest", "bad").status == 200
    # It is not tried again for a minute; its completions need no template.
    assert chat("hostile", "good").status == 503
    assert chat("honest", "good").status == 200
    completion = {"model": "hostile", "prompt": "a", "max_tokens": 2}
    assert post(address, "/v1/completions", completion).status == 200
