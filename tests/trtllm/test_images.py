"""Images on their way to the PyTorch runtime: what is decoded and refused, and which checkpoints take any."""

from __future__ import annotations

import hashlib
import io
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from inflight.executors import images as decoding
from inflight.executors.base import FinishReason, NamedTensor, OutputConfig, StatusCode
from inflight.executors.tensorrt_llm import images, pytorch, pytorch_config, pytorch_start
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.executors.tensorrt_llm.options import parse
from support import double
from support.pictures import declared_png, picture
from trtllm.harness import collect, passed, request_of
from trtllm.pytorch_setup import SEEING, options_of_line, write_checkpoint

BOTH_LINES = True


def files(*data: bytes) -> NamedTensor:
    packed = b"".join(struct.pack("<I", len(one)) + one for one in data)
    return NamedTensor("inflight_images", "BYTES", (len(data),), packed)


@pytest.fixture
def seeing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        model = write_checkpoint(tmp_path / "model", **SEEING)
        made = pytorch_start.create_pytorch(
            model, parse({"disable_overlap_scheduler": True}, "pytorch", {}), double.version()
        )
        yield made
        made.shutdown()


@pytest.mark.parametrize("kind", decoding.FORMATS)
def test_every_format_is_decoded_to_rgb(kind: str) -> None:
    (image,) = images.decode(files(picture(kind, (5, 4))))
    assert (image.mode, image.size) == ("RGB", (5, 4))
    # JPEG and GIF are near it only.
    assert all(
        abs(one - other) < 12
        for one, other in zip(image.getpixel((2, 2)), (9, 8, 7), strict=True)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("mode", "color", "pixel"),
    [
        ("RGBA", (200, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (200, 0, 0, 255), (200, 0, 0)),
        ("LA", (7, 0), (255, 255, 255)),
        ("L", 7, (7, 7, 7)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_what_is_transparent_becomes_white(mode: str, color: Any, pixel: tuple[int, int, int]) -> None:
    (image,) = images.decode(files(picture("PNG", mode=mode, color=color)))
    assert (image.mode, image.getpixel((0, 0))) == ("RGB", pixel)


@pytest.mark.parametrize("transparency", [None, 0x8080])
def test_grey_of_16_bits_keeps_its_levels(transparency: int | None) -> None:
    grey = Image.new("I;16", (5, 1))
    for place, level in enumerate((0, 0x0180, 0x4000, 0x8080, 0xFFFF)):
        grey.putpixel((place, 0), level)
    file = io.BytesIO()
    grey.save(file, "PNG", **({} if transparency is None else {"transparency": transparency}))
    (image,) = images.decode(files(file.getvalue()))
    assert image.mode == "RGB"
    levels = [0, 1, 64, 128 if transparency is None else 255, 255]
    assert [image.getpixel((place, 0)) for place in range(5)] == [(level,) * 3 for level in levels]


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    (image,) = images.decode(files(file.getvalue()))
    assert image.getpixel((0, 0)) == (255, 0, 0)


def bmp() -> bytes:
    return picture("BMP")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (files(b"no image"), r"`inflight_images\[0\]` is not an image; send PNG, JPEG, WEBP, GIF"),
        (files(b""), "is not an image"),
        (files(picture(), bmp()), r"`inflight_images\[1\]` is not an image"),
        (files(picture("JPEG")[:-40]), "cannot be decoded"),
        (files(picture()[:12]), r"`inflight_images\[0\]` begins like an image and cannot be read"),
        (files(picture("GIF")[:8]), "begins like an image and cannot be read"),
        (files(picture()[:-30]), "cannot be decoded"),
        # Nothing of its size is allocated.
        (files(declared_png(60_000, 60_000)), "has too many pixels; the images of a request may"),
        (files(declared_png(9000, 9000)), "`9000` x `9000` pixels; the images of a request may"),
        # Together.
        (
            files(picture(size=(4000, 4000), mode="1", color=0), declared_png(2000, 2000)),
            r"\[1\]` has `2000`",
        ),
        (files(*[b"x"] * 257), "has `257` images; send at most 256"),
        (NamedTensor("inflight_images", "BYTES", (1,), b"\x05\0\0\0ab"), "ends within an element"),
        (NamedTensor("inflight_images", "BYTES", (1,), b"\x05\0"), "ends within an element"),
    ],
)
def test_what_is_no_image_is_refused_by_its_place(given: NamedTensor, words: str) -> None:
    with pytest.raises(Refused, match=words):
        images.decode(given)


def test_images_reach_the_llm_beside_the_tokens(seeing: Any) -> None:
    assert "images" in seeing.info().capabilities
    given = files(picture("PNG", (3, 2)), picture("WEBP", (4, 5)))
    seeing.enqueue([request_of({"tensors": [given]})])
    rows = collect(seeing, 9)[9]
    assert [token for row in rows for token in row.tokens] == [13, 14, 15]
    held = double.REQUESTS[-1]
    assert held["inputs"]["prompt_token_ids"] == [10, 11, 12]
    assert [image.size for image in held["inputs"]["multi_modal_data"]["image"]] == [(3, 2), (4, 5)]
    # Placeholders are the same tokens whatever the images are: blocks of the cache must not be.
    assert held["cache_salt"] == hashlib.sha256(given.data).hexdigest()
    # Of another prompt than the client's.
    assert not any(row.cached for row in rows)
    seeing.enqueue([request_of({})])
    assert collect(seeing, 9)[9][0].cached == [double.CACHED]
    assert (double.REQUESTS[-1]["inputs"], double.REQUESTS[-1]["cache_salt"]) == ([10, 11, 12], None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"output_config": OutputConfig(num_prompt_log_probs=0)}, "`inflight_num_prompt_log_probs` is not"),
        ({"output_config": OutputConfig(return_context_logits=True)}, "`return_context_logits` is not"),
        ({"tensors": [passed("request_type", "BYTES", (1,), "context_only")]}, "`request_type` is not"),
    ],
)
def test_what_counts_the_prompts_tokens_is_refused_beside_images(
    seeing: Any, more: dict[str, Any], words: str
) -> None:
    given = more | {"tensors": [*more.get("tensors", []), files(picture())]}
    seeing.enqueue([request_of(given)])
    ((_, text),) = collect(seeing, 9)[9][-1].errors
    assert words in text


def test_an_image_that_cannot_be_decoded_is_the_error_of_its_request(seeing: Any) -> None:
    seeing.enqueue(
        [
            request_of({"tensors": [files(b"x")]}),
            request_of({"client_id": 8, "tensors": [files(picture())]}),
        ]
    )
    rows = collect(seeing, 8, 9)
    assert rows[9][-1].errors[0][1].startswith("`inflight_images[0]` is not an image")
    assert not rows[8][-1].errors


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Semaphore, threading.Event]]:
    """Images are decoded only once the event is set; the semaphore counts those that have begun."""
    begun, released, open_image = threading.Semaphore(0), threading.Event(), decoding._open

    def wait(what: str, file: bytes) -> Image.Image:
        begun.release()
        assert released.wait(20)
        return open_image(what, file)

    monkeypatch.setattr(decoding, "_open", wait)
    yield begun, released
    released.set()


def test_other_requests_do_not_wait_for_images(
    seeing: Any, held: tuple[threading.Semaphore, threading.Event]
) -> None:
    begun, released = held
    before = len(double.REQUESTS)
    seeing.enqueue([request_of({"tensors": [files(picture())]}), request_of({"client_id": 8})])
    # Also one that comes while an image is being decoded.
    assert begun.acquire(timeout=10)
    seeing.enqueue([request_of({"client_id": 7})])
    assert {row.client_id for rows in collect(seeing, 7, 8).values() for row in rows} == {7, 8}
    assert len(double.REQUESTS) == before + 2
    released.set()
    assert [token for row in collect(seeing, 9)[9] for token in row.tokens] == [13, 14, 15]


def test_a_request_is_cancelled_while_its_images_are_decoded(
    seeing: Any, held: tuple[threading.Semaphore, threading.Event]
) -> None:
    begun, released = held
    before = len(double.REQUESTS)
    # Two are being decoded, and one waits for that.
    seeing.enqueue([request_of({"client_id": one, "tensors": [files(picture())]}) for one in (7, 8, 9)])
    assert begun.acquire(timeout=10)
    assert begun.acquire(timeout=10)
    seeing.cancel([7, 9])
    rows = collect(seeing, 7, 9)
    assert [rows[one][-1].reason for one in (7, 9)] == [FinishReason.CANCELLED] * 2
    released.set()
    assert not collect(seeing, 8)[8][-1].errors
    assert len(double.REQUESTS) == before + 1


def test_requests_that_wait_for_decoding_are_bounded(
    seeing: Any, held: tuple[threading.Semaphore, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytorch, "_MAX_UNDECODED", 1)
    seeing.enqueue([request_of({"client_id": one, "tensors": [files(picture())]}) for one in (6, 7, 8, 9)])
    ((code, text),) = collect(seeing, 9)[9][-1].errors
    assert (code, text.split(";")[0]) == (
        StatusCode.RESOURCE_EXHAUSTED,
        "too many requests with images are waiting to be decoded",
    )
    held[1].set()
    assert not any(rows[-1].errors for rows in collect(seeing, 6, 7, 8).values())


@pytest.mark.parametrize(
    ("config", "can", "skips_tokenizer"),
    [
        (SEEING, True, False),
        # A model that TensorRT-LLM runs as text only would leave the images out.
        (SEEING | {"architectures": ["SomeVLForConditionalGeneration"]}, False, False),
        ({}, False, True),
    ],
)
def test_only_a_checkpoint_that_sees_takes_images(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    can: bool,
    skips_tokenizer: bool,
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    model = write_checkpoint(tmp_path / "model", **config)
    with double.installed():
        made = pytorch_start.create_pytorch(model, parse({}, "pytorch", {}), double.version())
        assert ("images" in made.info().capabilities) is can
        assert double.ENGINES[-1].values["skip_tokenizer_init"] is skips_tokenizer
        made.shutdown()


def test_without_pillow_there_are_no_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    monkeypatch.setattr(images, "are_decodable", lambda: False)
    model = write_checkpoint(tmp_path / "model", **SEEING)
    with double.installed():
        made = pytorch_start.create_pytorch(model, parse(options_of_line(), "pytorch", {}), double.version())
        assert "images" not in made.info().capabilities
        made.shutdown()
    assert "Pillow is not installed: `images` is off" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", '{"vision_config": 5}', "{"])
def test_a_config_without_a_vision_encoder_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert not pytorch_config.has_vision(tmp_path)
    assert not pytorch_config.has_vision(tmp_path / "absent")
