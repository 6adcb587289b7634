"""Clips of OpenAI's clients, through a gateway, to a model that hears: the reference executor's on NumPy.

That the model hears what transformers does is compared in `tests/reference/test_hearing.py`; here its
transcripts are those of the executor without servers, and for a clip of several windows transformers'.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from inflight.executors.reference import create
from reference import heard
from reference.heard import ENGLISH, GERMAN, NO_TIMES, START, TEXT, TRANSCRIBE, TRANSLATE
from reference.support import collect, unpack
from support.http import post
from support.processes import InflightProcess
from support.servers import NO_KEY, Start, serve_simulated, start_gateway, wait_ready
from support.triton import inputs, tensor, tokens

NAME = "hearing"
#: Tokens of a sequence of the model, its prompt among them.
CONTEXT = 64
LANGUAGES = {"en": ENGLISH, "de": GERMAN}


@dataclass(frozen=True)
class Hearing:
    """A gateway in front of a worker whose model hears."""

    address: str
    model: Path
    grpc: str

    def text(self, ids: Sequence[int]) -> str:
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        return str(tokenizer.decode([one for one in ids if one < TEXT]))

    def expected(self, prompt: list[int], number: int) -> str:
        """What the executor writes of a clip."""
        executor = create(self.model, backend="numpy")
        most = CONTEXT - len(prompt)
        executor.enqueue([heard.asked(1, prompt, number, max_tokens=most)])
        told: Any = {}
        while not (told and told[1, 0].final):
            collect(unpack(executor.await_responses(60.0)), told)
        executor.shutdown()
        return self.text(told[1, 0].tokens).strip()


def start_hearing(start: Start, model: Path) -> InflightProcess:
    return start("worker", str(model), f"--served-model-name={NAME}", "--grpc-port=0", "--metrics-port=0")


@pytest.fixture(scope="module")
def hearing(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    model = heard.write_served(tmp_path_factory.mktemp("hearing") / "model")
    worker = start_hearing(start_for_session, model)
    gateway = start_gateway(start_for_session, [worker])
    return Hearing(wait_ready(gateway), model, worker.address("grpc"))


@pytest.fixture
def client(hearing: Hearing) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://{hearing.address}/v1", api_key=NO_KEY, max_retries=0, timeout=60
    ) as made:
        yield made


def wav(samples: npt.NDArray[np.float32], rate: int = 16_000) -> bytes:
    """A file of floats, which keep their values."""
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, rate, 4 * rate, 4, 32)
    head = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data


def file(number: int) -> tuple[str, io.BytesIO]:
    return "clip.wav", io.BytesIO(wav(heard.clip(number)))


@pytest.mark.parametrize("number", range(heard.CLIPS))
def test_a_clip_is_written_down(hearing: Hearing, client: openai.OpenAI, number: int) -> None:
    """In the language that the model hears in it."""
    language = int(heard.record()[f"language_{number}"])
    answer = client.audio.transcriptions.create(model=NAME, file=file(number))
    assert answer.text == hearing.expected([START, language, TRANSCRIBE, NO_TIMES], number)
    seconds = -(-len(heard.clip(number)) // 16_000)
    assert answer.usage is not None
    assert answer.usage.to_dict() == {"type": "duration", "seconds": seconds}


def test_the_client_may_name_the_language(hearing: Hearing, client: openai.OpenAI) -> None:
    for code, language in LANGUAGES.items():
        answer = client.audio.transcriptions.create(model=NAME, file=file(0), language=code)
        assert answer.text == hearing.expected([START, language, TRANSCRIBE, NO_TIMES], 0)


def test_a_clip_is_translated(hearing: Hearing) -> None:
    language = int(heard.record()["language_1"])
    body = part("model", NAME) + part("file", wav(heard.clip(1))) + b"--b--\r\n"
    answer = post(hearing.address, "/v1/audio/translations", body, {"content-type": FORM})
    assert answer.json()["text"] == hearing.expected([START, language, TRANSLATE, NO_TIMES], 1)


def test_a_prompt_comes_before_the_transcript(hearing: Hearing, client: openai.OpenAI) -> None:
    tokenizer = Tokenizer.from_file(str(hearing.model / "tokenizer.json"))
    before = tokenizer.encode(" abc", add_special_tokens=False).ids
    answer = client.audio.transcriptions.create(model=NAME, file=file(2), prompt="abc", language="en")
    prompt = [heard.BEFORE, *before, START, ENGLISH, TRANSCRIBE, NO_TIMES]
    assert answer.text == hearing.expected(prompt, 2)


def test_text_is_the_text_alone(hearing: Hearing, client: openai.OpenAI) -> None:
    text = client.audio.transcriptions.create(model=NAME, file=file(0), language="en", response_format="text")
    assert text == hearing.expected([START, ENGLISH, TRANSCRIBE, NO_TIMES], 0) + "\n"


def long_file() -> tuple[str, io.BytesIO]:
    return "long.wav", io.BytesIO(wav(heard.long_clip()))


def test_a_long_clip_is_heard_in_windows(hearing: Hearing, client: openai.OpenAI) -> None:
    """The parts are transformers', and what is heard beyond the end of the clip ends with it."""
    answer = client.audio.transcriptions.create(
        model=NAME,
        file=long_file(),
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    seconds = len(heard.long_clip()) / 16_000
    assert answer.segments is not None
    # Of the last tenth of a second transformers hears it less loudly than the rest.
    parts = heard.long_parts()[:-1]
    for own, part in zip(answer.segments, parts, strict=False):
        # It shows the beginning of the next part as well.
        assert own.tokens in (part.tokens, part.tokens[:-1])
        assert (own.start, own.end) == pytest.approx((part.start, part.end))
        assert own.text == hearing.text(part.tokens)
        assert own.avg_logprob < 0
    assert answer.segments[-1].end == pytest.approx(seconds, abs=0.01)
    assert answer.duration == pytest.approx(seconds)
    assert (answer.language, answer.text) == ("english", "".join(one.text for one in answer.segments).strip())
    whole = client.audio.transcriptions.create(model=NAME, file=long_file(), language="en")
    assert whole.text == answer.text


def test_a_stream_has_the_text_of_each_window(client: openai.OpenAI) -> None:
    whole = client.audio.transcriptions.create(model=NAME, file=long_file(), language="en")
    events = list(
        client.audio.transcriptions.create(model=NAME, file=long_file(), language="en", stream=True)
    )
    *deltas, done = events
    assert len(deltas) > 2
    assert {one.type for one in deltas} == {"transcript.text.delta"}
    assert "".join(one.delta for one in deltas if one.type == "transcript.text.delta").strip() == whole.text
    assert done.type == "transcript.text.done"
    assert done.text == whole.text
    assert done.to_dict()["usage"] == {"type": "duration", "seconds": 6}


def test_subtitles(hearing: Hearing, client: openai.OpenAI) -> None:
    srt = client.audio.transcriptions.create(
        model=NAME, file=long_file(), language="en", response_format="srt"
    )
    assert str(srt).startswith("1\n00:00:00,240 --> 00:00:01,660\n")
    vtt = client.audio.transcriptions.create(
        model=NAME, file=long_file(), language="en", response_format="vtt"
    )
    assert str(vtt).startswith("WEBVTT\n\n00:00:00.240 --> 00:00:01.660\n")


def test_temperature_draws(hearing: Hearing, client: openai.OpenAI) -> None:
    texts = {
        client.audio.transcriptions.create(model=NAME, file=file(0), language="en", temperature=1).text
        for _ in range(4)
    }
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("fields", "data", "param"),
    [
        ({"language": "xx"}, None, "language"),
        ({"language": "fr"}, None, "language"),
        ({"response_format": "xml"}, None, "response_format"),
        ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, None,
         "timestamp_granularities"),
        ({"stream": True, "response_format": "srt"}, None, "stream"),
        ({"include": ["logprobs"]}, None, "include[]"),
        ({}, b"ID3\x04\0\0\0\0\0\0", "file"),
        ({}, b"", "file"),
        ({}, wav(np.zeros(0, np.float32)), "file"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(
    hearing: Hearing, client: openai.OpenAI, fields: dict[str, Any], data: bytes | None, param: str
) -> None:
    given = file(0) if data is None else ("clip", io.BytesIO(data))
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=NAME, file=given, **fields)
    assert caught.value.param == param


FORM = "multipart/form-data; boundary=b"


def part(name: str, value: str | bytes) -> bytes:
    head = f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'.encode()
    return head + (value.encode() if isinstance(value, str) else value) + b"\r\n"


@pytest.mark.parametrize(
    ("media_type", "body", "status", "param"),
    [
        ("application/json", b"{}", 415, None),
        (FORM, part("model", NAME) + b"--b--\r\n", 400, "file"),
        (FORM, part("models", NAME) + b"--b--\r\n", 400, "models"),
        (FORM, part("prompt", "a" * 20_000) + b"--b--\r\n", 400, "prompt"),
        (FORM, part("model", NAME) * 40 + b"--b--\r\n", 400, None),
        (FORM, part("file", "a") * 2 + b"--b--\r\n", 400, "file"),
        (FORM, b"--b\r\n", 400, None),
        (FORM, b"", 400, None),
    ],
)
def test_forms_that_cannot_be_read(
    hearing: Hearing, media_type: str, body: bytes, status: int, param: str | None
) -> None:
    answer = post(hearing.address, "/v1/audio/transcriptions", body, {"content-type": media_type})
    assert (answer.status, answer.json()["error"]["param"]) == (status, param)


def test_text_goes_elsewhere(hearing: Hearing, client: openai.OpenAI) -> None:
    for ask in (
        lambda: client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "a"}]),
        lambda: client.completions.create(model=NAME, prompt="a"),
        lambda: client.responses.create(model=NAME, input="a"),
    ):
        with pytest.raises(openai.BadRequestError, match="/v1/audio/transcriptions") as caught:
            ask()
        assert caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=NAME, input="a")
    assert [model.id for model in client.models.list()] == [NAME]


def test_a_model_of_text_does_not_transcribe(start_for_session: Start) -> None:
    server = serve_simulated(start_for_session)
    with pytest.raises(openai.BadRequestError, match="does not transcribe") as caught:
        server.client().audio.transcriptions.create(model=server.model, file=file(0))
    assert caught.value.param == "model"


def test_tritonclient_sends_samples(hearing: Hearing) -> None:
    own = heard.case("plain")
    with InferenceServerClient(hearing.grpc) as client:
        given = inputs(own.prompt, 16, end_id=heard.END)
        clip = tensor("WAV", heard.clip(own.clip)[None], "FP32")
        answer = client.infer("tensorrt_llm", [*given, clip])
        assert tokens(answer)[-len(own.tokens) :] == own.tokens
        with pytest.raises(InferenceServerException, match="needs `WAV`"):
            client.infer("tensorrt_llm", given)
