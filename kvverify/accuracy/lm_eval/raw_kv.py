"""The raw-KV control of a run: likelihood tasks and nothing else, under a name that no reader takes for a measured cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack

from kvverify.accuracy.dispatch import Lane
from kvverify.accuracy.endpoints import Endpoint
from kvverify.accuracy.lanes import Direct
from kvverify.accuracy.lm_eval.echo import EchoAsker
from kvverify.accuracy.lm_eval.likelihood import RULE
from kvverify.accuracy.options import RAW_KV, AccuracyOptions
from kvverify.accuracy.source import Tokenizer
from kvverify.accuracy.template import NONE, Template
from kvverify.errors import UsageError
from kvverify.live.control import Control

NOTE = "raw KV: asked with echo, which bypasses every cache, so that scores say nothing of it"


def refuse_mixed(options: AccuracyOptions, rules: Collection[str], template: Template) -> None:
    """Refuse what would mix samples that read no cache with others; ``rules`` are those of all samples.

    Raises:
        UsageError: likelihood tasks without the control, or the control with anything else.
    """
    wanted = options.control == RAW_KV
    if wanted and (set(rules) != {RULE} or template.name != NONE):
        raise UsageError(
            "--control raw-kv: expected lm-eval tasks that are scored by likelihood, those alone and with --template none; "
            f"got rules {', '.join(sorted(rules))} and template {template.name}"
        )
    if not wanted and RULE in rules:
        raise UsageError(
            "the suite has lm-eval tasks that are scored by likelihood; that needs `echo`, which bypasses every cache and says "
            "nothing of it: ask them in a run of their own, with --control raw-kv"
        )


async def echo_lanes(
    options: AccuracyOptions, endpoints: Sequence[Endpoint], tokenizer: Tokenizer, stack: AsyncExitStack
) -> list[Lane]:
    """Return a way to each endpoint that asks for likelihoods; ``stack`` closes the connections."""
    lanes: list[Lane] = []
    for endpoint in endpoints:
        control = await stack.enter_async_context(Control(endpoint.url, timeout_s=options.timeout_s))
        asker = EchoAsker(control, endpoint.server.client.model, tokenizer, endpoint.number)
        lanes.append(Direct(endpoint, asker, options.concurrency))
    return lanes
