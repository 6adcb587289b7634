"""The two lines of releases: what the record of each has, and what travels between workers of one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm import disaggregation, document, fields, promises, pytorch_config
from inflight.executors.tensorrt_llm.convert import Refused, context_phase, pack_context_phase
from inflight.executors.tensorrt_llm.pytorch_start import import_classes
from inflight.executors.tensorrt_llm.verify import parameters, verify
from support import double
from trtllm.harness import passed

BOTH_LINES = True


def phase(blob: bytes) -> dict[str, Any]:
    return context_phase(passed("context_phase_params", "UINT8", (len(blob),), *blob))


def test_what_1_3_removed_and_added_is_known(line: str) -> None:
    with double.installed():
        find, _, _ = import_classes(line)
        arguments = parameters(find("TorchLlmArgs"))
        assert arguments is not None
        missing = {
            option
            for option, path in pytorch_config.ARGUMENTS.items()
            if (path.partition(".")[0]) not in arguments
        }
        for name, short in pytorch_config.CLASSES.items():
            fields = None if name == "lora_config" else parameters(find(short))
            for option, path in pytorch_config.ARGUMENTS.items():
                outer, _, leaf = path.partition(".")
                if outer == name and fields is not None and leaf not in fields:
                    missing.add(option)
    assert missing == set(pytorch_config.ADDED if line == "1.2.1" else pytorch_config.REMOVED)


def test_every_request_can_be_made(line: str) -> None:
    with double.installed():
        find, _, _ = import_classes(line)
        off = verify("pytorch", line, find).off
    # Engines have all of them.
    assert set(off) == ({"priority"} if line == "1.2.1" else set())
    assert {capability for _, _, capability in promises.keywords("pytorch")} >= set(off)


def test_a_version_that_does_not_tell_a_failed_request_is_refused(line: str) -> None:
    with double.installed():
        find, _, _ = import_classes(line)
        with pytest.raises(UserMistake, match="lacks what every request needs: `RequestError`"):
            verify("pytorch", line, lambda name: None if name == "RequestError" else find(name))


def test_the_documentation_names_what_only_1_3_has(line: str) -> None:
    with double.installed():
        find, _, _ = import_classes(line)
        missing = {
            (target.owner, target.keyword)
            for field in fields.FIELDS
            if isinstance(target := field.pytorch, fields.Target)
            and target.keyword not in (parameters(find(target.owner)) or {target.keyword})
        }
    assert missing == (document.FROM_1_3 if line == "1.2.1" else set())


def test_where_the_cache_is_travels_with_a_context_phase(line: str) -> None:
    with double.installed():
        find, _, _ = import_classes(line)
        made = find("DisaggregatedParams")(request_type="context_only", ctx_request_id=7)
        if line == "1.2.1":
            assert disaggregation.further_fields(made) == {}
            assert json.loads(pack_context_phase([5], 7, b"x", None))["format"] == 1
            with pytest.raises(Refused, match="`ctx_dp_rank`, which this worker's TensorRT-LLM does not"):
                disaggregation.further_keywords({"ctx_dp_rank": 1}, find)
            return
        style = find("DisaggScheduleStyle").GENERATION_FIRST
        given = {
            "disagg_request_id": 9,
            "ctx_dp_rank": 1,
            "ctx_info_endpoint": ["tcp://10.0.0.1:5"],
            "schedule_style": style,
            "ctx_usage": {"prompt_tokens": 3},
        }
        made = find("DisaggregatedParams")(request_type="context_only", **given)
        blob = pack_context_phase([5], 7, b"x", None, disaggregation.further_fields(made))
        assert disaggregation.further_keywords(phase(blob)["more"], find) == given
        with pytest.raises(Refused, match="unknown `schedule_style` `later`"):
            disaggregation.further_keywords({"schedule_style": "later"}, find)
        with pytest.raises(Refused, match="`handles`"):
            disaggregation.further_keywords({"handles": 1}, find)


@pytest.mark.parametrize("more", [[], 5, "x"])
def test_a_blob_that_is_damaged_is_refused(more: Any) -> None:
    held = json.loads(pack_context_phase([5], 7, b"x", None, {"ctx_dp_rank": 1}))
    held["more"] = more
    with pytest.raises(Refused, match="further fields"):
        phase(json.dumps(held).encode())
