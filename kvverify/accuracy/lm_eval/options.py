"""What a suite may say of an lm-eval task: the ``options`` of its :class:`~kvverify.accuracy.source.TaskSpec`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvverify.accuracy.source import TaskSpec
from kvverify.errors import UsageError

LM_EVAL_FEWSHOT_SEED = 1234  # lm-eval's own default, so that prompts are those that it would send


class LmEvalOptions(BaseModel):
    """Options of one lm-eval task.

    ``data`` maps the task's splits to files (.jsonl, .json, .parquet, .csv) that take the place of its data set, relative to the
    folder of corpora; ``sha256`` maps them to checksums. ``include`` is a folder of the user's own task files (else lm_eval/ in
    the folder of corpora). ``shots``
    and ``fewshot_seed`` are lm-eval's. ``score`` names the metric and filter that decide, as lm-eval prints them
    ("exact_match,flexible-extract"); else the first of the task's. ``binary``: that metric is 0 or 1 by rule. ``max_tokens``
    takes the place of the task's max_gen_toks. ``cluster`` names the field of a document that documents share.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: dict[str, str] = Field(default_factory=dict)
    sha256: dict[str, str] = Field(default_factory=dict)
    include: str = ""
    shots: int | None = Field(default=None, ge=0)
    fewshot_seed: int = LM_EVAL_FEWSHOT_SEED
    score: str = ""
    binary: bool | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    cluster: str = ""


def options_of(spec: TaskSpec) -> LmEvalOptions:
    """Return the options of ``spec``.

    Raises:
        UsageError: an option is unknown or of the wrong type, or lengths are asked for.
    """
    if spec.lengths != (0,):
        raise UsageError(f"task {spec.name}: lm-eval tasks have no size classes, got lengths {list(spec.lengths)}")
    try:
        return LmEvalOptions.model_validate(dict(spec.options))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        valid = ", ".join(sorted(LmEvalOptions.model_fields))
        raise UsageError(f"task {spec.name}: option {place}: {problem['msg']}; valid options: {valid}") from None
