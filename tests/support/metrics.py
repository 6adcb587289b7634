"""Reads Prometheus text: the samples of a page, and the few numbers that tests wait for."""

from __future__ import annotations

from .http import get


def scrape(address: str) -> dict[str, float]:
    """Sample with its labels, as written -> value."""
    response = get(address, "/metrics")
    assert response.status == 200, response
    samples = {}
    for line in response.body.decode().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


def total(address: str, name: str, *labels: str) -> float:
    """The sum of the samples of `name` that have all of `labels`, such as `status="200"`."""
    found = [
        value
        for sample, value in scrape(address).items()
        if sample.partition("{")[0] == name and all(label in sample for label in labels)
    ]
    return sum(found)


def active_requests(worker_metrics: str) -> float:
    """Requests in a worker's executor."""
    samples = scrape(worker_metrics)
    found = [
        value
        for sample, value in samples.items()
        if sample.startswith("nv_trt_llm_request_metrics{") and 'request_type="active"' in sample
    ]
    assert len(found) == 1, samples
    return found[0]
