"""Models by their name on the Hugging Face Hub: from its cache, from a server, or from neither."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.launch.hub import is_hub_id
from inflight.launch.model import DEMO_DIRECTORY
from support.http import get
from support.hub import Hub, files_of, fill_cache, serving_hub
from support.processes import INFLIGHT, InflightProcess

NAME = "inflight/demo"
PORTS = ("--port=0", "--grpc-port=0", "--metrics-port=0")
#: Nobody listens there.
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    files = files_of(DEMO_DIRECTORY)
    unwanted = {"consolidated.safetensors": b"x", "pytorch_model.bin": b"x", "onnx/model.json": b"{}"}
    with serving_hub({NAME: files | unwanted}) as made:
        yield made


def environment(home: Path, **more: str) -> dict[str, str]:
    unset = {"HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"}
    return {
        **{name: value for name, value in os.environ.items() if name not in unset},
        "HF_HOME": str(home),
        "NO_COLOR": "1",
        **more,
    }


def refused(home: Path, model: str, **more: str) -> tuple[int, str]:
    """The exit code and the words of `inflight serve MODEL`, which does not start."""
    done = subprocess.run(
        [str(INFLIGHT), "serve", *PORTS, model],
        capture_output=True,
        text=True,
        env=environment(home, **more),
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def serves(home: Path, **more: str) -> None:
    """`inflight serve NAME` answers under that name."""
    process = InflightProcess("serve", *PORTS, NAME, environment=environment(home, **more))
    try:
        address = process.address("http")
        process.wait_until("it is ready", lambda: "Press Ctrl-C" in process.log, 60)
        assert get(address, f"/v1/models/{NAME}").status == 200
    finally:
        process.stop()


def test_a_model_is_downloaded_once_and_served_under_its_name(tmp_path: Path, hub: Hub) -> None:
    hub.asked.clear()
    serves(tmp_path, HF_ENDPOINT=hub.url)
    downloaded = {
        line.rpartition("/")[2] for line in hub.asked if line.startswith("GET") and "/resolve/" in line
    }
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= downloaded
    assert not downloaded & {"consolidated.safetensors", "pytorch_model.bin", "model.json"}
    hub.asked.clear()
    serves(tmp_path, HF_ENDPOINT=hub.url)
    assert not [line for line in hub.asked if line.startswith("GET") and "/resolve/" in line]


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": NOWHERE}])
def test_what_is_in_the_cache_needs_no_network(tmp_path: Path, offline: dict[str, str]) -> None:
    fill_cache(tmp_path, NAME, files_of(DEMO_DIRECTORY))
    serves(tmp_path, **offline)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "`HF_HUB_OFFLINE` forbids downloads"),
        ({"HF_ENDPOINT": NOWHERE}, f"{NOWHERE} cannot be reached"),
    ],
)
def test_offline_the_error_says_what_to_do(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    code, words = refused(tmp_path, NAME, **settings)
    assert code == 1
    assert f"`{NAME}` is not in the cache `{tmp_path}/hub`, and {why}" in words
    assert f"run `hf download {NAME}`" in words


def test_what_the_hub_does_not_have_is_named(tmp_path: Path, hub: Hub) -> None:
    code, words = refused(tmp_path, "inflight/other", HF_ENDPOINT=hub.url)
    assert (code, "no model `inflight/other` at" in words) == (2, True), words
    code, words = refused(tmp_path, f"{NAME}@v9", HF_ENDPOINT=hub.url)
    assert (code, f"`{NAME}` has no revision `v9`" in words) == (2, True), words


def test_a_build_takes_a_name_too(tmp_path: Path) -> None:
    fill_cache(tmp_path, NAME, files_of(DEMO_DIRECTORY))
    built = tmp_path / "built"
    done = subprocess.run(
        [str(INFLIGHT), "build", NAME, "--runtime=reference", f"--output={built}"],
        capture_output=True,
        text=True,
        env=environment(tmp_path, HF_HUB_OFFLINE="1"),
        timeout=100,
    )
    assert (done.returncode, (built / "inflight.json").is_file()) == (0, True), done


def test_a_path_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id("org/model")
    for text in ("model", "./model", "/a/b", "a/b/c", "~/b", "../b", "org/model/", ""):
        assert not is_hub_id(text)
    for text in ("org/other", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@refs/pr/1"):
        assert is_hub_id(text)
