"""A gateway in front of a real Triton: how one is hosted, fronted and asked. Fixtures are `conftest`'s.

The server has what `inflight repository create` writes for the model, and TensorRT-LLM's llmapi model as
`llmapi_model` plays it.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
from click.testing import CliRunner

from inflight.cli.app import inflight
from support import real_triton
from support.http import get
from support.servers import Server, Start, wait_ready

CREATED = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
#: Created too, and no models that generate.
NEIGHBOURS = ("preprocessing", "postprocessing")
DIALECTS = (*CREATED, "llmapi")
TAKE_TEXT = DIALECTS[1:]
LLMAPI = Path(__file__).parent / "llmapi_model"

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
#: Greedy, as all that is compared across servers; the second ends by itself, the others do not.
PROMPTS: tuple[dict[str, Any], ...] = (
    {"prompt": "Machine learning is", "max_tokens": 6},
    {"prompt": "Hello! My favourite", "max_tokens": 40},
    {"prompt": "Once upon a time", "max_tokens": 60},
    {"prompt": "The", "max_tokens": 1},
)
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5},
    {"messages": [{"role": "user", "content": "What is 2+2?"}]},
    {
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi!"},
            {"role": "user", "content": "Tell me about machine learning"},
        ],
        "max_tokens": 30,
    },
)
#: Its answer has a character of several tokens.
EMOJI = {"messages": [{"role": "user", "content": "Write an emoji 😀"}]}
#: Seconds of work in every dialect: words that were said are preferred, so that it does not end by itself.
LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "temperature": 0, "frequency_penalty": -2}
#: Fields that the OpenAI client does not know.
EXTENSIONS = ("ignore_eos", "min_p", "skip_special_tokens")


class Hosted:
    """A Triton that a test may kill and put back; it has `models` and loads others when told to."""

    def __init__(self, repository: Path, scratch: Path, models: Sequence[str]) -> None:
        self.repository = repository
        self._scratch = scratch
        self._models = models
        self._starts = 0
        self.server = self._start(None)

    def _start(self, ports: list[int] | None) -> real_triton.Triton:
        self._starts += 1
        scratch = self._scratch / f"start{self._starts}"
        scratch.mkdir()
        return real_triton.start(self.repository, scratch, self._models, ports)

    def start_again(self) -> None:
        """On the same ports."""
        self.server = self._start(self.server.ports)


def create(model_directory: Path, output: Path, *options: str) -> Path:
    arguments = ["repository", "create", str(model_directory), "--output", str(output), *options]
    made = CliRunner().invoke(inflight, arguments)
    assert made.exit_code == 0, made.output
    return output


def add_llmapi(repository: Path, scratch: Path, *, llmapi: Path, **others: Path) -> None:
    """Adds llmapi models to a repository, each with its checkpoint; that of `llmapi` is there."""
    made = create(llmapi, scratch, "--backend=llmapi", f"--sources={LLMAPI}") / "tensorrt_llm"
    for name, directory in {"llmapi": llmapi, **others}.items():
        shutil.copytree(made, repository / name)
        for file, before, after in (
            ("config.pbtxt", 'name: "tensorrt_llm"', f'name: "{name}"'),
            ("1/model.yaml", f"model: {llmapi}", f"model: {directory}"),
        ):
            path = repository / name / file
            assert before in path.read_text()
            path.write_text(path.read_text().replace(before, after))


def hosted(repository: Path, scratch: Path, models: Sequence[str]) -> Iterator[Hosted]:
    found = Hosted(repository, scratch, [*CREATED, *NEIGHBOURS, *models])
    try:
        yield found
    finally:
        found.server.stop()


def front(start: Start, triton: Hosted, *options: str) -> Server:
    process = start("gateway", "--port=0", f"--worker={triton.server.grpc}", *options)
    return Server(wait_ready(process), triton.server.grpc, triton.server.metrics, "")


@dataclass(frozen=True)
class Told:
    """What an answer says: text and finish reason of each choice, and the usage."""

    choices: list[tuple[str, str]]
    #: Of prompt, of completion, together; `None`: not told.
    usage: tuple[int, int, int] | None

    @property
    def text(self) -> str:
        return self.choices[0][0]


def ask(server: Server, model: str, streaming: bool, **fields: Any) -> Told:
    """The answer to a completion or a chat, as the OpenAI client gives it."""
    fields = {"model": model, "temperature": 0, **fields}
    extra = {name: fields.pop(name) for name in EXTENSIONS if name in fields}
    client = client_of(server)
    endpoint: Any = client.chat.completions if "messages" in fields else client.completions
    if not streaming:
        answer = endpoint.create(**fields, extra_body=extra)
        return Told([(text(choice), choice.finish_reason) for choice in answer.choices], usage(answer))
    texts, reasons, told = [""] * fields.get("n", 1), [""] * fields.get("n", 1), None
    for chunk in endpoint.create(
        **fields, extra_body=extra, stream=True, stream_options={"include_usage": True}
    ):
        told = usage(chunk) or told
        for choice in chunk.choices:
            texts[choice.index] += text(choice)
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    return Told(list(zip(texts, reasons, strict=True)), told)


@functools.cache
def client_of(server: Server) -> openai.OpenAI:
    """One for all questions: making one takes longer than most answers."""
    return server.client(timeout=120.0)


def text(choice: Any) -> str:
    """What a choice of any of the four shapes shows."""
    if hasattr(choice, "text"):
        return str(choice.text)
    message = choice.message if hasattr(choice, "message") else choice.delta
    return message.content or ""


def usage(answer: Any) -> tuple[int, int, int] | None:
    if answer.usage is None:
        return None
    return answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens


def served(server: Server, **fields: Any) -> Told:
    """What `inflight serve` answers."""
    return ask(server, server.model, False, **fields)


def shown(model: str, told: Told) -> Told:
    """What `model` can show of an answer of `inflight serve` to one prompt of `PROMPTS` or `CHATS`.

    A text does not show the token that ended it, so a model that answers with text does not count it.
    """
    if model not in TAKE_TEXT or told.usage is None or told.choices[0][1] != "stop":
        return told
    prompt, completion, total = told.usage
    return replace(told, usage=(prompt, completion - 1, total - 1))


def names(gateway: Server) -> list[str]:
    return [model["id"] for model in get(gateway.http, "/v1/models").json()["data"]]
