"""Images of OpenAI's and Anthropic's clients, through a gateway, to the PyTorch runtime's double.

They are fetched from a local server over HTTPS, whose authority the gateway trusts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from inflight.launch.model import DEMO_DIRECTORY
from support.authority import make_authority
from support.double.package import write_double
from support.http import post
from support.pictures import picture
from support.servers import NO_KEY, Start, openai_client, start_gateway, start_worker, wait_ready
from trtllm.pytorch_setup import SEEING, write_checkpoint

PNG, JPEG = picture("PNG", (3, 2)), picture("JPEG", (5, 4))
#: As Qwen2.5-VL's does it.
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part or 'image_url' in part %}<|image_pad|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Files(BaseHTTPRequestHandler):
    """`/jpeg` is a file, `/moved` leads there, `/inside` to a metadata service, `/page` is none."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        moved = {"/moved": "/jpeg", "/inside": "http://169.254.169.254/latest/meta-data/"}
        if self.path in moved:
            self.send_response(302)
            self.send_header("location", moved[self.path])
            self.end_headers()
            return
        content = JPEG if self.path == "/jpeg" else b"<!DOCTYPE html>"
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Host:
    """A server of files on this machine, with what it was asked."""

    def __init__(self, directory: Path) -> None:
        authority = make_authority(directory)
        self.ca = authority.ca
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("host"))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
        self.server.asked = []  # type: ignore[attr-defined]
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.name = f"localhost:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def asked(self) -> list[tuple[str, dict[str, str]]]:
        asked: list[tuple[str, dict[str, str]]] = self.server.asked  # type: ignore[attr-defined]
        return asked

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Seeing:
    """A gateway before a worker that takes images."""

    def __init__(self, address: str, log: Path, host: Host) -> None:
        self.address, self.log, self.host = address, log, host

    def last(self) -> tuple[list[str], str]:
        """The images of the last request as the LLM got them, and its salt."""
        held = json.loads(self.log.read_text().splitlines()[-1])
        images = held["inputs"]["multi_modal_data"]["image"]
        return [image.partition(" at ")[0].partition("mode=")[2] for image in images], held["cache_salt"]


@pytest.fixture(scope="module")
def seeing(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    folder = tmp_path_factory.mktemp("images")
    vocabulary = json.loads((DEMO_DIRECTORY / "config.json").read_text())["vocab_size"]
    model = write_checkpoint(folder / "model", **SEEING, vocab_size=vocabulary, max_position_embeddings=512)
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "tokenizer.json").write_bytes((DEMO_DIRECTORY / "tokenizer.json").read_bytes())
    (model / "chat_template.jinja").write_text(TEMPLATE)
    environment = write_double(folder / "double")
    worker = start_for_session(
        "worker", str(model), "--executor=tensorrt_llm", "--served-model-name=seeing", "--grpc-port=0",
        "--metrics-port=0", environment=environment,
    )  # fmt: skip
    host = Host(folder / "host")
    gateway = start_for_session(
        "gateway", "--port=0", f"--worker={worker.address('grpc')}", f"--image-host={host.name}",
        "--image-network=127.0.0.0/8", "--image-network=::1/128", "--image-max-bytes=5000",
        environment={"SSL_CERT_FILE": str(host.ca)},
    )  # fmt: skip
    yield Seeing(wait_ready(gateway), Path(environment["DOUBLE_REQUESTS"]), host)
    host.stop()


def data_url(kind: str, file: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def salt(*files: bytes) -> str:
    """Made of every byte that the executor got."""
    return hashlib.sha256(b"".join(struct.pack("<I", len(file)) + file for file in files)).hexdigest()


def client(seeing: Seeing) -> openai.OpenAI:
    return openai_client(seeing.address)


def asked(*urls: str) -> list[Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *parts]}]


@pytest.mark.parametrize("stream", [False, True])
def test_images_of_a_chat_reach_the_model(seeing: Seeing, stream: bool) -> None:
    remote = f"https://{seeing.host.name}/moved"
    with client(seeing) as api:
        answer: Any = api.chat.completions.create(
            model="seeing", messages=asked(data_url("png", PNG), remote), stream=stream, max_tokens=4
        )
        reasons = (
            [chunk.choices[0].finish_reason for chunk in answer]
            if stream
            else [answer.choices[0].finish_reason]
        )
    assert reasons[-1] == "length"
    assert seeing.last() == (["RGB size=3x2", "RGB size=5x4"], salt(PNG, JPEG))
    (moved, _), (path, headers) = seeing.host.asked[-2:]
    assert (moved, path) == ("/moved", "/jpeg")
    # Nothing of the client goes there.
    assert {name.lower() for name in headers} == {"host", "user-agent", "accept", "accept-encoding"}


@pytest.mark.parametrize("stream", [False, True])
def test_images_of_a_response_reach_the_model(seeing: Seeing, stream: bool) -> None:
    content: list[Any] = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": f"https://{seeing.host.name}/jpeg", "detail": "auto"},
    ]
    with client(seeing) as api:
        answer: Any = api.responses.create(
            model="seeing", input=[{"role": "user", "content": content}], stream=stream, max_output_tokens=4
        )
        response = list(answer)[-1].response if stream else answer
        assert response.status == "incomplete"
        assert seeing.last() == (["RGB size=5x4"], salt(JPEG))
        item: Any = api.responses.input_items.list(response.id).data[0]
        assert item.content[1].image_url == content[1]["image_url"]
        # The image is part of what is gone on from.
        api.responses.create(
            model="seeing", input="And now?", previous_response_id=response.id, max_output_tokens=4
        )
    assert seeing.last() == (["RGB size=5x4"], salt(JPEG))


@pytest.mark.parametrize("stream", [False, True])
def test_images_of_anthropics_messages_reach_the_model(seeing: Seeing, stream: bool) -> None:
    sources: list[Any] = [
        {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        {"type": "url", "url": f"https://{seeing.host.name}/jpeg"},
    ]
    content: list[Any] = [{"type": "image", "source": source} for source in sources]
    content.append({"type": "text", "text": "What is this?"})
    asked: dict[str, Any] = {
        "model": "seeing", "max_tokens": 4, "messages": [{"role": "user", "content": content}]
    }  # fmt: skip
    with anthropic.Anthropic(base_url=f"http://{seeing.address}", api_key=NO_KEY, max_retries=0) as claude:
        if stream:
            with claude.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = claude.messages.create(**asked)
        assert message.stop_reason == "max_tokens"
        assert seeing.last() == (["RGB size=3x2", "RGB size=5x4"], salt(PNG, JPEG))
        counted = claude.messages.count_tokens(model="seeing", messages=asked["messages"])
    # Neither counts what an image becomes in the model.
    assert counted.input_tokens == message.usage.input_tokens


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (data_url("png", b"no image"), "neither a PNG nor"),
        (data_url("png", PNG + b"\0" * 5000), "larger than 5000 bytes"),
        # Only its first bytes are those of an image.
        (data_url("png", PNG[:30]), "`inflight_images[0]` "),
        ("https://HOST/page", "neither a PNG nor"),
        # On another port than its host may have; the metadata service of a cloud.
        ("https://localhost/jpeg", "from which this server does not fetch images"),
        ("https://HOST/inside", "from which this server does not fetch images"),
        ("http://HOST/jpeg", "could not be fetched from `localhost`"),
    ],
)
def test_what_is_no_image_is_a_400_that_names_it(seeing: Seeing, url: str, words: str) -> None:
    messages = asked(url.replace("HOST", seeing.host.name))
    with client(seeing) as api, pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model="seeing", messages=messages, max_tokens=4)
    assert words in refused.value.message
    if "inflight_images" not in words:
        assert refused.value.param == "messages[0].content[1]"


def test_a_model_that_takes_no_images_refuses_them_before_anything_is_fetched(
    seeing: Seeing, start: Start
) -> None:
    gateway = start_gateway(start, [start_worker(start)], f"--image-host={seeing.host.name}")
    before = len(seeing.host.asked)
    messages = asked(f"https://{seeing.host.name}/jpeg")
    answer = post(
        wait_ready(gateway), "/v1/chat/completions", {"model": "inflight-demo", "messages": messages}
    )
    error = answer.error
    assert (answer.status, error["param"]) == (400, "messages[0].content[1]")
    assert "needs `images`, which this model's executor (`simulated`) does not support" in error["message"]
    assert len(seeing.host.asked) == before
