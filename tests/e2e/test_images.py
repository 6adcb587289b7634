"""Images of OpenAI's clients, through a gateway, to a model that sees: the reference executor's on NumPy.

That the model sees what transformers does is compared in `tests/reference/test_images.py`; here its answers
are those of an engine without servers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from reference import seen
from reference.support import engine, request
from support.metrics import active_requests, total
from support.processes import InflightProcess
from support.servers import Start, openai_client, start_gateway, wait_ready
from support.triton import inputs, tensor, tokens

MAX_TOKENS = 12


@dataclass(frozen=True)
class Seeing:
    """A gateway in front of a worker whose model sees."""

    address: str
    model: Path
    grpc: str = ""

    def client(self) -> openai.OpenAI:
        return openai_client(self.address)

    def expected(self, prompt: str, numbers: Sequence[int]) -> str:
        """What the model answers to a prompt with images."""
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        tensors = [seen.files(*map(seen.picture_file, numbers))]
        told = seen.see(engine(seen.NAME), [request(1, ids, MAX_TOKENS, tensors=tensors)])
        return str(tokenizer.decode(told[1, 0].tokens, skip_special_tokens=True))


def start_seeing(start: Start, model: Path, *arguments: str) -> InflightProcess:
    return start(
        "worker", str(model), "--served-model-name=seeing", "--grpc-port=0", "--metrics-port=0",
        "--device=cpu", "--executor-option=backend=numpy", *arguments,
    )  # fmt: skip


@pytest.fixture(scope="module")
def seeing(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    model = seen.write_served(tmp_path_factory.mktemp("seeing") / "model")
    worker = start_seeing(start_for_session, model)
    gateway = start_gateway(start_for_session, [worker])
    return Seeing(wait_ready(gateway), model, worker.address("grpc"))


def image(number: int, kind: str = "png") -> dict[str, Any]:
    file = base64.b64encode(seen.picture_file(number, kind.upper())).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{file}"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
CASES: list[tuple[list[Any], str, list[int]]] = [
    ([{"role": "user", "content": [text("what is "), image(0)]}], f"what is {SEEN}.", [0]),
    (
        [{"role": "user", "content": [image(1), text("or"), image(2, "webp"), text("?")]}],
        f"{SEEN}or{SEEN}?.",
        [1, 2],
    ),
    (
        [
            {"role": "system", "content": "Look."},
            {"role": "user", "content": [image(3), text("this")]},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": [text("and this "), image(0)]},
        ],
        f"Look..{SEEN}this.yes.and this {SEEN}.",
        [3, 0],
    ),
]


@pytest.mark.parametrize(("messages", "prompt", "numbers"), CASES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_about_its_images(
    seeing: Seeing, messages: list[Any], prompt: str, numbers: list[int], stream: bool
) -> None:
    with seeing.client() as api:
        answer: Any = api.chat.completions.create(
            model="seeing",
            messages=messages,
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=stream,
            extra_body={"ignore_eos": True},
        )
        pieces = (
            [one.choices[0].delta.content for one in answer]
            if stream
            else [answer.choices[0].message.content]
        )
    assert "".join(piece or "" for piece in pieces) == seeing.expected(prompt, numbers)


def test_the_same_image_is_found_in_the_cache_and_another_is_not(seeing: Seeing) -> None:
    def found(*parts: Any) -> tuple[int, int]:
        with seeing.client() as api:
            usage = api.chat.completions.create(
                model="seeing", messages=[{"role": "user", "content": list(parts)}], max_tokens=2
            ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0

    words = text("the beginning of all of these is so long that a block holds it")
    count, first = found(words, image(4), text("one"))
    # One for each image, as in the prompt that the gateway made.
    assert count == len(words["text"]) + 3 + len("one.")
    assert first == 0
    assert found(words, image(4), text("one")) == (count, count - 1)
    _, other = found(words, image(0), text("one"))
    assert 0 < other <= len(words["text"]) + 1


def test_tritonclient_sends_images_to_a_worker(seeing: Seeing) -> None:
    case = seen.case("two")
    files = np.array([[seen.picture_file(number) for number in case.numbers]], dtype=np.object_)
    asked = [
        *inputs(case.prompt, MAX_TOKENS, exclude_input_in_output=True),
        tensor("inflight_images", files, "BYTES"),
    ]
    with InferenceServerClient(seeing.grpc) as client:
        # Transformers' tokens.
        assert tokens(client.infer("tensorrt_llm", asked)) == case.tokens
        fewer = [*asked[:-1], tensor("inflight_images", files[:, :1], "BYTES")]
        with pytest.raises(InferenceServerException, match=r"2 placeholders .* for 1 images"):
            client.infer("tensorrt_llm", fewer)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([text("<|image_pad|>"), image(0)], "2 placeholders (token `62`) for 1 images"),
        (
            [{"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGODlh"}}],
            "begins like an image and cannot be read",
        ),
        ([image(2)] * 8, "of them of its images"),
    ],
)
def test_what_cannot_be_seen_is_a_400(seeing: Seeing, parts: list[Any], words: str) -> None:
    with seeing.client() as api, pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(
            model="seeing", messages=[{"role": "user", "content": parts}], max_tokens=4
        )
    assert words in refused.value.message


def test_an_answer_about_an_image_survives_its_worker(start: Start, tmp_path: Path) -> None:
    model = seen.write_served(tmp_path / "model", positions=4096)
    workers = [start_seeing(start, model) for _ in range(2)]
    gateway = start_gateway(start, workers)
    both = Seeing(wait_ready(gateway), model)
    gateway.wait_until("both are up", lambda: total(both.address, "inflight_gateway_worker_up") == 2)
    asked: dict[str, Any] = {
        "model": "seeing",
        "messages": CASES[1][0],
        "max_tokens": 1500,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    with both.client() as api:
        whole = api.chat.completions.create(**asked).choices[0].message.content
        pieces = []
        for chunk in api.chat.completions.create(stream=True, **asked):
            pieces.append(chunk.choices[0].delta.content or "")
            if len(pieces) == 20:
                next(one for one in workers if active_requests(one.address("metrics"))).kill()
    assert "".join(pieces) == whole
    assert total(both.address, "inflight_gateway_resumes_total") == 1
