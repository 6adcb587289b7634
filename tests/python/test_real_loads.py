"""`tools/real_loads.py` makes the requests that its loads name, and a table of what servers did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from real_loads import LOADS, WARM_UP, Load, arguments_of, problems, returning, row, table, write_adapters


def quantiles(value: float) -> dict[str, float]:
    return {"p50": value, "p99": 2 * value}


def group(**others: Any) -> dict[str, Any]:
    return {
        "tokens_per_second": 1234.5,
        "time_to_first_token_ms": quantiles(10),
        "inter_token_ms": quantiles(1),
        "mean_inter_token_ms": None,
        "good": 3,
        "whole": 4,
        "short": 0,
        "truncated": 0,
        "errored": 1,
        "first_problem": "HTTP 503",
        **others,
    }


def test_rows_of_a_load_are_a_trace(tmp_path: Path) -> None:
    for load in [*LOADS.values(), *WARM_UP]:
        if load.trace is not None:
            assert arguments_of(load, None, tmp_path) is None
            assert arguments_of(load, tmp_path, tmp_path) == [str(tmp_path / load.trace), *load.options]
            continue
        arguments = arguments_of(load, None, tmp_path)
        assert arguments is not None
        rows = [json.loads(line) for line in Path(arguments[0]).read_text().splitlines()]
        assert len(rows) == len(load.rows)
        for one in rows:
            assert 512 * len(one.get("hash_ids", [])) < one["input_length"] <= 32896


def test_prefixes_return_at_the_rate_and_differ() -> None:
    rows = returning(32, 12, 4)
    prefixes = {tuple(one["hash_ids"]): one for one in rows}
    first = [one for one in rows if one["group"] == "for the first time"]
    assert (len(rows), len(prefixes), len(first)) == (384, 32, 32)
    blocks = [block for prefix in prefixes for block in prefix]
    assert len(blocks) == len(set(blocks))
    assert {one["input_length"] - 512 * len(one["hash_ids"]) for one in rows} == {256}
    assert 80_000 < rows[-1]["timestamp"] < 110_000
    # What tools/prefixes lets a worker hold: more than half of them, and not all.
    assert 229_376 / 2 < 512 * len(blocks) / 2 < 229_376 < 512 * len(blocks)


def test_models_of_a_server_take_turns(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"input_length": 1}\n' * 3)
    for load in (Load([row(1, 1)] * 3), Load(trace="trace.jsonl")):
        arguments = arguments_of(load, tmp_path, tmp_path, ["a", "b"])
        assert arguments is not None
        rows = [json.loads(line) for line in Path(arguments[0]).read_text().splitlines()]
        assert [one["model"] for one in rows] == ["a", "b", "a"]


def test_servers_of_a_load_follow_each_other_in_the_table() -> None:
    first, last = next(iter(LOADS)), list(LOADS)[-1]
    records = [
        {"server": server, "shape": "small", "load": load, "groups": {"requests": group()}}
        for server in ("ours", "vllm")
        for load in (last, first)
    ]
    records.append({"server": "z", "shape": "small", "load": last, "error": "no connection"})
    lines = table(records).splitlines()[2:]
    names = [line.split(" | ")[:2] for line in lines]
    assert names == [[f"| {load}", server] for load in (first, last) for server in ("ours", "vllm")] + [
        [f"| {last}", "z"]
    ]
    assert "1,234 | 10.0 / 20.0 | 1.0 / 2.0 | – | 3 of 5 | –" in lines[0]


def test_groups_have_rows_of_their_own() -> None:
    load = next(iter(LOADS))
    record: dict[str, Any] = {"server": "ours", "shape": "small", "load": load}
    record["groups"] = {"a": group(), "b": group()}
    record["groups"]["b"] |= {"prompt_tokens": 40, "cached_tokens": 30}
    assert table([record]).endswith(" | 3 of 5 | 75.0% |")
    assert [line.split(" | ")[0] for line in table([record]).splitlines()[2:]] == [
        f"| {load}: a",
        f"| {load}: b",
    ]


def test_problems_are_named() -> None:
    assert problems({"error": "no connection"}) == ["no connection"]
    assert problems({"groups": {"a": group(), "b": group(first_problem=None)}}) == ["HTTP 503"]


def test_adapters_are_those_that_peft_writes(tmp_path: Path) -> None:
    config = {
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
    }
    paths = write_adapters(config, tmp_path, 2, 4)
    assert [path.name for path in paths] == ["adapter-0", "adapter-1"]
    first, second = (load_file(path / "adapter_model.safetensors") for path in paths)
    assert len(first) == len(second) == 3 * 7 * 2
    at = "base_model.model.model.layers.2.self_attn"
    assert first[f"{at}.k_proj.lora_A.weight"].shape == (4, 8)
    assert first[f"{at}.k_proj.lora_B.weight"].shape == (4, 4)
    assert all((first[name] != second[name]).any() for name in first)
    settings = json.loads((paths[0] / "adapter_config.json").read_text())
    assert (settings["r"], len(settings["target_modules"])) == (4, 7)
