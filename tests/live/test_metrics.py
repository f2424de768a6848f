from __future__ import annotations

import asyncio
import time

import pytest

pytest.importorskip("prometheus_client", reason="the live extra is not installed")
pytest.importorskip("httpx2", reason="the live extra is not installed")

from kvverify.live.control import ServerProblem
from kvverify.live.metrics import parse, settled

SCRAPE = """\
# HELP vllm:prefix_cache_hits_total Prefix cache hits
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 960.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 32.0
# TYPE vllm:prompt_tokens_cached_by_source counter
vllm:prompt_tokens_cached_by_source_total{source="device"} 0.0
vllm:prompt_tokens_cached_by_source_total{source="host"} 64.0
# TYPE vllm:kv_computed histogram
vllm:kv_computed_bucket{le="+Inf"} 3.0
vllm:kv_computed_count 3.0
vllm:kv_computed_sum 96.0
# TYPE vllm:odd gauge
vllm:odd NaN
"""


def test_totals_are_sums_over_matching_labels() -> None:
    metrics = parse(SCRAPE)
    assert metrics.total("vllm:prefix_cache_hits") == 992
    assert metrics.total("vllm:prefix_cache_hits_total") == 992
    assert metrics.total("vllm:prefix_cache_hits", engine="1", model_name="m") == 32
    assert metrics.total("vllm:prompt_tokens_cached_by_source", source="device") == 0
    assert metrics.total("vllm:kv_computed_sum") == 96


def test_what_is_not_there_or_not_a_number_is_none_and_never_zero() -> None:
    metrics = parse(SCRAPE)
    assert metrics.total("vllm:absent") is None
    assert metrics.total("vllm:prefix_cache_hits", engine="7") is None
    assert metrics.total("vllm:odd") is None
    assert parse("").total("vllm:odd") is None


@pytest.mark.parametrize("text", ["<html><body>no</body></html>", '{"a": 1}', "x{y=} z\n", "only words here\n"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ServerProblem, match="expected Prometheus' text format"):
        parse(text)


def test_the_first_reading_that_comes_twice_in_a_row_is_taken() -> None:
    readings = iter([1, 2, 1, 3, 3, 4])

    async def read() -> int:
        return next(readings)

    assert asyncio.run(settled(read, 0.001, 5)) == 3
    assert next(readings) == 4


def test_counters_that_never_rest_are_a_problem() -> None:
    async def read() -> float:
        return time.perf_counter()

    with pytest.raises(ServerProblem, match=r"did not come to rest within 0\.05 s"):
        asyncio.run(settled(read, 0.001, 0.05))
