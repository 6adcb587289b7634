"""The engines' executor over the doubles, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtllm import doubles
from trtllm.harness import start_engines


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Any]:
    with doubles.installed():
        made = start_engines(tmp_path)
        yield made
        made.shutdown()
