"""How the tests ask Triton: curl as its documentation does, and tritonclient for any model by name."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tritonclient.grpc as grpc

from support import real_triton
from support.triton import TritonStream, is_final

TIMEOUT_S = 60


def curl(triton: real_triton.Triton, path: str, body: Any = None) -> tuple[int, str]:
    """POST v2/PATH: the status and the whole answer."""
    command = ["curl", "--silent", "--show-error", "--no-buffer", "--max-time", str(TIMEOUT_S)]
    command += ["--write-out", "\n%{http_code}", "--data", json.dumps(body) if body is not None else ""]
    done = subprocess.run(
        [*command, f"http://{triton.http}/v2/{path}"], capture_output=True, text=True, check=True
    )
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def generate(triton: real_triton.Triton, model: str, body: dict[str, Any]) -> dict[str, Any]:
    """The one answer of `generate`; it must be a good one."""
    status, text = curl(triton, f"models/{model}/generate", body)
    answer: dict[str, Any] = json.loads(text)
    assert status == 200, text
    assert "error" not in answer, text
    return answer


def generate_stream(triton: real_triton.Triton, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of `generate_stream`; the last may be an error."""
    status, text = curl(triton, f"models/{model}/generate_stream", body)
    assert status == 200, text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]


def listed(value: Any) -> list[Any]:
    """An output of `generate`: Triton writes one element without brackets."""
    return list(value) if isinstance(value, list) else [value]


class Asking(TritonStream):
    """A stream to one model."""

    def __init__(self, triton: real_triton.Triton, model: str) -> None:
        super().__init__(triton.grpc)
        self._model = model

    def ask(self, id: str, made: list[grpc.InferInput], outputs: Sequence[str] = (), **options: Any) -> None:
        """Sends a request; without `outputs`, all are wanted."""
        self.client.async_stream_infer(
            self._model,
            made,
            request_id=id,
            outputs=[grpc.InferRequestedOutput(name) for name in outputs] or None,
            enable_empty_final_response=True,
            **options,
        )

    def answers(self, count: int = 1) -> dict[str, list[grpc.InferResult]]:
        """The responses of `count` requests, each to its final one, by request id."""
        found: dict[str, list[grpc.InferResult]] = {}
        while count:
            result, error = self.next()
            assert error is None, error
            assert result is not None
            found.setdefault(result.get_response().id, []).append(result)
            count -= is_final(result)
        return found

    def refusal(self) -> str:
        """The next response, which must be an error."""
        result, error = self.next()
        assert error is not None, result
        return str(error)


def one(result: grpc.InferResult, name: str) -> Any:
    """The single value of an output; `None` where it was not sent."""
    value = result.as_numpy(name)
    return None if value is None else value.reshape(-1)[0].item()


def log_lines(triton: real_triton.Triton, part: str) -> Iterator[str]:
    """The server's log lines that hold `part`."""
    return (line for line in triton.log.read_text(errors="replace").splitlines() if part in line)


def wait_for_log(triton: real_triton.Triton, part: str) -> None:
    """Waits until the server has logged `part`; it writes from another process."""
    deadline = time.monotonic() + TIMEOUT_S
    while not any(log_lines(triton, part)):
        assert time.monotonic() < deadline, part
        time.sleep(0.05)
