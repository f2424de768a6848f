"""Source "lm-eval": lm-eval builds a task's questions, which kvverify asks; its answers are scored by the task's own code."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvverify.accuracy.lm_eval import likelihood
from kvverify.accuracy.lm_eval.package import lm_eval_module, lm_eval_version
from kvverify.accuracy.lm_eval.tasks import GENERATES, LoadedTask, load
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.errors import UsageError

BATCH = 256  # prompts whose tokens are counted at a time
KNOWN = {
    "until",
    "max_gen_toks",
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
}  # the last four say nothing at temperature 0


def samples(task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
    """Yield the first ``task.samples`` documents (0: all) as samples, in lm-eval's order, with the prompts it would send.

    Prompts are never cut: :attr:`Sample.tokens` counts them whole. Those of tasks that are scored by likelihood have another
    rule, and the runner asks them in runs of their own.

    Raises:
        UsageError: no such task, no such option, or a task that kvverify cannot pair or ask (see :mod:`.tasks`).
        EnvironmentProblem: lm-eval or the task's data are not on this machine.
    """
    loaded = load(task, context.corpora)
    number = number_of(loaded, task)
    if loaded.task.OUTPUT_TYPE != GENERATES:
        yield from _likelihood(loaded, number, context)
        return
    made = _made(loaded, number)
    while batch := list(itertools.islice(made, BATCH)):
        counts = context.tokenizer.counts([sample.prompt + sample.answer_prefix for sample in batch])
        for sample, count in zip(batch, counts, strict=True):
            yield replace(sample, tokens=count + context.reserve)


def facts(task: TaskSpec, context: SourceContext) -> dict[str, str]:
    """Return lm-eval's version and, for this task, its version, the hashes of its settings and documents, and how it is asked."""
    loaded = load(task, context.corpora)
    config = loaded.task.config
    shots = config.num_fewshot or 0
    return {
        "version": lm_eval_version(),
        "task version": str(loaded.task.VERSION),
        "settings": loaded.identity,
        "documents": f"{len(loaded.docs)} sha256 {loaded.docs_hash}",
        "shots": f"{shots}, seed {loaded.options.fewshot_seed}" if shots else "0",
        "score": f"{loaded.metric},{loaded.filter}",
        **(
            _asked(loaded)
            if loaded.task.OUTPUT_TYPE == GENERATES
            else {"asked": f"by likelihood ({loaded.task.OUTPUT_TYPE})"}
        ),
        **{f"{split} data": f"sha256 {file.sha256}" for split, file in loaded.files.items()},
    }


def number_of(loaded: LoadedTask, task: TaskSpec) -> int:
    """Return how many documents are asked.

    Raises:
        UsageError: more than there are.
    """
    if task.samples > len(loaded.docs):
        raise UsageError(f"task {task.name}: {task.samples} samples asked for, its data hold {len(loaded.docs)}")
    return task.samples or len(loaded.docs)


def contexts(loaded: LoadedTask, number: int) -> Iterator[tuple[dict[str, Any], Any, str]]:
    """Yield the first documents, each with its whole prompt and the end of that which is the beginning of the answer.

    The prompt is a text, or a list of texts where a task puts its choices into the question. Few-shot examples come from one
    generator for all documents, as in lm-eval: they are taken in order, from the first on.
    """
    draw = random.Random(loaded.options.fewshot_seed)
    for doc in loaded.docs[:number]:
        if (sampler := getattr(loaded.task, "sampler", None)) is not None:
            sampler.rnd = draw  # ours alone: the task may be iterated twice at a time
        prefix = loaded.task.doc_to_prefix(doc) or ""
        shots = loaded.task.config.num_fewshot or 0
        yield doc, loaded.task.fewshot_context(doc, num_fewshot=shots, gen_prefix=prefix or None), prefix


def _made(loaded: LoadedTask, number: int) -> Iterator[Sample]:
    until, limit = _generation(loaded)
    numbers = _Doubles(loaded)
    for index, (doc, text, prefix) in enumerate(contexts(loaded, number)):
        prompt: str = text.removesuffix(prefix)
        yield Sample(
            task=loaded.name,
            length=0,
            index=index,
            prompt=prompt,
            answer_prefix=prefix,
            metric="lm-eval",
            details=numbers.details(prompt, doc),
            max_tokens=limit,
            stop=until,
            cluster=_cluster(loaded, doc),
        )


def _likelihood(loaded: LoadedTask, number: int, context: SourceContext) -> Iterator[Sample]:
    numbers = _Doubles(loaded)
    for index, (doc, text, _) in enumerate(contexts(loaded, number)):
        choices = likelihood.pairs(loaded, doc, text)
        prompt = choices[0][0]
        tokens = len(context.tokenizer.ids(prompt, start=True))
        yield Sample(
            task=loaded.name,
            length=0,
            index=index,
            prompt=prompt,
            metric=likelihood.RULE,
            details={**numbers.details(prompt, doc), "choices": [list(choice) for choice in choices]},
            max_tokens=max(1, likelihood.longest(choices, context.tokenizer) - tokens),
            cluster=_cluster(loaded, doc),
            tokens=tokens,
        )


class _Doubles:
    """What a sample's key is made of beside its prompt. Data sets hold doubles, and each is a sample with a key of its own."""

    def __init__(self, loaded: LoadedTask) -> None:
        self._settings = loaded.identity
        self._seen: Counter[str] = Counter()

    def details(self, prompt: str, doc: dict[str, Any]) -> dict[str, Any]:
        question = json.dumps([prompt, doc], sort_keys=True)
        again = self._seen[question]
        self._seen[question] += 1
        return {"settings": self._settings, "doc": doc, **({"again": again} if again else {})}


def _cluster(loaded: LoadedTask, doc: dict[str, Any]) -> str:
    if not (field := loaded.options.cluster):
        return ""
    if field not in doc:
        raise UsageError(
            f"task {loaded.name}: option cluster: no field {field!r} in its documents; valid: {', '.join(doc)}"
        )
    return f"{field}={json.dumps(doc[field], sort_keys=True, ensure_ascii=False)}"


def _generation(loaded: LoadedTask) -> tuple[tuple[str, ...], int]:
    """Return the strings that end an answer, and the most tokens it may have."""
    wanted = dict(loaded.task.config.generation_kwargs or {})
    if unknown := sorted(set(wanted) - KNOWN):
        raise UsageError(
            f"task {loaded.name}: generation_kwargs: {', '.join(unknown)} cannot be kept; known: {', '.join(sorted(KNOWN))}"
        )
    until = wanted.get("until") or []
    default = lm_eval_module("lm_eval.defaults").DEFAULT_MAX_GEN_TOKS
    limit = loaded.options.max_tokens or wanted.get("max_gen_toks") or default
    return tuple([until] if isinstance(until, str) else until), int(limit)


def _asked(loaded: LoadedTask) -> dict[str, str]:
    until, limit = _generation(loaded)
    default = "" if _says_limit(loaded) else " (lm-eval’s default: the task names none)"
    return {"until": json.dumps(until), "max_tokens": f"{limit}{default}"}


def _says_limit(loaded: LoadedTask) -> bool:
    return bool(loaded.options.max_tokens or (loaded.task.config.generation_kwargs or {}).get("max_gen_toks"))
