"""Fixtures for tests with real processes: one server on the model, simulated workers with gateways."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai
import pytest

from support.processes import InflightProcess
from support.servers import MODEL, MODEL_ARGUMENTS, MODEL_NAME, Server, Start, serve_simulated, wait_ready

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests that press
# Ctrl-C would then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _starter() -> Iterator[Start]:
    started: list[InflightProcess] = []

    def start(
        *arguments: str, environment: dict[str, str] | None = None, launcher: Sequence[str] = ()
    ) -> InflightProcess:
        process = InflightProcess(*arguments, environment=environment, launcher=launcher)
        started.append(process)
        return process

    try:
        yield start
    finally:
        # Gateways were started after their workers and stop first.
        for process in reversed(started):
            try:
                process.stop()
            finally:
                # pytest shows it with the test that failed.
                print(process.log)


@pytest.fixture
def start() -> Iterator[Start]:
    """Processes of one test."""
    yield from _starter()


@pytest.fixture(scope="session")
def start_for_session() -> Iterator[Start]:
    """Processes that tests share."""
    yield from _starter()


@pytest.fixture(scope="session")
def server(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """`inflight serve` on the model, with the reference executor; it keeps files."""
    process = start_for_session(
        "serve",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        f"--data-dir={tmp_path_factory.mktemp('data')}",
    )
    http = wait_ready(process)
    return Server(http, process.address("grpc"), process.address("metrics"), MODEL_NAME)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The OpenAI client on `server`."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def fast(start_for_session: Start) -> Server:
    """Simulated, with steps that cost nothing."""
    return serve_simulated(start_for_session)


@pytest.fixture(scope="session")
def paced(start_for_session: Start) -> Server:
    """Simulated, a token every 20 ms: slow enough to meet a request in the middle."""
    return serve_simulated(start_for_session, "--step-us=20000")


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """Where the model's files are."""
    if MODEL is not None:
        return Path(MODEL)
    from inflight.launch.model import find_model

    return find_model(None, None, weights=False).directory


def pytest_configure(config: pytest.Config) -> None:
    """`migrates` marks the tests that docs/MIGRATION.md is made of; `test_migration.py` reads them."""
    config.addinivalue_line("markers", "browser: starts Chromium; `-m 'not browser'` leaves these out")
    config.addinivalue_line(
        "markers", "migrates(guide, command, ours): proves a row of docs/MIGRATION.md; all three are literals"
    )
