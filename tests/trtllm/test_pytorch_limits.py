"""What the PyTorch runtime does silently or dies of: positions, adapters, seeds, samplers, lengths, ranks."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.errors import UserMistake
from inflight.executors.base import Request, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import pytorch_config, pytorch_start
from inflight.executors.tensorrt_llm.health import EngineFailed
from inflight.executors.tensorrt_llm.options import parse
from inflight.executors.tensorrt_llm.pytorch_requests import Started
from inflight.model.lora import PEFT_WEIGHTS
from support import double
from support.double import newer
from support.pictures import picture
from trtllm.harness import await_until_broken, collect, passed, request_of
from trtllm.pytorch_setup import SEEING, options_of_line, start, write_adapter, write_checkpoint

BOTH_LINES = True

MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}


@pytest.fixture(autouse=True)
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that monkeypatch removes what the adapter sets.
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")


def start_seeing(tmp_path: Path, config: dict[str, Any], **options: Any) -> Any:
    model = write_checkpoint(tmp_path / "model", **SEEING, **config)
    return pytorch_start.create_pytorch(
        model, parse(options_of_line() | options, "pytorch", {}), double.version()
    )


#: A request that runs until it is cancelled, and one with an image.
RUNNING: dict[str, Any] = {"client_id": 1, "input_token_ids": [10, 11, 12], "max_tokens": 80}
SEEN: dict[str, Any] = {"client_id": 2, "tensors": [passed("inflight_images", "BYTES", (1,), picture())]}


@pytest.mark.parametrize("where", ["config", "text_config"])
def test_text_and_images_run_together_where_positions_have_several_parts(tmp_path: Path, where: str) -> None:
    # The double's own check reads the first; the other is where newer checkpoints have it.
    config: dict[str, Any] = dict(MROPE)
    if where == "text_config":
        config["text_config"] = {**MROPE, "vocab_size": double.VOCAB, "max_position_embeddings": 128}
    with double.installed():
        made = start_seeing(tmp_path, config)
        made.enqueue([request_of(RUNNING), request_of(SEEN)])
        rows = collect(made, 1, 2)
        texts = [call["inputs"] for call in double.REQUESTS if "prompt" in call["inputs"]]
        offered = made.info().capabilities
        made.shutdown()
    assert not any(row.errors for at in rows for row in rows[at])
    assert [token for row in rows[1] for token in row.tokens][:3] == [13, 14, 15]
    assert texts == [{"prompt": "10 11 12"}]
    # What TensorRT-LLM makes of the text may be other tokens.
    assert not {"prompt_log_probs", "context_logits"} & set(offered)


def test_the_double_fails_text_beside_images_without_positions(tmp_path: Path) -> None:
    with double.installed():
        made = start_seeing(tmp_path, MROPE)
        made._builder._started = Started()
        made.enqueue([request_of(RUNNING), request_of(SEEN)])
        rows = collect(made, 1, 2)
        made.shutdown()
    assert all("must match the size" in rows[at][-1].errors[0][1] for at in (1, 2))


def test_token_ids_are_sent_as_they_are_without_such_positions(tmp_path: Path) -> None:
    with double.installed():
        made = start_seeing(tmp_path, {})
        made.enqueue([request_of({})])
        collect(made, 9)
        assert double.REQUESTS[-1]["inputs"] == [10, 11, 12]
        made.shutdown()


def cut(directory: Path) -> None:
    weights = directory / PEFT_WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-8])


ADAPTERS = [
    (lambda directory: (directory / PEFT_WEIGHTS).unlink(), "does not exist"),
    (cut, "is truncated"),
    (lambda directory: (directory / PEFT_WEIGHTS).write_bytes(b"x" * 64), "is truncated"),
    (lambda directory: (directory / "adapter_config.json").write_text("{}"), "is not an adapter's config"),
]


def lora(task_id: int, client_id: int = 1) -> Request:
    tensors = [passed("lora_task_id", "UINT64", (1,), task_id)]
    return Request(client_id=client_id, input_token_ids=[10], max_tokens=1, tensors=tensors)


@pytest.mark.parametrize(("harm", "words"), ADAPTERS)
def test_an_adapter_that_cannot_be_loaded_is_refused_by_name(
    pytorch_executor: Any, harm: Any, words: str
) -> None:
    write_adapter(Path("adapters"), "9")
    harm(Path("adapters/9"))
    pytorch_executor.enqueue([lora(9), Request(client_id=2, input_token_ids=[10], max_tokens=3)])
    rows = collect(pytorch_executor, 1, 2)
    [(code, text)] = rows[1][0].errors
    assert code == StatusCode.INVALID_ARGUMENT
    assert text.startswith("LoRA task `9` cannot be used: ")
    assert words in text
    assert not rows[2][-1].errors


@pytest.mark.parametrize(
    ("adapter", "words"),
    [({"rank": 65}, "has rank `65`"), ({"module": "k_proj"}, "changes `k_proj`")],
)
def test_an_adapter_for_which_there_is_no_room_is_refused(
    pytorch_executor: Any, adapter: dict[str, Any], words: str
) -> None:
    write_adapter(Path("adapters"), "9", **adapter)
    pytorch_executor.enqueue([lora(9)])
    assert words in collect(pytorch_executor, 1)[1][0].errors[0][1]


def test_the_double_dies_of_an_adapter_that_cannot_be_loaded(
    pytorch_executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.executors.tensorrt_llm.adapters.check_adapter", lambda *_: None)
    write_adapter(Path("adapters"), "9")
    cut(Path("adapters/9"))
    pytorch_executor.enqueue([lora(9)])
    with pytest.raises(EngineFailed):
        await_until_broken(pytorch_executor)


def test_new_weights_under_an_id_that_was_used_are_refused(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([lora(7)])
    assert not collect(pytorch_executor, 1)[1][-1].errors
    weights = Path("adapters/7") / PEFT_WEIGHTS
    weights.write_bytes(weights.read_bytes() + b"\0")
    pytorch_executor.enqueue([lora(7, 2)])
    [(code, text)] = collect(pytorch_executor, 2)[2][0].errors
    assert code == StatusCode.INVALID_ARGUMENT
    assert "publish new weights under a new id" in text


#: Options, whether the older sampler runs, whether beams do.
SAMPLERS = [
    ({"sampler_type": "TRTLLMSampler"}, True, 1),
    ({"sampler_type": "TorchSampler"}, False, 1),
    ({"sampler_type": "auto"}, False, 1),
    ({"sampler_type": "auto", "max_beam_width": 2}, True, 2),
    ({"sampler_type": "TorchSampler", "max_beam_width": 2}, False, 2),
]


@pytest.mark.parametrize(("options", "older", "beams"), SAMPLERS)
def test_what_only_the_older_sampler_applies_is_offered_where_it_runs(
    line: str, tmp_path: Path, options: dict[str, Any], older: bool, beams: int
) -> None:
    if line != "1.2.1":
        if options["sampler_type"] == "TRTLLMSampler":
            with double.installed(), pytest.raises(UserMistake, match="no argument `sampler_type`"):
                start(tmp_path, **options)
            return
        # The only sampler applies it.
        older = True
    with double.installed():
        made = start(tmp_path, **options)
        offered = set(made.info().capabilities)
        sampling = SamplingConfig(seed=5, beam_width=beams)
        made.enqueue([request_of({"sampling_config": sampling, "streaming": beams == 1})])
        collect(made, 9)
        given = double.REQUESTS[-1]["sampling_params"].dump()
        made.shutdown()
    full = {"penalties", "bad_words", "min_p", "top_p_decay", "no_repeat_ngram_size"}
    assert full & offered == (full if older else set())
    # A seed that is not applied is not sent either.
    assert given.get("seed") == (5 if older else None)


def test_a_length_that_was_lowered_is_announced_or_said_once(
    line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with double.installed():
        made = start(tmp_path, max_tokens_in_paged_kv_cache=32)
        if line != "1.2.1":
            assert made.info().max_seq_len == 32
            made.shutdown()
            assert "reduced `max_seq_len` to 32 (from 128)" in caplog.text
            return
        for client_id in (1, 2):
            made.enqueue([Request(client_id=client_id, input_token_ids=[10] * 30, max_tokens=9)])
            assert sum(len(row.tokens) for row in collect(made, client_id)[client_id]) == 2
        made.shutdown()
    assert caplog.text.count("ended a sequence at 32 tokens, before its `max_tokens`") == 1


class Loaded:
    """An LLM that says in one of three places how long sequences may be."""

    def __init__(self, executor: Any = None, args: Any = None, capacity: Any = None) -> None:
        self._executor, self.args = SimpleNamespace(max_seq_len=executor), SimpleNamespace(max_seq_len=args)
        if capacity is not None:
            self.get_kv_cache_capacity = capacity


@pytest.mark.parametrize(
    ("llm", "length"),
    [
        (object(), 128),
        (Loaded(), 128),
        (Loaded(executor=64, args=96), 64),
        (Loaded(args=96), 96),
        (Loaded(args=4096), 128),
        (Loaded(capacity=lambda: {"maxNumTokens": 32}), 32),
        (Loaded(capacity=dict), 128),
        (Loaded(capacity=lambda: 1 // 0), 128),
    ],
)
def test_the_length_announced_is_the_loaded_one_where_the_llm_reports_it(llm: Any, length: int) -> None:
    assert pytorch_config.loaded_length(llm, 128) == length


def test_a_dead_rank_without_a_future_is_seen_by_asking(
    pytorch_executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Remote:
        mpi_futures = ()

        def check_health(self) -> bool:
            return False

    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[double.SILENCE], max_tokens=1)])
    monkeypatch.setattr(type(pytorch_executor._llm), "_executor", Remote())
    with pytest.raises(EngineFailed, match="no longer takes requests"):
        await_until_broken(pytorch_executor)


def test_images_of_one_client_share_nothing_with_those_of_another(tmp_path: Path) -> None:
    with double.installed():
        made = start_seeing(tmp_path, {})
        salts = []
        for tenant in ("a", "b"):
            more = [*SEEN["tensors"], passed("inflight_cache_salt", "BYTES", (1,), tenant)]
            made.enqueue([request_of(SEEN | {"tensors": more})])
            collect(made, 2)
            salts.append(double.REQUESTS[-1]["cache_salt"])
        made.shutdown()
    assert [salt.partition(":")[0] for salt in salts] == ["a", "b"]
    assert salts[0].partition(":")[2] == salts[1].partition(":")[2] != ""


def test_images_are_processed_off_the_loop_where_that_can_be_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with double.installed():
        threads: list[str] = []
        if line != "1.2.1":
            preprocess = newer.LLM.preprocess

            def watched(*given: Any) -> Any:
                threads.append(threading.current_thread().name)
                return preprocess(*given)

            monkeypatch.setattr(sys.modules["tensorrt_llm"].LLM, "preprocess", watched)
        made = start_seeing(tmp_path, {})
        made.enqueue([request_of(SEEN)])
        assert not collect(made, 2)[2][-1].errors
        made.shutdown()
    assert [name.rpartition("_")[0] for name in threads] == (
        [] if line == "1.2.1" else ["tensorrt-llm-images"]
    )


#: How beams may be ranked and ended other than by default.
RANKING: list[dict[str, Any]] = [
    {"length_penalty": 0.5},
    {"beam_search_diversity_rate": 0.1},
    {"early_stopping": 0},
]


@pytest.mark.parametrize("given", RANKING)
@pytest.mark.parametrize("sampler", ["auto", "TorchSampler"])
def test_beams_are_ranked_as_asked_or_refused(
    line: str, tmp_path: Path, given: dict[str, Any], sampler: str
) -> None:
    default = {"length_penalty": 0.0, "beam_search_diversity_rate": 0.0, "early_stopping": 1}
    with double.installed():
        made = start(tmp_path, sampler_type=sampler, max_beam_width=2)
        for client_id, config in ((1, default), (2, given)):
            sampling = SamplingConfig(beam_width=2, **config)
            made.enqueue(
                [request_of({"client_id": client_id, "sampling_config": sampling, "streaming": False})]
            )
        rows = collect(made, 1, 2)
        made.shutdown()
    assert not rows[1][-1].errors
    if line == "1.2.1" and sampler == "TorchSampler":
        [(code, text)] = rows[2][0].errors
        assert code == StatusCode.INVALID_ARGUMENT
        assert "is ignored by this TensorRT-LLM's TorchSampler" in text
    else:
        # The older sampler, or the only one of 1.3.
        assert not rows[2][-1].errors
