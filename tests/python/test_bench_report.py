"""What `inflight bench requests` plans and reports, without a server."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.bench import histogram
from inflight.bench.dataset import read
from inflight.bench.page import page
from inflight.bench.report import Threshold, as_csv, summarize, table
from inflight.bench.run import Measured
from inflight.bench.workload import Planned, due, lengths, random_requests
from inflight.errors import UserMistake


def random() -> np.random.Generator:
    return np.random.default_rng(420)


def test_lengths_follow_their_distribution() -> None:
    normal = lengths(20_000, 100, 20, "normal", random())
    assert np.mean(normal) == pytest.approx(100.5, abs=1)
    assert np.std(normal) == pytest.approx(20, rel=0.05)
    exponential = lengths(20_000, 100, 0, "exponential", random())
    assert np.mean(exponential) == pytest.approx(100.5, rel=0.05)
    assert np.std(exponential) == pytest.approx(100, rel=0.05)
    assert min(lengths(1000, 2, 50, "normal", random())) == 1
    assert lengths(3, 7, 0, "normal", random()) == [7, 7, 7]
    made = random_requests([3, 5], [1, 2], 10, random())
    assert [(len(one.ids), one.output_tokens) for one in made] == [(3, 1), (5, 2)]
    assert all(0 <= id < 10 for one in made for id in one.ids)


IN_JSON = json.dumps({"input": [[10, 12, 3], [20, 20, 1]], "output": [[5, 5, 2], [7, 9, 4]]})
IN_CSV = "lengths,from,to,count\ninput,10,12,3\ninput, 20, 20, 1\n\noutput,5,5,2\noutput,7,9,4\n"


@pytest.mark.parametrize("text", [IN_JSON, IN_CSV])
def test_lengths_follow_a_histogram(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lengths"
    file.write_text(text)
    found = histogram.read(file)
    pairs = found.pairs(None, random())
    # As many as the shorter list, with each count kept.
    assert len(pairs) == 4
    assert sorted(size >= 20 for size, _ in pairs) == [False, False, False, True]
    assert all(size in (10, 11, 12, 20) and (tokens == 5 or 7 <= tokens <= 9) for size, tokens in pairs)
    many = found.pairs(20_000, random())
    inputs, outputs = (np.array(lengths) for lengths in zip(*many, strict=True))
    assert np.mean(inputs == 20) == pytest.approx(1 / 4, abs=0.02)
    assert np.mean(inputs == 12) == pytest.approx(1 / 4, abs=0.02)
    assert np.mean(outputs == 5) == pytest.approx(1 / 3, abs=0.02)
    assert set(outputs) == {5, 7, 8, 9}
    # Prompts and answers are drawn apart.
    assert abs(np.corrcoef(inputs, outputs)[0, 1]) < 0.03
    assert many == found.pairs(20_000, random())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as a histogram: Expecting property name"),
        ('{"input": []}', "the lists `input` and `output` are missing"),
        ('{"input": [], "output": [[1, 2, 3]]}', "the counts of `input` are `0` together"),
        ('{"input": [[1, 2, 0]], "output": [[1, 2, 3]]}', "the counts of `input` are `0` together"),
        ('{"input": [[2, 1, 1]], "output": []}', "is not a bucket of `input`"),
        ('{"input": [[0, 1, 1]], "output": []}', "is not a bucket of `input`"),
        ('{"input": [[1, 1, -1]], "output": []}', "is not a bucket of `input`"),
        ('{"input": [[1, 1, NaN]], "output": []}', "is not a bucket of `input`"),
        ('{"input": [[1, 1]], "output": []}', "is not a bucket of `input`"),
        ('{"input": [[1, 1, 1e9]], "output": []}', "the counts of `input` are `1e+09` together"),
        ("", "its first line is not `lengths,from,to,count`"),
        ("lengths,from,to,count\nboth,1,2,3", "`both` is neither `input` nor `output`"),
        ("lengths,from,to,count\ninput,1,2,x", "could not convert"),
        ("lengths,from,to,count\ninput,1,2", "is not a bucket of `input`"),
    ],
)
def test_what_is_no_histogram_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "lengths"
    file.write_text(text)
    with pytest.raises(UserMistake, match=re.escape(words)):
        histogram.read(file)
    with pytest.raises(UserMistake, match="No such file"):
        histogram.read(tmp_path / "absent")


def test_requests_are_due_at_their_rate() -> None:
    some = [Planned(1, (1,))] * 5000
    assert all(one.due_s is None for one in due(some, None, "constant", random()))
    constant = [one.due_s for one in due(some, 4, "constant", random())]
    assert constant[:3] == [0.0, 0.25, 0.5]
    times = [one.due_s or 0.0 for one in due(some, 4, "exponential", random())]
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert gaps.std() == pytest.approx(0.25, rel=0.1)
    recorded = [Planned(1, (1,), due_s=at) for at in (12.0, 10.0, 14.0)]
    assert [one.due_s for one in due(recorded, None, "replay", random())] == [0.0, 2.0, 4.0]
    # The pattern stays, at another pace: three requests, two gaps, 4 a second.
    assert [one.due_s for one in due(recorded, 4, "replay", random())] == [0.0, 0.25, 0.5]
    with pytest.raises(UserMistake, match="needs the time of each request"):
        due(some, 4, "replay", random())


NVIDIAS = [{"input": "A text", "instruction": "Say it again", "output": "one two three four"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(NVIDIAS), [Planned(5, text="A text Say it again")]),
        (
            json.dumps({"metadata": {}, "samples": [{"input_ids": [1, 2], "output_len": 7, "task_id": -1}]}),
            [Planned(7, (1, 2))],
        ),
        (
            '{"task_id": 1, "prompt": "Hi", "output_tokens": 4}\n\n{"input_ids": [5], "output_tokens": 2}\n',
            [Planned(4, text="Hi"), Planned(2, (5,))],
        ),
        (
            '[{"timestamp": 1500, "input_ids": [1], "output_tokens": 0}]',
            [Planned(1, (1,), due_s=1.5)],
        ),
    ],
)
def test_datasets_in_nvidias_forms(tmp_path: Path, content: str, expected: list[Planned]) -> None:
    file = tmp_path / "dataset.json"
    file.write_text(content)
    assert read(file, 100, random(), 1.3) == expected


def test_a_trace_has_lengths_and_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 27, "input_length": 6, "output_length": 52, "hash_ids": [46]}\n')
    [one] = read(file, 100, random(), 1.3)
    assert (len(one.ids), one.output_tokens, one.due_s) == (6, 52, 0.027)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no requests"),
        ("[]", "has no requests"),
        ("no json", "line 1 is not JSON"),
        ("[1]", "request 1 cannot be read: it is not an object"),
        ('[{"input_ids": [1], "output_len": 2}, {"input_ids": [1]}]', "request 2 .* `output_len` is missing"),
        ('[{"prompt": "a", "output_tokens": "many"}]', "`many` is not a number of tokens"),
        ('[{"input_length": -1, "output_length": 1}]', "`-1` is not a number of tokens"),
        ('[{"timestamp": "now", "prompt": "a", "output_tokens": 1}]', "could not convert"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "dataset.json"
    file.write_text(content)
    with pytest.raises(UserMistake, match=said):
        read(file, 100, random(), 1.3)
    with pytest.raises(UserMistake, match="cannot be read"):
        read(tmp_path / "nothing", 100, random(), 1.3)


#: A hundred requests of 1 to 100 ms, the first token in the middle.
MEASURED = [
    Measured(at, at, at + ms / 2000, at + ms / 1000, 10, 6) for ms in range(1, 101) for at in [ms * 0.01]
]


def test_figures_are_those_of_the_requests() -> None:
    late = Measured(0.0, 0.5, None, 0.6, 4, 1)
    bad = Measured(0.0, 0.0, None, 0.0, 0, 0, "<b>refused</b>")
    summary = summarize([*MEASURED, bad])
    assert (summary.requests, summary.failed, summary.first_error) == (101, 1, "<b>refused</b>")
    assert (summary.avg_input_tokens, summary.avg_output_tokens) == (10, 6)
    assert summary.latency is not None
    assert summary.latency.avg == pytest.approx(50.5)
    assert summary.latency.p50 == pytest.approx(50.5)
    assert summary.latency.p90 == pytest.approx(90.1)
    assert summary.latency.p99 == pytest.approx(99.01)
    assert summary.first_token is not None
    assert summary.first_token.max == pytest.approx(50)
    assert summary.per_token is not None
    assert summary.per_token.max == pytest.approx(10)
    assert summary.duration_s == pytest.approx(1.1)
    assert summary.output_tokens_per_s == pytest.approx(600 / 1.1)
    # Latency counts from when a request was due, however late it was sent.
    [waited] = [summarize([late])]
    assert waited.latency is not None
    assert waited.latency.p50 == pytest.approx(600)
    assert "sent late, ms" in dict(table(waited))
    assert summarize([]).latency is None
    assert as_csv([late]).splitlines()[1] == "0.000000,0.500000,,0.600000,4,1,0.600000,"


@pytest.mark.parametrize(
    ("above", "text", "broken"),
    [
        (True, "p99=99.1", None),
        (True, "p99=99", "p99 is 99.01, above 99"),
        (True, "p99=1s", None),
        (True, "avg=50ms", "avg is 50.5, above 50"),
        (True, "ttft-max=49", "ttft-max is 50, above 49"),
        (True, "itl-p50=5.5", None),
        (True, "failed=0", None),
        (False, "requests-per-s=200", "requests-per-s is 91.7431, below 200"),
        (False, "output-tokens-per-s=100", None),
    ],
)
def test_thresholds(above: bool, text: str, broken: str | None) -> None:
    assert Threshold.parse(text, is_upper=above).broken(summarize(MEASURED)) == broken


def test_what_was_not_measured_keeps_no_threshold() -> None:
    assert Threshold.parse("p99=1", is_upper=True).broken(summarize([])) == "p99 was not measured"


@pytest.mark.parametrize("text", ["p98=1", "p99", "p99=", "p99=-1", "p99=nan", "ttft=3", "=1", "p99=inf"])
def test_a_threshold_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserMistake, match="is not a threshold"):
        Threshold.parse(text, is_upper=True)


@pytest.mark.parametrize("measured", [MEASURED, MEASURED[:1], [], MEASURED * 20])
def test_the_report_is_one_page_with_curves(measured: list[Measured]) -> None:
    bad = Measured(0.0, 0.0, None, 0.0, 0, 0, "<b>refused</b>")
    made = page([*measured, bad], summarize([*measured, bad]), [("dataset", "<a>")])
    assert "<b>refused" not in made
    assert "<a>" not in made
    # It loads nothing.
    assert not re.search(r"https?:|<script|<link|@import|src=", made)
    charts = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", made)]
    assert len(charts) == (4 if measured else 1)
    for chart in charts:
        for line in chart.findall("polyline"):
            points = [tuple(map(float, one.split(","))) for one in line.attrib["points"].split()]
            assert 0 < len(points) <= 400
            assert all(0 <= x <= 640 and 0 <= y <= 280 for x, y in points)


def test_the_command_needs_no_server_for_its_mistakes(tmp_path: Path) -> None:
    from support.command import run

    def said(*arguments: Any) -> str:
        return run("bench", "requests", *map(str, arguments), code=2).err

    assert "is not a threshold" in said("--fail-above", "p98=1")
    assert "sends nothing" in said("--request-rate", "0")
    assert "at most `1` tokens" in said("--input-mean", "50", "--max-input-len", "1")
    assert "cannot be read" in said("--dataset", tmp_path / "nothing")
    assert "needs the time of each request" in said("--arrivals", "replay")
    assert "no server answers" in run("bench", "requests", "-q", "-u", "127.0.0.1:9", "-n", "3", code=1).err
