"""What users of openai_trtllm type: its options and its environment, in front of a worker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.servers import MODEL_NAME, Server, Start, wait_ready

#: As in its README, and a mark that shows that it was used.
LIQUID = "{% for item in items %}<{{ item.identity }}>{{ item.content }}{% endfor %}<assistant>"
BODY = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def chat(address: str, *more: str) -> dict[str, object]:
    """The curl line of its README."""
    command = ["curl", "-s", f"http://{address}/v1/chat/completions", *more]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(BODY)]
    answer: dict[str, object] = json.loads(
        subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    )
    return answer


@pytest.mark.migrates(
    "openai_trtllm",
    "curl http://localhost:3000/v1/chat/completions -H 'Content-Type: application/json' -d '{…}'",
    "curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{…}'",
)
def test_curl_chats(server: Server) -> None:
    answer = chat(server.http)
    assert answer["object"] == "chat.completion", answer


@pytest.mark.migrates(
    "openai_trtllm",
    "openai_trtllm --host 0.0.0.0 --port 3000 --triton-endpoint http://localhost:8001"
    " --history-template-file FILE --api-key KEY",
    "inflight gateway --host 0.0.0.0 --port 3000 --triton-endpoint http://localhost:8001"
    " --history-template-file FILE --api-key KEY",
)
@pytest.mark.migrates(
    "openai_trtllm",
    "OPENAI_TRTLLM_PORT=3000 OPENAI_TRTLLM_TRITON_ENDPOINT=http://localhost:8001 openai_trtllm",
    "OPENAI_TRTLLM_PORT=3000 OPENAI_TRTLLM_TRITON_ENDPOINT=http://localhost:8001 inflight gateway",
)
@pytest.mark.migrates(
    "openai_trtllm",
    "openai_trtllm -H 0.0.0.0 -p 3000 -t http://localhost:8001",
    "inflight gateway -H 0.0.0.0 -p 3000 -t http://localhost:8001",
)
@pytest.mark.parametrize("by", ["options", "short options", "environment"])
def test_its_options_and_variables_are_understood(
    start: Start, server: Server, tmp_path: Path, by: str
) -> None:
    endpoint = f"http://{server.grpc}"
    template = tmp_path / "history.liquid"
    template.write_text(LIQUID)
    if by == "options":
        gateway = start(
            "gateway", "--host", "127.0.0.1", "--port", "0", "--triton-endpoint", endpoint,
            "--history-template-file", str(template), "--api-key", "secret",
        )  # fmt: skip
    elif by == "short options":
        gateway = start(
            "gateway", "-H", "127.0.0.1", "-p", "0", "-t", endpoint,
            "--history-template-file", str(template), "--api-key", "secret",
        )  # fmt: skip
    else:
        gateway = start(
            "gateway",
            environment={
                "OPENAI_TRTLLM_HOST": "127.0.0.1",
                "OPENAI_TRTLLM_PORT": "0",
                "OPENAI_TRTLLM_TRITON_ENDPOINT": endpoint,
                "OPENAI_TRTLLM_HISTORY_TEMPLATE_FILE": str(template),
                "OPENAI_TRTLLM_API_KEY": "secret",
            },
        )
    address = wait_ready(gateway)
    assert "error" in chat(address)
    answer = chat(address, "-H", "Authorization: Bearer secret")
    assert answer["object"] == "chat.completion", answer
    with Server(address, "", "", MODEL_NAME).client(api_key="secret") as client:
        used = client.chat.completions.create(**BODY).usage  # type: ignore[call-overload]
    # The prompt is the template's: its ids are those of the text that it makes.
    from inflight._native import Tokenizer
    from inflight.launch.model import find_model

    tokenizer = Tokenizer(find_model(None, None, weights=False).assets())
    assert used.prompt_tokens == len(tokenizer.encode("<User>Hello<assistant>"))
