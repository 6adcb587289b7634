"""The metrics that the endpoint picker of the Gateway API inference extension asks of a model server.

Its model server protocol names each, for Triton with TensorRT-LLM; the page shows the arguments that say so.
"""

from __future__ import annotations

import re
from pathlib import Path

from support.metrics import scrape
from support.servers import Server

PAGE = Path(__file__).parents[2] / "deploy" / "helm" / "README.md"
#: TotalQueuedRequests, TotalRunningRequests, KVCacheUtilization, BlockSize, NumGPUBlocks.
PROTOCOL = (
    ("nv_trt_llm_request_metrics", 'request_type="waiting"'),
    ("nv_trt_llm_request_metrics", 'request_type="scheduled"'),
    ("nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="fraction"'),
    ("nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="tokens_per"'),
    ("nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="max"'),
)


def test_a_worker_serves_what_the_protocol_asks(fast: Server) -> None:
    samples = scrape(fast.metrics)
    for name, label in PROTOCOL:
        found = [
            value for sample, value in samples.items() if sample.startswith(f"{name}{{") and label in sample
        ]
        assert len(found) == 1, (name, label)


def test_the_page_names_them_as_the_picker_reads_them() -> None:
    shown = re.findall(r'"(nv_\w+)\{(\w+)=(\w+)\}"', PAGE.read_text(encoding="utf-8"))
    assert len(shown) >= 2
    for name, label, value in shown:
        assert (name, f'{label}="{value}"') in PROTOCOL
