"""What tests of both runtimes share: engine directories, requests, tensors, and rows taken apart."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor, Request, ResponseBatch
from inflight.executors.tensorrt_llm import convert
from inflight.executors.tensorrt_llm.engines import create_engines
from inflight.executors.tensorrt_llm.options import parse
from support import double

BUILD = {
    "max_seq_len": 128,
    "max_input_len": 100,
    "max_batch_size": 8,
    "max_num_tokens": 256,
    "max_beam_width": 2,
    "gather_context_logits": True,
    "max_prompt_embedding_table_size": 4,
    "max_draft_len": 4,
    "use_mrope": True,
    "plugin_config": {"lora_plugin": "auto", "tokens_per_block": 64},
}


def write_engine(directory: Path, ranks: int = 1, **build: Any) -> Path:
    directory.mkdir(exist_ok=True)
    config = {
        "version": "1.2.1",
        "pretrained_config": {"vocab_size": double.VOCAB, "mapping": {"world_size": ranks}},
        "build_config": BUILD | build,
    }
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (directory / f"rank{rank}.engine").write_bytes(b"engine")
    return directory


OPTIONS = {
    "max_beam_width": 2,
    "guided_decoding_backend": "xgrammar",
    "gather_generation_logits": True,
    "decoding_mode": "lookahead",
    "lookahead_window_size": 4,
    "lookahead_ngram_size": 4,
    "lookahead_verification_set_size": 4,
    "cache_transceiver_backend": "MPI",
}


def write_encoder_decoder(directory: Path) -> Path:
    """Two engines whose decoder starts with token 7."""
    directory.mkdir()
    write_engine(directory / "encoder", max_seq_len=None, max_input_len=40, max_draft_len=0)
    decoder = write_engine(directory / "decoder", max_seq_len=20, max_input_len=1, max_draft_len=0)
    config = json.loads((decoder / "config.json").read_text())
    config["pretrained_config"]["decoder_start_token_id"] = 7
    (decoder / "config.json").write_text(json.dumps(config))
    return directory


def write_tokenizer(directory: Path) -> Path:
    """As much of a tokenizer as guides need."""
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 3, "content": "</s>"}]}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    return directory


def start_engines(tmp_path: Path, build: dict[str, Any] | None = None, **options: Any) -> Any:
    """The executor of an engine below `tmp_path`, with every feature on."""
    engine = write_tokenizer(write_engine(tmp_path / "engine", **(build or {})))
    return create_engines(engine, parse(OPTIONS | options, "engines", {}), "1.2.1")


def request_of(given: dict[str, Any]) -> Request:
    """A small request with what a case is about."""
    fields_: dict[str, Any] = {"client_id": 9, "input_token_ids": [10, 11, 12], "max_tokens": 3}
    return Request(**(fields_ | given))


class Row:
    def __init__(self, batch: ResponseBatch, row: int) -> None:
        begin, end = struct.unpack_from("<2I", batch.token_offsets, 4 * row)
        self.client_id = struct.unpack_from("<Q", batch.client_ids, 8 * row)[0]
        self.sequence = struct.unpack_from("<i", batch.sequence_index, 4 * row)[0]
        self.tokens = list(np.frombuffer(batch.token_ids, "<i4")[begin:end])
        self.reason = FinishReason(batch.finish_reasons[row])
        self.final = bool(batch.finals[row])
        self.errors = [(code, text) for at, code, text in batch.errors if at == row]
        self.tensors = {tensor.name: tensor for at, tensor in batch.tensors if at == row}
        self.prompt = [entry[1:] for entry in batch.prompt_log_probs if entry[0] == row]
        self.cached = [tokens for at, tokens in batch.cached_tokens if at == row]
        self.log_probs: list[float] = []
        taken = 0
        for at in np.frombuffer(batch.log_prob_rows, "<u4"):
            size = int(np.diff(np.frombuffer(batch.token_offsets, "<u4"))[at])
            if at == row:
                self.log_probs = np.frombuffer(batch.log_probs, "<f4")[taken : taken + size].tolist()
            taken += size
        self.top: list[int] = []
        taken = 0
        widths = np.frombuffer(batch.top_log_prob_widths, "<u4")
        for at, width in zip(np.frombuffer(batch.top_log_prob_rows, "<u4"), widths, strict=True):
            size = int(np.diff(np.frombuffer(batch.token_offsets, "<u4"))[at]) * int(width)
            if at == row:
                self.top = np.frombuffer(batch.top_log_prob_ids, "<i4")[taken : taken + size].tolist()
            taken += size


def collect(executor: Any, *client_ids: int, patience_s: float = 10.0) -> dict[int, list[Row]]:
    """The rows of these requests up to their finals."""
    found: dict[int, list[Row]] = {client_id: [] for client_id in client_ids}
    deadline = time.monotonic() + patience_s
    while not all(rows and rows[-1].final for rows in found.values()):
        assert time.monotonic() < deadline, f"no final row: {found}"
        batch = executor.await_responses(0.5)
        for row in range(len(batch.finals)):
            one = Row(batch, row)
            found[one.client_id].append(one)
    return found


def await_until_broken(executor: Any) -> None:
    """Awaits until that raises, for ten seconds at most."""
    for _ in range(100):
        executor.await_responses(0.1)


def passed(name: str, datatype: str, shape: tuple[int, ...], *values: Any) -> NamedTensor:
    if datatype == "BYTES":
        data = values[0] if isinstance(values[0], bytes) else values[0].encode()
        return NamedTensor(name, datatype, shape, struct.pack("<I", len(data)) + data)
    kinds = {
        "FP16": "<f2",
        "FP32": "<f4",
        "INT32": "<i4",
        "INT64": "<i8",
        "UINT64": "<u8",
        "BOOL": "?",
        "UINT8": "u1",
    }
    return NamedTensor(name, datatype, shape, np.array(values, dtype=kinds[datatype]).tobytes())


def tensor(dtype: str, *values: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(np.array(values).shape), "values": list(values)}


RETENTION = [
    passed("retention_token_range_starts", "INT32", (2,), 0, 3),
    passed("retention_token_range_ends", "INT32", (2,), 3, -1),
    passed("retention_token_range_priorities", "INT32", (2,), 90, 10),
    passed("retention_token_range_durations_ms", "INT32", (2,), 500, -1),
    passed("retention_decode_priority", "INT32", (1,), 5),
    passed("retention_decode_duration_ms", "INT32", (1,), 250),
]
#: What both runtimes make of it.
RETAINED = {
    "token_range_retention_configs": [
        {
            "class": "TokenRangeRetentionConfig",
            "token_start": 0,
            "token_end": 3,
            "priority": 90,
            "duration_ms": {"ms": 500.0},
        },
        {
            "class": "TokenRangeRetentionConfig",
            "token_start": 3,
            "token_end": None,
            "priority": 10,
            "duration_ms": None,
        },
    ],
    "decode_retention_priority": 5,
    "decode_duration_ms": {"ms": 250.0},
}
PHASE = convert.pack_context_phase([5], 77, b"\x01\x02", [6])
PHASE_TENSOR = NamedTensor("context_phase_params", "UINT8", (len(PHASE),), PHASE)
TAG = '{"type": "structural_tag", "format": {"type": "any_text"}}'
#: A guide of each type that compiles.
GUIDES = {
    "json_schema": '{"title": "é"}',
    "regex": "a+é",
    "ebnf_grammar": 'root ::= "é"',
    "structural_tag": TAG,
}
#: Structural tags in the older form of xgrammar, and what they are in the later one.
OLDER_TAG = (
    '{"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f>"]}'
)
LATER_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f>"],
        "tags": [
            {
                "type": "tag",
                "begin": "<f>",
                "content": {"type": "json_schema", "json_schema": {"type": "object"}},
                "end": "</f>",
            }
        ],
    },
}


def guide_tensors(kind: str, guide: str) -> list[NamedTensor]:
    """The two inputs of a guided request."""
    return [
        passed("guided_decoding_guide_type", "BYTES", (1,), kind),
        passed("guided_decoding_guide", "BYTES", (1,), guide),
    ]


BIAS = np.zeros(double.VOCAB, dtype="<f4")
BIAS[3] = 1.5
