"""A model that sees, against Hugging Face transformers: pixels, embeddings, positions and tokens.

With `INFLIGHT_TEST_DEVICE` in the environment it computes on PyTorch there.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inflight.executors import images
from inflight.executors.base import NamedTensor
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.images import ImagePrompt, Picture
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy
from inflight.executors.reference.core.seeing import Seeing
from inflight.executors.reference.core.sequence import SequenceState
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.vision_layout import token_positions
from support.pictures import declared_png

from . import seen
from .seen import CASES, IMAGE, IMAGES, NAME, Case, asked, prepared, record, see
from .support import FIXTURES, Told, engine, request, run

LOG_PROBS = {"return_log_probs": True, "num_top_log_probs": 2}


def same(told: Told, case: Case, first: int = 0) -> None:
    """Transformers' tokens from ``first`` on, with their log probabilities and those of the next best."""
    assert told.error is None
    expected = case.tokens[first:]
    assert told.tokens == expected
    own = case.log_probs[first:]
    assert told.log_probs == pytest.approx(own[np.arange(len(own)), expected].tolist(), abs=1e-3)
    best = np.argsort(-own, axis=1)[:, :2]
    np.testing.assert_allclose(told.top_values, np.take_along_axis(own, best, axis=1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("number", range(IMAGES))
def test_pixels_become_the_patches_of_transformers(number: int) -> None:
    subject = seen.processor()
    pixels = subject.resized("it", Image.fromarray(record()[f"image_{number}"]))
    assert [1, *subject.grid(pixels)] == record()[f"grid_{number}"].tolist()
    np.testing.assert_allclose(subject.patches(pixels), record()[f"patches_{number}"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_prompts_and_positions_are_those_of_transformers(name: str) -> None:
    case = seen.case(name)
    [ready], images = prepared([asked(1, case.prompt, case.numbers)])
    assert list(ready.input_token_ids) == case.expanded
    assert not ready.tensors
    own = images[1]
    assert not isinstance(own, Exception)
    assert np.array_equal(own.positions, case.positions)
    length = len(case.expanded)
    assert (
        own.turned(length - 2, length + 2)[:, 2:].tolist()
        == [[case.positions.max() + 1 + n for n in (0, 1)]] * 3
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [256, 5])
def test_tokens_and_log_probabilities_equal_transformers(name: str, tokens: int) -> None:
    """Next to requests without images, whole and in chunks that cut every image."""
    case, plain = seen.case(name), [(5 * token) % 55 + 3 for token in range(30)]
    [alone] = run(engine(NAME), [request(2, plain, 12, output=LOG_PROBS)]).values()
    subject = engine(NAME, max_num_tokens=max(tokens, 5), max_batch_size=3)
    told = see(
        subject,
        [asked(1, case.prompt, case.numbers, output=LOG_PROBS), request(2, plain, 12, output=LOG_PROBS)],
    )
    same(told[1, 0], case)
    assert told[2, 0].tokens == alone.tokens
    assert told[2, 0].log_probs == pytest.approx(alone.log_probs, abs=1e-3)
    assert subject.pool.used == 0


@pytest.mark.skipif("INFLIGHT_TEST_DEVICE" in os.environ, reason="batch_invariant is NumPy's")
def test_an_invariant_model_gives_the_same_bits_in_chunks() -> None:
    case, found = seen.case("turns"), []
    for tokens in (256, 7):
        subject = engine(NAME, max_num_tokens=tokens, max_batch_size=4, invariant=True)
        told = see(subject, [asked(1, case.prompt, case.numbers, output=LOG_PROBS), request(2, [5, 6], 9)])
        same(told[1, 0], case)
        found.append(told[1, 0].log_probs)
    assert found[0] == found[1]


def test_all_cases_at_once() -> None:
    cases = [seen.case(name) for name in CASES]
    told = see(
        engine(NAME, max_num_tokens=100),
        [asked(at, one.prompt, one.numbers, output=LOG_PROBS) for at, one in enumerate(cases)],
    )
    for at, one in enumerate(cases):
        same(told[at, 0], one)


def test_embeddings_are_those_of_transformers() -> None:
    from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
    from inflight.executors.reference.numpy.vision import NumpyTower

    config, subject = load_config(FIXTURES / NAME), seen.processor()
    tower = NumpyTower(seen.vision(), CheckpointWeights.of(config, find_weights(FIXTURES / NAME)))
    for number in range(IMAGES):
        pixels = subject.resized("it", Image.fromarray(record()[f"image_{number}"]))
        found = tower.embed(subject.patches(pixels), *subject.grid(pixels))
        np.testing.assert_allclose(found, record()[f"embeddings_{number}"], atol=1e-4, rtol=0)


# The cache.


def cached(
    subject: Engine, client_id: int, prompt: Sequence[int], numbers: Sequence[int], **fields: Any
) -> int:
    """Prompt tokens found, of a request that must get what it gets in an empty cache."""
    told = see(subject, [asked(client_id, prompt, numbers, output=LOG_PROBS, **fields)])[client_id, 0]
    fresh = see(engine(NAME), [asked(client_id, prompt, numbers, output=LOG_PROBS, **fields)])[client_id, 0]
    assert told.tokens == fresh.tokens
    assert told.log_probs == pytest.approx(fresh.log_probs, abs=1e-3)
    [count] = told.cached_tokens
    return count


def test_blocks_are_found_by_the_same_images_alone() -> None:
    """Images 1 and 4 have as many tokens as 0 and 3 have not: what differs is their content."""
    case = seen.case("one")
    place = case.prompt.index(IMAGE)
    subject = engine(NAME)
    assert cached(subject, 1, case.prompt, [0]) == 0
    # All but the last token, in the client's count.
    assert cached(subject, 2, case.prompt, [0]) == len(case.prompt) - 1
    # Another image with as many tokens: what is in front of it.
    other = seen.files(_inverted(0))
    told = see(subject, [request(3, case.prompt, 12, tensors=[other])])[3, 0]
    assert told.cached_tokens == [place]
    assert told.tokens != case.tokens
    assert cached(subject, 4, case.prompt, [0]) == len(case.prompt) - 1
    # Another salt.
    salt = [NamedTensor("inflight_cache_salt", "BYTES", (1,), b"\x01\x00\x00\x00x")]
    assert cached(subject, 5, case.prompt, [0], tensors=salt) == 0
    # The same tokens without an image are text.
    assert run(subject, [request(6, case.expanded, 2)])[6, 0].cached_tokens == [place]


def _inverted(number: int) -> bytes:
    return seen.encoded(255 - record()[f"image_{number}"])


def test_the_next_turn_finds_the_turn_before() -> None:
    case = seen.case("one")
    subject = engine(NAME)
    see(subject, [asked(1, case.prompt, case.numbers)])
    longer = [*case.prompt, *case.tokens, 7, 9, 60, IMAGE, 61, 5]
    before = len(case.prompt) + len(case.tokens)
    assert cached(subject, 2, longer, [*case.numbers, 3]) >= before - 1


def test_embeddings_are_computed_once_and_forgotten_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    case = seen.case("turns")
    for image_bytes, expected in ((1 << 20, 3), (0, 6)):
        subject = engine(NAME, max_num_tokens=5, max_batch_size=2, reuse=False, image_bytes=image_bytes)
        sight = subject._runner._sight  # type: ignore[attr-defined]
        computed: list[object] = []
        compute = sight._compute

        def note(one: Picture, compute: Any = compute, computed: list[object] = computed) -> Any:
            computed.append(one)
            return compute(one)

        monkeypatch.setattr(sight, "_compute", note)
        for client_id in (1, 2):
            same(
                see(subject, [asked(client_id, case.prompt, case.numbers, output=LOG_PROBS)])[client_id, 0],
                case,
            )
        assert len(computed) == expected


# With everything else.


@pytest.mark.parametrize("done", [1, 5, 11])
def test_a_resumed_request_goes_on(done: int) -> None:
    case = seen.case("two")
    one = asked(1, case.prompt, case.numbers, output=LOG_PROBS, generated=[case.tokens[:done]])
    same(see(engine(NAME), [one])[1, 0], case, done)


def test_paused_requests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [seen.case(name) for name in ("one", "first")]
    subject = engine(
        NAME, num_blocks=21, policy=CapacitySchedulerPolicy.MAX_UTILIZATION, reuse=False, max_num_tokens=256
    )
    pauses: list[object] = []
    pause = subject._planner._pause

    def note(one: SequenceState) -> None:
        pauses.append(one)
        pause(one)

    monkeypatch.setattr(subject._planner, "_pause", note)
    told = see(subject, [asked(at, one.prompt, one.numbers) for at, one in enumerate(cases)])
    assert pauses
    assert [one.tokens for one in told.values()] == [one.tokens for one in cases]
    assert subject.pool.used == 0


@pytest.mark.parametrize("lookup", [None, LookupConfig(4, 2)])
def test_guesses_change_no_token(lookup: LookupConfig | None) -> None:
    case = seen.case("turns")
    right = np.array([*case.tokens[:3], 9], "<i4")
    drafts = NamedTensor("draft_input_ids", "INT32", (4,), right.tobytes())
    same(
        see(
            engine(NAME, lookup=lookup),
            [asked(1, case.prompt, case.numbers, output=LOG_PROBS, tensors=[drafts])],
        )[1, 0],
        case,
    )


@pytest.mark.parametrize("name", CASES)
def test_beams_are_those_of_transformers(name: str) -> None:
    case = seen.case(name)
    sampling = {"beam_width": 3, "num_return_sequences": 3}
    one = asked(1, case.prompt, case.numbers, sampling=sampling, streaming=False, max_tokens=8)
    for tokens in (256, 9):
        subject = engine(NAME, max_num_tokens=tokens, max_batch_size=9)
        told = see(subject, [one, request(2, [5, 6, 7], 12)])
        assert [told[1, beam].tokens for beam in range(3)] == case.beams


def test_several_sequences_share_the_images() -> None:
    case = seen.case("one")
    told = see(engine(NAME), [asked(1, case.prompt, case.numbers, sampling={"num_return_sequences": 2})])
    assert told[1, 0].tokens == told[1, 1].tokens == case.tokens


def test_an_embedding_is_of_all_tokens() -> None:
    case = seen.case("one")
    mean = NamedTensor("inflight_pooling", "BYTES", (1,), b"\x04\x00\x00\x00mean")
    whole, parts = (
        see(
            engine(NAME, max_num_tokens=tokens, max_batch_size=4),
            [asked(1, case.prompt, case.numbers, tensors=[mean], max_tokens=1)],
        )[1, 0].embedding
        for tokens in (256, 4)
    )
    assert whole is not None
    assert parts is not None
    np.testing.assert_allclose(whole, parts, atol=1e-4, rtol=0)


def test_retention_ranges_count_a_picture_once() -> None:
    case = seen.case("two")
    _, images = prepared([asked(1, case.prompt, case.numbers)])
    own = images[1]
    assert not isinstance(own, Exception)
    moved = [own._moved(place) for place in range(len(case.prompt) + 1)]
    assert [case.expanded[place] for place in moved[:-1]] == case.prompt
    assert moved[-1] == len(case.expanded)
    assert [own.sent(place) for place in moved] == list(range(len(case.prompt) + 1))
    assert own.sent(own.starts[0] + 1) == own.starts[0]


def test_positions_of_one_image() -> None:
    assert token_positions(seen.vision(), 4, 6).tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 1, 2, 0, 1, 2],
    ]


# Refusals.

_LORA = NamedTensor("lora_task_id", "UINT64", (1,), b"\x01" + bytes(7))


@pytest.mark.parametrize(
    ("prompt", "data", "fields", "words"),
    [
        ([5, IMAGE, IMAGE, 6], [0], {}, "2 placeholders (token `62`) for 1 images"),
        ([5, 6], [0], {}, "0 placeholders"),
        ([5, IMAGE], [b"GIF89a"], {}, "`inflight_images[0]` begins like an image"),
        ([5, IMAGE], [b"nothing"], {}, "`inflight_images[0]` is not an image"),
        ([5, IMAGE], [0], {"tensors": [_LORA]}, "`lora_task_id` with images"),
        (
            [5, IMAGE],
            [0],
            {"output": {"num_prompt_log_probs": 1}},
            "`inflight_num_prompt_log_probs` with images",
        ),
        ([5, IMAGE], [0], {"output": {"return_context_logits": True}}, "`return_context_logits` with images"),
    ],
)
def test_what_cannot_be_seen_is_refused(
    prompt: list[int], data: list[Any], fields: dict[str, Any], words: str
) -> None:
    tensors = [seen.files(*(seen.picture_file(one) if isinstance(one, int) else one for one in data))]
    tensors += fields.pop("tensors", [])
    subject = engine(NAME)
    told = see(subject, [request(1, prompt, 4, tensors=tensors, **fields)])
    assert words in (told[1, 0].error or "")
    assert run(subject, [request(2, [5, 6])])[2, 0].error is None


def test_too_long_with_its_images() -> None:
    case = seen.case("two")
    told = see(engine(NAME, max_seq_len=60), [asked(1, case.prompt, case.numbers)])
    assert told[1, 0].error is not None
    assert "the prompt has 65 tokens, 50 of them of its images, and a sequence holds 60" in told[1, 0].error


def test_a_text_model_refuses_images_by_name() -> None:
    told = run(engine("llama"), [asked(1, [5, IMAGE], [0])])
    assert "does not take `inflight_images`" in (told[1, 0].error or "")


def test_narrow_images_and_huge_ones_are_refused() -> None:
    subject = seen.processor()
    with pytest.raises(Exception, match="a side may be 200 times the other"):
        subject.resized("it", Image.new("RGB", (201, 1)))
    told = see(engine(NAME), [request(1, [5, IMAGE], 4, tensors=[seen.files(declared_png(30_000, 30_000))])])
    assert "16777216 together" in (told[1, 0].error or "")


def test_pixels_of_all_requests_are_bounded() -> None:
    seeing = Seeing(seen.processor(), max_bytes=4000)
    requests = [asked(at, [5, IMAGE], [0]) for at in range(3)]
    _, images = prepared(requests, seeing)
    assert "try again later" in str(images[2])
    del images
    gc.collect()
    assert not isinstance(prepared([asked(4, [5, IMAGE], [0])], seeing)[1][4], Exception)


def test_an_image_that_comes_again_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = images._in_rgb

    def counted(place: str, image: Image.Image, upright: bool) -> Image.Image:
        decoded.append(place)
        return decode(place, image, upright)

    monkeypatch.setattr(images, "_in_rgb", counted)
    seeing = Seeing(seen.processor())
    _, first = prepared([asked(1, [5, IMAGE], [0])], seeing)
    _, second = prepared([asked(2, [IMAGE, 5, IMAGE], [0, 1])], seeing)
    assert decoded == ["inflight_images[0]", "inflight_images[1]"]
    one, other = first[1], second[2]
    assert isinstance(one, ImagePrompt), one
    assert isinstance(other, ImagePrompt), other
    assert one.pictures[0] is other.pictures[0]
    # Another tenant's is another image.
    salted = asked(
        3, [5, IMAGE], [0], tensors=[NamedTensor("inflight_cache_salt", "BYTES", (1,), b"\x01\0\0\0a")]
    )
    prepared([salted], seeing)
    assert len(decoded) == 3


@pytest.mark.parametrize("tokens", [1, 4, 9, 30, 1000])
@pytest.mark.parametrize("size", [(90, 61), (1, 1), (5, 11), (20, 30), (1000, 700)])
def test_an_image_is_made_smaller_by_the_option(tokens: int, size: tuple[int, int]) -> None:
    limited = seen.processor().limited(tokens)
    made = limited.tokens(limited.resized("it", Image.new("RGB", size)))
    # 40 is the checkpoint's bound.
    assert 1 <= made <= min(tokens, 40)
