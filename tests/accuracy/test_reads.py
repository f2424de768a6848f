from __future__ import annotations

import pytest

from kvverify.accuracy.reads import stated
from kvverify.events_accuracy import CacheReadStated, SampleAnswered
from kvverify.live.engine import EngineInfo


def of_prompts(tokens: int, cached: int, *, chunk: int | None, in_flight: int) -> CacheReadStated:
    answers = [
        SampleAnswered(
            task="t",
            length=0,
            index=n,
            key=str(n),
            cluster="",
            prompt_tokens=tokens,
            cached_tokens=cached,
            output_tokens=4,
        )
        for n in range(3)
    ]
    options = {} if chunk is None else {"max_num_batched_tokens": chunk}
    return stated("a", answers, [EngineInfo("vllm", "m", options=options)], in_flight=in_flight)


def test_tokens_are_of_decode_of_a_hit_of_a_later_chunk_or_raw() -> None:
    told = of_prompts(10_000, 1_000, chunk=8_192, in_flight=1)
    assert (told.decode_steps, told.hit_tokens, told.continued_tokens) == (9, 3_000, 3 * 808)
    assert told.raw_tokens == 30_000 - 3_000 - 3 * 808
    assert told.evidence.startswith("read packed: decode, prefix hit, continuation; ")


@pytest.mark.parametrize(("in_flight", "cut"), [(4, False), (5, True)])
def test_prompts_that_no_step_takes_together_may_be_computed_in_parts(in_flight: int, cut: bool) -> None:
    """turboquant_4bit_nc on an H200: 65 points with 256 prompts of 2k in flight, 76 with 3, and 0 tokens «continued» in both."""
    told = of_prompts(2_048, 2_047, chunk=8_192, in_flight=in_flight)
    assert told.continued_tokens == 0
    assert ("some may have been computed in parts, which is not counted" in told.evidence) is cut


def test_a_server_that_tells_no_chunk() -> None:
    told = of_prompts(2_048, 0, chunk=None, in_flight=256)
    assert told.continued_tokens == -1
    assert "the engine does not tell its chunk" in told.evidence
