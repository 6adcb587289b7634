"""Rates and percentiles between two readings of metrics."""

from __future__ import annotations

import pytest

from inflight.cli.top import _tokens
from inflight.client.metrics import cache_use, figures, parse, quantile, rate

NAME = "inflight_gateway_time_to_first_token_seconds"


def buckets(*counts: int, model: str = "m") -> str:
    bounds = ("0.1", "0.2", "0.4", "+Inf")
    return "".join(
        f'{NAME}_bucket{{le="{bound}",model="{model}"}} {count}\n'
        for bound, count in zip(bounds, counts, strict=True)
    )


def test_a_page_is_read_with_its_labels() -> None:
    page = parse('# HELP a b\na{x="1",y="q\\"}"} 2\na{x="2"} 3e0\nb 4 1700000000\nnonsense\nc NaN?\n', 0)
    assert page.total("a") == 5
    assert page.total("a", x="1") == 2
    assert page.by("a", "x") == {"1": 2, "2": 3}
    assert page.by("a", "y") == {'q"}': 2}
    assert (page.total("b"), page.total("c")) == (4, 0)


def test_a_rate_is_of_the_time_between_and_survives_a_restart() -> None:
    assert rate(parse("n 10", 1.0), parse("n 30", 3.0), "n") == 10
    assert rate(parse("n 1000", 1.0), parse("n 6", 3.0), "n") == 3
    assert rate(parse("n 1", 1.0), parse("n 2", 1.0), "n") == 0


@pytest.mark.parametrize(
    ("before", "now", "share", "expected"),
    [
        ((0, 0, 0, 0), (10, 10, 10, 10), 0.5, 0.05),
        ((10, 10, 10, 10), (10, 20, 20, 20), 0.5, 0.15),
        ((0, 0, 0, 0), (0, 0, 0, 5), 0.99, 0.4),
        ((5, 5, 5, 5), (5, 5, 5, 5), 0.5, None),
    ],
)
def test_percentiles_are_of_what_was_counted_in_between(
    before: tuple[int, ...], now: tuple[int, ...], share: float, expected: float | None
) -> None:
    found = quantile(parse(buckets(*before), 0), parse(buckets(*now), 1), NAME, share)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_percentile_is_over_all_models() -> None:
    page = parse(buckets(10, 10, 10, 10) + buckets(0, 10, 10, 10, model="other"), 1)
    assert quantile(parse("", 0), page, NAME, 0.75) == pytest.approx(0.15)


def test_the_figures_of_a_gateway() -> None:
    before = 'inflight_gateway_requests_total{route="/v1",status="200"} 5\n'
    now = (
        'inflight_gateway_requests_total{route="/v1",status="200"} 9\n'
        'inflight_gateway_requests_total{route="/v1",status="503"} 2\n'
        "inflight_gateway_active_requests 3\n"
        'inflight_gateway_generated_tokens_total{model="m"} 100\n'
    )
    found = figures(parse(before, 0), parse(now, 2))
    assert (found.requests_per_s, found.failed_per_s, found.open_requests) == (3, 1, 3)
    assert (found.tokens_out_per_s, found.first_token_s) == (50, (None, None))


def test_polls_are_no_requests_of_clients() -> None:
    name = "inflight_gateway_requests_total"
    polled = ("/metrics", "/health/ready", "/health/live", "/health", "/ping", "/v2/health/ready")
    now = "".join(
        f'{name}{{route="{route}",status="{status}"}} 4\n' for route in polled for status in (200, 503)
    )
    found = figures(parse("", 0), parse(now, 1))
    assert (found.requests_per_s, found.failed_per_s) == (0, 0)
    now += f'{name}{{route="/v1/models",status="200"}} 2\n'
    now += f'{name}{{route="/v2/models/{{model}}/infer",status="500"}} 1\n'
    found = figures(parse("", 0), parse(now, 1))
    assert (found.requests_per_s, found.failed_per_s) == (3, 1)


def test_the_cache_of_a_worker() -> None:
    name = "nv_trt_llm_kv_cache_block_metrics"
    page = parse(f'{name}{{kv_cache_block_type="used"}} 5\n{name}{{kv_cache_block_type="fraction"}} 0.25', 0)
    assert cache_use(page) == 0.25
    assert cache_use(parse("", 0)) is None


def test_a_server_that_works_without_streams_does_not_look_like_one_that_hangs() -> None:
    told = "(answers that are not streamed count when they end)"
    idle = figures(parse("", 0), parse("", 1))
    waits = figures(parse("", 0), parse("inflight_gateway_active_requests 2", 1))
    streams = figures(
        parse("", 0),
        parse('inflight_gateway_active_requests 2\ninflight_gateway_generated_tokens_total{model="a"} 9', 1),
    )
    assert [told in _tokens(found) for found in (idle, waits, streams)] == [False, True, False]
