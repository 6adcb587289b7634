"""`tools/benchmark_vllm.py` asks vLLM for what `tools/benchmark_executor.py` asks ours for, and its speeds
reach the table. vLLM itself needs a GPU: a scripted package stands for it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from benchmark_executor import measure_vllm, print_table
from shapes import write_config

#: The package by file. Its engine notes what it was asked for in a file, and ends where a batch is 13.
SCRIPTED = {
    "torch/__init__.py": "def no_grad():\n    return lambda function: function\n",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/model_loader/__init__.py": """
LOADERS = {}

def register_model_loader(name):
    return lambda loader: LOADERS.setdefault(name, loader)
""",
    "vllm/model_executor/model_loader/base_loader.py": "class BaseModelLoader:\n    pass\n",
    "vllm/__init__.py": """
import json, pathlib, types
from vllm.model_executor.model_loader import LOADERS

class SamplingParams:
    def __init__(self, **named):
        self.named = named
        self.n, self.max_tokens = named["n"], named["max_tokens"]

class LLM:
    def __init__(self, directory, **options):
        assert options.pop("load_format") in LOADERS
        self.asked = pathlib.Path(directory, "asked.jsonl").open("a")
        self.note(options)

    def note(self, value):
        print(json.dumps(value), file=self.asked, flush=True)

    def generate(self, prompts, parameters, use_tqdm):
        if len(prompts) == 13:
            raise SystemExit("no room")
        self.note([len(prompts), len(prompts[0]["prompt_token_ids"]), parameters.named])
        one = types.SimpleNamespace(token_ids=[0] * parameters.max_tokens)
        return [types.SimpleNamespace(outputs=[one] * parameters.n) for _ in prompts]
""",
}


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted package, for processes."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("the real vLLM is installed here")
    for name, text in SCRIPTED.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def arguments(**others: object) -> argparse.Namespace:
    values = {"batch": [4], "case": ["greedy"], "input": 6, "output": 5, "repeat": 1, "vllm_option": []}
    return argparse.Namespace(**{**values, **others, "vllm": sys.executable})


@pytest.mark.usefixtures("scripted")
def test_the_same_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_config("tiny", tmp_path)
    cases = ["greedy", "top-p", "choices", "bias", "ngrams"]
    speeds = measure_vllm("tiny", tmp_path, arguments(case=cases, vllm_option=["max_num_seqs=7"]))
    assert set(speeds) == {("tiny", 4, case) for case in cases[:-1]}
    assert min(speeds.values()) > 0
    assert "ngrams: vLLM has no no_repeat_ngram_size" in capfd.readouterr().out
    options, *asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    assert (options["max_num_seqs"], options["enable_prefix_caching"]) == (7, False)
    # What warms up, then what counts.
    assert [request[2]["max_tokens"] for request in asked] == [8, 5] * 4
    counted = dict(zip(cases, asked[1::2], strict=False))
    assert [request[:2] for request in counted.values()] == [[4, 6], [4, 6], [1, 6], [4, 6]]
    assert counted["greedy"][2]["temperature"] == 0
    assert counted["top-p"][2]["top_p"] == 0.9
    assert counted["choices"][2]["n"] == 4
    assert counted["bias"][2]["logit_bias"]["300"] == 0.5


@pytest.mark.usefixtures("scripted")
def test_what_came_before_a_failure_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_config("tiny", tmp_path)
    speeds = measure_vllm("tiny", tmp_path, arguments(batch=[4, 13]))
    assert set(speeds) == {("tiny", 4, "greedy")}
    assert "tiny: vLLM ended with exit status 1" in capfd.readouterr().err


def test_a_row_shows_both_and_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    ours = {("tiny", 1, "greedy"): 3000.0, ("tiny", 64, "ngrams"): 10.0}
    print_table(ours, {("tiny", 1, "greedy"): 2000.0})
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "| tiny | 1 | greedy | 3,000 | 2,000 | 1.50 |",
        "| tiny | 64 | ngrams | 10 | – | – |",
    ]
