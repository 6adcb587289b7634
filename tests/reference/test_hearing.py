"""A model that hears, on every runner, against what Hugging Face transformers makes of the same clips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import Executor, NamedTensor, StatusCode
from inflight.executors.reference import create
from inflight.executors.reference.core.transcript import Marks, TranscriptRules, load_marks, parse_marks
from inflight.executors.reference.errors import OptionError, UnsupportedModelError
from inflight.executors.reference.model.config import load_config, parse_config
from inflight.executors.reference.model.log_mel import check_preprocessor, log_mel
from inflight.executors.reference.numpy.batch import Span, build_batch
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.encoder import NumpyEncoder
from inflight.executors.reference.numpy.model import load_model
from inflight.model.checkpoint import read_config

from . import heard
from .heard import CASES, CLIPS, ENGLISH, FIRST_TIME, GERMAN, NAME, NO_TIMES, START, TRANSCRIBE, asked
from .support import FIXTURES, AllTold, collect, request, unpack

MODEL = FIXTURES / NAME
PROMPT = [START, ENGLISH, TRANSCRIBE, NO_TIMES]


def made(device: str = "cpu", backend: str = "numpy", **options: Any) -> Executor:
    own = {"max_batch_size": 4, "tokens_per_block": 4, "max_tokens_in_paged_kv_cache": 2048, **options}
    return create(MODEL, device, backend=backend, dtype="float32", **own)


#: A device and a backend.
Runner = tuple[str, str]


@pytest.fixture(scope="module", params=["numpy", "pytorch", "cuda"])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param != "numpy":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if request.param == "cuda" and not torch.cuda.is_available():
            pytest.skip("there is no NVIDIA GPU")
    return ("cuda", "pytorch") if request.param == "cuda" else ("cpu", request.param)


@pytest.fixture(scope="module")
def executor(runner: Runner) -> Iterator[Executor]:
    subject = made(*runner)
    yield subject
    subject.shutdown()


def drain(subject: Executor, count: int) -> tuple[AllTold, dict[int, tuple[int, str]]]:
    """What is told until ``count`` requests are final, and the errors by client id."""
    told: AllTold = {}
    errors: dict[int, tuple[int, str]] = {}
    while sum(one.final for one in told.values()) < count:
        batch = subject.await_responses(60.0)
        rows = unpack(batch)
        assert rows, "nothing came within a minute"
        errors |= {rows[row].client_id: (code, text) for row, code, text in batch.errors}
        collect(rows, told)
        for row, tensor in batch.tensors:
            one = told[rows[row].client_id, rows[row].sequence_index]
            one.logits.append(np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)[0])
    return told, errors


@pytest.fixture(scope="module")
def encoder() -> NumpyEncoder:
    found = load_model(MODEL).encoder
    assert found is not None
    return found


@pytest.mark.parametrize("number", range(CLIPS))
def test_spectra_are_those_of_transformers(number: int) -> None:
    config = heard.hearing()
    own = log_mel(heard.clip(number), config.mels, config.frames)
    np.testing.assert_allclose(own, heard.record()[f"spectrum_{number}"], atol=2e-5)


def test_spectra_of_128_bands_are_those_of_transformers() -> None:
    own = log_mel(heard.clip(1), 128, heard.hearing().frames)
    np.testing.assert_allclose(own, heard.record()["wide_1"], atol=2e-5)


@pytest.mark.parametrize("number", range(CLIPS))
def test_clips_are_encoded_as_by_transformers(encoder: NumpyEncoder, number: int) -> None:
    encoded = encoder.encode(heard.record()[f"spectrum_{number}"])
    np.testing.assert_allclose(encoded, heard.record()[f"encoded_{number}"], atol=2e-4)


def test_transcripts_are_those_of_transformers(executor: Executor) -> None:
    """All at once, and again, when the clips are encoded and the blocks may be found."""
    cases = [heard.case(name) for name in CASES]
    for _ in range(2):
        executor.enqueue([asked(at, one.prompt, one.clip) for at, one in enumerate(cases)])
        told, errors = drain(executor, len(cases))
        assert not errors
        assert [told[at, 0].tokens for at in range(len(cases))] == [one.tokens for one in cases]


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str) -> None:
    subject, own = load_model(MODEL), heard.case(name)
    assert subject.encoder is not None
    config = subject.config
    clip = subject.encoder.hear(heard.record()[f"spectrum_{own.clip}"])
    cache = PagedCache(config.num_layers, 16, 4, config.num_kv_heads, config.head_dim)
    tokens = own.prompt + own.tokens
    batch = build_batch([], [Span(tokens, 0, list(range(16)), heard=clip)], 4)
    hidden = subject.forward(batch, cache, np.arange(len(own.prompt) - 1, len(tokens) - 1))
    np.testing.assert_allclose(subject.logits(hidden), own.logits, atol=1e-4)


def test_logits_of_a_transcript_are_those_of_transformers(executor: Executor) -> None:
    """Next to one another, in the graphs of a GPU; as they come, before the rules."""
    cases = [heard.case(name) for name in CASES]
    output = {"return_generation_logits": True}
    executor.enqueue([asked(at, one.prompt, one.clip, output=output) for at, one in enumerate(cases)])
    told, errors = drain(executor, len(cases))
    assert not errors
    for at, one in enumerate(cases):
        found = told[at, 0]
        assert found.tokens == one.tokens
        np.testing.assert_allclose(np.concatenate(found.logits), one.logits, atol=1e-4)


def test_a_bare_start_asks_for_the_language(executor: Executor) -> None:
    executor.enqueue([asked(number, [START], number, max_tokens=1) for number in range(CLIPS)])
    told, _ = drain(executor, CLIPS)
    wanted = [[int(heard.record()[f"language_{number}"])] for number in range(CLIPS)]
    assert [told[number, 0].tokens for number in range(CLIPS)] == wanted


def test_no_block_of_one_clip_is_found_with_another(executor: Executor, runner: Runner) -> None:
    """The prompt fills two blocks, and is the same."""
    prompt = [heard.BEFORE, 3, 4, 11, START, ENGLISH, TRANSCRIBE, NO_TIMES]
    for number in range(CLIPS):
        alone = made(*runner, enable_kv_cache_reuse=False)
        alone.enqueue([asked(0, prompt, number)])
        told, _ = drain(alone, 1)
        alone.shutdown()
        executor.enqueue([asked(0, prompt, number)])
        shared, _ = drain(executor, 1)
        assert shared[0, 0].tokens == told[0, 0].tokens


def test_what_cannot_be_heard_is_refused(executor: Executor) -> None:
    one = np.zeros(8, dtype=np.float32)
    salt = NamedTensor("inflight_pooling", "BYTES", (1,), b"\x04\0\0\0mean")
    for tensors, code, words in (
        ([], StatusCode.INVALID_ARGUMENT, ("needs `WAV`", "16000 Hz")),
        ([heard.audio(np.zeros(heard.SAMPLES + 1, np.float32))], StatusCode.INVALID_ARGUMENT, ("2 s",)),
        ([heard.audio(one, "INT32")], StatusCode.INVALID_ARGUMENT, ("FP32",)),
        ([heard.audio(one + np.nan)], StatusCode.INVALID_ARGUMENT, ("not between",)),
        ([heard.audio(one), salt], StatusCode.UNIMPLEMENTED, ("inflight_pooling",)),
    ):
        executor.enqueue([request(7, PROMPT, 4, tensors=tensors)])
        _, errors = drain(executor, 1)
        assert errors[7][0] == code
        assert all(word in errors[7][1] for word in words), errors


def test_a_model_that_does_not_hear_refuses_clips() -> None:
    subject = create(FIXTURES / "llama", "cpu", backend="numpy")
    subject.enqueue([request(1, [5, 6], 4, tensors=[heard.audio(heard.clip(0))])])
    _, errors = drain(subject, 1)
    subject.shutdown()
    assert errors[1][0] == StatusCode.UNIMPLEMENTED
    assert "`WAV`" in errors[1][1]


def test_what_is_announced(executor: Executor) -> None:
    capabilities = executor.info().capabilities
    assert "transcription" in capabilities
    assert not {"lora", "guided_decoding", "embeddings", "prompt_tuning"} & set(capabilities)


def test_clips_in_memory_bound_the_batch(runner: Runner) -> None:
    clip = heard.hearing().clip_bytes(4)
    subject = made(*runner, audio_cache_memory_bytes=2 * clip)
    assert subject.info().max_batch_size == 2
    cases = [heard.case(name) for name in CASES]
    subject.enqueue([asked(at, one.prompt, one.clip) for at, one in enumerate(cases)])
    told, _ = drain(subject, len(cases))
    subject.shutdown()
    assert [told[at, 0].tokens for at in range(len(cases))] == [one.tokens for one in cases]
    with pytest.raises(OptionError, match="audio_cache_memory_bytes"):
        made(*runner, audio_cache_memory_bytes=clip - 1)


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_model": "m", "max_draft_len": 4},
        {"batch_invariant": True},
        {"cache_transceiver_backend": "tcp"},
    ],
)
def test_options_that_do_not_work_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="WhisperForConditionalGeneration"):
        made(**options)


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"num_mel_bins": 64}, "num_mel_bins"), ({"scale_embedding": True}, "scale_embedding")],
)
def test_configs_that_would_change_the_output_are_refused(changed: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModelError, match=word):
        parse_config({**read_config(MODEL), **changed})


def test_another_preprocessor_is_refused(tmp_path: Path) -> None:
    config = load_config(MODEL).hearing
    assert config is not None
    for text, word in (('{"hop_length": 128}', "hop_length"), ('{"chunk_length": 30}', "chunk_length")):
        (tmp_path / "preprocessor_config.json").write_text(text)
        with pytest.raises(UnsupportedModelError, match=word):
            check_preprocessor(tmp_path, config)


def test_times_come_in_pairs_and_never_go_back() -> None:
    marks = parse_marks(
        {"no_timestamps_token_id": 9, "eos_token_id": 4, "max_initial_timestamp_index": 3}, 20
    )
    assert (marks.first_time, marks.last_first_time) == (10, 13)
    texts, end, times = {0, 1, 2, 3, 5, 6, 7, 8}, {4}, set(range(10, 20))
    for tokens, allowed in (
        ([], {10, 11, 12, 13}),
        ([11], texts | end),
        ([11, 3], texts | end | set(range(12, 20))),
        # A part ends; the next begins then or later, or the transcript ends. 5 to 8 are marks.
        ([11, 3, 14], {4, 5, 6, 7, 8} | set(range(14, 20))),
        ([11, 3, 14, 14], texts | end),
        ([11, 3, 14, 14, 2], texts | end | set(range(15, 20))),
    ):
        rules = TranscriptRules(marks, [1, 2], 20)
        rules.resume(tokens)
        assert set(np.flatnonzero(rules.mask())) == allowed - ({9} if tokens else times - allowed), tokens
    assert TranscriptRules(marks, [1, 9], 20).mask().all(), "without times nothing is ordered"


def test_a_time_comes_where_times_together_are_likelier() -> None:
    marks = Marks(first_time=4, last_first_time=7, no_times=3, end=2)
    rules = TranscriptRules(marks, [0], 8)
    rules.resume([4, 1])
    logits = np.array([0.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=np.float32)
    rules.weigh(logits)
    assert logits.argmax() >= 4
    logits = np.array([0.0, 3.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=np.float32)
    rules.weigh(logits)
    assert logits.argmax() == 1


def test_prompts_may_be_german(executor: Executor) -> None:
    """A language that the client names is not asked for."""
    executor.enqueue([asked(1, [START, GERMAN, TRANSCRIBE, NO_TIMES], 0, max_tokens=1)])
    told, errors = drain(executor, 1)
    assert not errors
    assert len(told[1, 0].tokens) == 1
    assert FIRST_TIME == 73


def test_sequences_and_beams_of_one_clip_hear_it(executor: Executor) -> None:
    own = heard.case("plain")
    executor.enqueue(
        [
            asked(1, own.prompt, own.clip, sampling={"num_return_sequences": 2}),
            asked(2, own.prompt, own.clip, sampling={"beam_width": 2}, streaming=False),
        ]
    )
    told, errors = drain(executor, 2)
    assert not errors
    assert [told[1, index].tokens for index in range(2)] == [own.tokens] * 2
    # Beams that hear nothing, or another clip, would begin otherwise.
    first = {told[2, index].tokens[0] for index in range(2)}
    best = np.argsort(heard_logits(own))[::-1]
    assert first <= set(best[:2].tolist())


def heard_logits(own: heard.Case) -> Any:
    """Of the first token, as far as the rules let it come."""
    logits = own.logits[0].copy()
    marks = load_marks(MODEL, len(logits))
    logits[[*marks.suppressed, *marks.suppressed_first]] = -np.inf
    return logits


def test_a_transcript_continues_from_what_was_written_elsewhere(executor: Executor) -> None:
    own = heard.case("times")
    executor.enqueue([asked(1, own.prompt, own.clip, generated=[own.tokens[:5]])])
    told, errors = drain(executor, 1)
    assert not errors
    assert told[1, 0].tokens == own.tokens[5:]
