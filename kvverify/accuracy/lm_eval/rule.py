"""Rule "lm-eval": an answer goes through the task's own filters and metrics, as lm-eval itself would score it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from kvverify.accuracy.lm_eval.package import lm_eval_module
from kvverify.accuracy.lm_eval.tasks import LoadedTask, loaded_by_identity
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score
from kvverify.errors import UsageError

NOTHING_FOUND = "[invalid]"  # what lm-eval's filters give where an answer has not the form they look for


def score(sample: Sample, text: str) -> Score:
    """Score ``text``, cut at the first of the sample's stop strings: a server that ignores them must not change scores.

    Raises:
        UsageError: the task is not loaded, or its code fails on the answer or gives no number from 0 to 1.
    """
    loaded = loaded_by_identity(sample.details["settings"], sample.task)
    results = score_all(loaded, sample, [_until(text, sample.stop)])
    decides = f"{loaded.metric},{loaded.filter}"
    value = results[decides][0]
    if not 0.0 <= value <= 1.0 or (loaded.binary and value not in (0.0, 1.0)):
        expected = "0 or 1" if loaded.binary else "a number from 0 to 1"
        raise UsageError(f"task {sample.task}: {decides} of sample {sample.index}: expected {expected}, got {value:g}")
    found = results[decides][1]
    error = f"no answer of the form that filter {loaded.filter} looks for" if found == NOTHING_FOUND else ""
    aspects = {key: share for key, (share, _) in results.items() if key != decides and 0.0 <= share <= 1.0}
    return Score(value, loaded.binary, error, aspects)


def score_all(loaded: LoadedTask, sample: Sample, answers: Sequence[Any]) -> dict[str, tuple[float, Any]]:
    """Return for each "metric,filter" that gives a number its value, and what the filter took for the first answer.

    ``answers`` has one to each request of the sample: a text, or for each choice its likelihood.
    """
    doc = copy.deepcopy(dict(sample.details["doc"]))
    instance = lm_eval_module("lm_eval.api.instance").Instance
    asked = (sample.task, sample.index, 1)
    requests = [
        instance(
            request_type=loaded.task.OUTPUT_TYPE,
            doc=doc,
            arguments=(sample.prompt,),
            idx=n,
            metadata=asked,
            resps=[answer],
        )
        for n, answer in enumerate(answers)
    ]
    results: dict[str, tuple[float, Any]] = {}
    try:
        for ensemble in loaded.task._filters:
            ensemble.apply(requests)
            found = [request.filtered_resps[ensemble.name] for request in requests]
            for metric, value in loaded.task.process_results(doc, found).items():
                if isinstance(value, (bool, int, float)) or hasattr(value, "item"):  # numpy's numbers have item()
                    results[f"{metric},{ensemble.name}"] = (float(value), found[0])
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as problem:  # what code of tasks raises
        raise UsageError(
            f"task {sample.task}: its code failed on the answer to sample {sample.index}: {type(problem).__name__}: {problem}"
        ) from problem
    decides = f"{loaded.metric},{loaded.filter}"
    if math.isnan(results.get(decides, (math.nan, None))[0]):
        raise UsageError(f"task {sample.task}: {decides} of sample {sample.index}: expected a number, got none")
    return results


def _until(text: str, stop: tuple[str, ...]) -> str:
    ends = [place for word in stop if word and (place := text.find(word)) >= 0]
    return text[: min(ends)] if ends else text
