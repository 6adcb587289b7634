"""The messages of `inflight.v1.CacheState`, compiled as another router would do it."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from grpc_tools import protoc

PROTO = Path(__file__).parents[2] / "proto"


@cache
def cache_messages() -> Any:
    """The module with `CacheUpdate` and the others."""
    with tempfile.TemporaryDirectory() as out:
        arguments = ["", f"--proto_path={PROTO}", f"--python_out={out}", "inflight/v1/cache_state.proto"]
        assert protoc.main(arguments) == 0
        # Not by the name of its package, which is ours.
        path = Path(out) / "inflight" / "v1" / "cache_state_pb2.py"
        spec = importlib.util.spec_from_file_location("cache_state_pb2", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
