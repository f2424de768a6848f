"""Tasks scored by the likelihood of given texts (MMLU, HellaSwag): a raw-KV control, asked with ``echo``, which bypasses every cache.

What such a score says of a quantised cache: nothing. It shows what a format leaves alone, and is kept apart from every other suite.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvverify.accuracy.lm_eval.rule import score_all
from kvverify.accuracy.lm_eval.tasks import LoadedTask, loaded_by_identity
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score
from kvverify.accuracy.source import Tokenizer
from kvverify.errors import UsageError

RULE = "lm-eval-likelihood"
ROLLING = "loglikelihood_rolling"

Likelihood = tuple[float, bool]  # the sum of logprobs, and whether greedy decoding would have written the text


def pairs(loaded: LoadedTask, doc: dict[str, Any], text: Any) -> list[tuple[str, str]]:
    """Return the contexts and continuations of a document, as lm-eval asks them.

    Raises:
        UsageError: the task has none, for it scores a whole text.
    """
    if loaded.task.OUTPUT_TYPE == ROLLING:
        raise UsageError(f"task {loaded.name} scores whole texts by their perplexity; expected answers to choose from")
    made = loaded.task.construct_requests(doc=doc, ctx=text, metadata=(loaded.name, 0, 1))
    requests = made if isinstance(made, list) else [made]
    return [(str(request.args[0]), str(request.args[1])) for request in requests]


def encoded(context: str, continuation: str, tokenizer: Tokenizer) -> tuple[list[int], int]:
    """Return the token ids of both texts together, and how many of them belong to the context.

    As lm-eval, blanks at the end of the context belong to the continuation, and the border is where the context alone ends. Unlike
    its API client, the prompt begins with what the model has at the start of a prompt.
    """
    return tokenizer.ids(context + continuation, start=True), len(tokenizer.ids(context.rstrip(), start=True))


def longest(choices: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> int:
    """Return the tokens of the longest prompt, and one that is generated."""
    return max(len(encoded(*choice, tokenizer)[0]) for choice in choices) + 1


def text_of(found: Sequence[Likelihood]) -> str:
    """Return likelihoods as the text of an answer, which events keep and :func:`score` reads."""
    return json.dumps([[value, greedy] for value, greedy in found])


def score(sample: Sample, text: str) -> Score:
    """Score the likelihoods in ``text`` by the task's own metric.

    Raises:
        UsageError: the task is not loaded in this process, or its code fails.
    """
    loaded = loaded_by_identity(sample.details["settings"], sample.task)
    found = [(float(value), bool(greedy)) for value, greedy in json.loads(text)]
    results = score_all(loaded, sample, found)
    decides = f"{loaded.metric},{loaded.filter}"
    aspects = {key: value for key, (value, _) in results.items() if key != decides and 0.0 <= value <= 1.0}
    return Score(results[decides][0], loaded.binary, aspects=aspects)
