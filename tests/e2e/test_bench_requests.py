"""`inflight bench requests` against real workers, over both protocols."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import run
from support.servers import Server, Start, start_worker

PROTOCOLS = ["grpc", "http"]


def to(server: Server, protocol: str) -> list[str]:
    return ["-i", protocol, "-u", server.grpc if protocol == "grpc" else server.http]


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/inflight_batcher_llm/benchmark_core_model.py -i grpc --max-input-len 300 --request-rate 50"
    " --time-delay-dist exponential_dist --num-requests 30 token-norm-dist --input-mean 20 --input-stdev 5"
    " --output-mean 8 --output-stdev 3",
    "inflight bench requests -i grpc --max-input-len 300 --request-rate 50 --time-delay-dist exponential_dist"
    " --num-requests 30 --input-mean 20 --input-stdev 5 --output-mean 8 --output-stdev 3",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("streaming", [True, False])
def test_random_requests_at_a_rate(fast: Server, tmp_path: Path, protocol: str, streaming: bool) -> None:
    html, table = tmp_path / "report.html", tmp_path / "requests.csv"
    found = run(
        "bench", "requests", "--max-input-len", "300", "--request-rate", "50", "--time-delay-dist",
        "exponential_dist", "--num-requests", "30", "--input-mean", "20", "--input-stdev", "5",
        "--output-mean", "8", "--output-stdev", "3", "--json", "--html", str(html),
        "--op-stats-csv", str(table),
        "--streaming" if streaming else "--no-streaming", "--warmup", "2", *to(fast, protocol),
    )  # fmt: skip
    summary = found.object
    assert (summary["requests"], summary["failed"]) == (30, 0)
    assert 15 < summary["avg_input_tokens"] < 25
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    # The seed fixes what is sent, and every token that was asked for came.
    assert sum(int(row[5]) for row in rows) / 30 == pytest.approx(summary["avg_output_tokens"])
    assert 5 < summary["avg_output_tokens"] < 12
    assert summary["latency_ms"]["p50"] <= summary["latency_ms"]["p90"] <= summary["latency_ms"]["p99"]
    assert (summary["first_token_ms"] is not None) is streaming
    assert summary["duration_s"] > 0.2
    assert html.read_text().count("<svg") == (4 if streaming else 3)
    assert "30 of 30 requests, 0 failed" in found.err


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/inflight_batcher_llm/benchmark_core_model.py -i http --concurrency 8"
    " dataset --dataset FILE --tokenizer-dir DIR",
    "inflight bench requests -i http --concurrency 8 --dataset FILE --tokenizer-dir DIR",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dataset_of_texts(server: Server, tmp_path: Path, model_directory: Path, protocol: str) -> None:
    file = tmp_path / "dataset.json"
    row = {"input": "Once upon a time", "instruction": "there was", "output": "a b c"}
    file.write_text(json.dumps([row] * 6))
    arguments = [
        "bench",
        "requests",
        "--dataset",
        str(file),
        "--concurrency",
        "8",
        "--json",
        *to(server, protocol),
    ]
    here = run(*arguments, "--tokenizer-dir", str(model_directory)).object
    by_server = run(*arguments, "-n", "4").object
    assert (here["requests"], by_server["requests"]) == (6, 4)
    assert here["avg_output_tokens"] == by_server["avg_output_tokens"] == 3
    assert here["avg_input_tokens"] == by_server["avg_input_tokens"] > 3


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/inflight_batcher_llm/benchmark_core_model.py -i grpc --max-input-len 300"
    " token-from-histogram --histogram-key example",
    "inflight bench requests -i grpc --max-input-len 300 --histogram FILE",
)
def test_lengths_from_a_histogram(fast: Server, tmp_path: Path) -> None:
    file, table = tmp_path / "lengths.json", tmp_path / "requests.csv"
    buckets = {"input": [[3, 5, 4], [301, 301, 2]], "output": [[2, 2, 3], [4, 4, 3]]}
    file.write_text(json.dumps(buckets))
    arguments = ["bench", "requests", "--histogram", str(file), *to(fast, "grpc")]
    run(*arguments, "--max-input-len", "300", "--csv", str(table))
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert len(rows) == 4
    assert all(3 <= int(row[4]) <= 5 and int(row[5]) in (2, 4) for row in rows)
    assert run(*arguments, "-n", "7", "--json").object["requests"] == 7
    both = run(*arguments, "--dataset", str(file), code=2).err
    assert "`--dataset` and `--histogram` were given" in both


def test_recorded_arrivals_are_replayed(fast: Server, tmp_path: Path) -> None:
    file, table = tmp_path / "trace.jsonl", tmp_path / "requests.csv"
    file.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": 4, "output_length": 3}) + "\n"
            for at in (300, 0, 100)
        )
    )
    run(
        "bench",
        "requests",
        "--dataset",
        str(file),
        "--arrivals",
        "replay",
        "--csv",
        str(table),
        *to(fast, "grpc"),
    )
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert [float(row[0]) for row in rows] == [0.0, 0.1, 0.3]
    assert all(float(row[1]) >= float(row[0]) for row in rows)


def test_thresholds_and_failures_have_exit_codes(fast: Server, start: Start) -> None:
    arguments = ["bench", "requests", "-n", "4", "--input-mean", "3", "--output-mean", "3", *to(fast, "grpc")]
    assert run(*arguments, "--fail-above", "p99=60s", "--fail-below", "requests-per-s=0.01").code == 0
    broken = run(*arguments, "--fail-above", "p99=0", "--fail-below", "output-tokens-per-s=1e12", code=3).err
    assert "threshold: p99 is " in broken
    assert "threshold: output-tokens-per-s is " in broken
    # The embedded model has fewer ids than this: every request is refused by name.
    refused = run(*arguments, "--vocab-size", "2000000000", code=1).out
    assert "4 failed" in refused
    assert "expected a token id below" in refused
    narrow = start_worker(start, "--step-us=20000", "--max-batch-size=1")
    run("client", "health", "--wait-s", "30", "-u", narrow.address("grpc"))
    late = run(
        "bench", "requests", "-n", "6", "-c", "1", "--request-rate", "1000", "--output-mean", "3",
        "--json", "-u", narrow.address("grpc"),
    ).object  # fmt: skip
    # One after the other, 60 ms each, counted from when they were due.
    assert late["late_ms"]["max"] > 200
    assert late["latency_ms"]["max"] > late["late_ms"]["max"]
