"""RULER as a source of samples: sized by the served model's tokenizer, each from a seed of its own, kept by content."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvverify.accuracy.dataset import Dataset, Receipt
from kvverify.accuracy.ruler.sizing import Counts, NotAdditive, Question, Sizer, TooShort, generator
from kvverify.accuracy.ruler.tasks import TASKS, Maker, Materials, RulerTask
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.errors import UsageError, nearest

VERSION = "1"  # of the construction: another one makes other samples of the same seed
LENGTHS = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
FIRST, EVERY = 8, 50  # samples that are counted as a whole: so many first ones, and one of so many after
KEPT = 100_000_000  # characters of samples just made that are yielded as they are; later ones are written once more
SAMPLES = 500  # of a task and length, where a suite names no number


def samples(task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
    """Yield the samples of a task, length by length, by index; 0 samples mean 500.

    ``tokens`` of a sample is what its prompt and answer prefix take, and ``context.reserve``.

    Raises:
        UsageError: no such task or option, a corpus is missing or has another checksum, a length too short for the task.
    """
    kind = _task(task)
    counts = Counts(context.tokenizer)
    for length in task.lengths:
        materials = Materials(counts, length, _budget(kind, task, context, length), context.corpora, task.options)
        yield from _Batch(kind, task, context, materials).samples()


def facts(task: TaskSpec, context: SourceContext) -> dict[str, str]:
    """Return what the samples are made of: generator, tokenizer, corpora and word lists, each with its SHA-256."""
    kind = _task(task)
    odd = sorted(length for length in task.lengths if length not in LENGTHS)
    return {
        "generator": f"ruler {VERSION}",
        "tokenizer": context.tokenizer.identity,
        **kind.facts(context.corpora, task.options),
        **({"not lengths of RULER": ", ".join(map(str, odd))} if odd else {}),
    }


def _task(task: TaskSpec) -> RulerTask:
    if task.name not in TASKS:
        raise UsageError(f"RULER has no task {task.name!r}; {nearest(task.name, TASKS)}")
    kind = TASKS[task.name]
    for option in task.options:
        if option not in kind.options:
            valid = nearest(option, kind.options) if kind.options else "it takes none"
            raise UsageError(f"RULER's {task.name} has no option {option!r}; {valid}")
    if not task.lengths or min(task.lengths) <= 0:
        raise UsageError(f"RULER's {task.name} needs lengths in tokens, such as 4096; got {list(task.lengths)}")
    return kind


def _budget(kind: RulerTask, task: TaskSpec, context: SourceContext, length: int) -> int:
    budget = length - context.reserve - kind.max_tokens
    if budget <= 0:
        raise UsageError(
            f"RULER's {task.name} at {length} tokens: {kind.max_tokens} of the answer and {context.reserve} of the template "
            f"leave nothing for the prompt; take a longer length"
        )
    return budget


@dataclass(frozen=True, slots=True)
class _Batch:
    """The samples of one task and length."""

    kind: RulerTask
    task: TaskSpec
    context: SourceContext
    materials: Materials
    fresh: dict[int, Sample] = field(default_factory=dict)  # just made, by index

    def samples(self) -> Iterator[Sample]:
        try:
            maker = self.kind.maker(self.materials)
        except TooShort as error:
            raise self._too_short(error.needed) from error
        wanted = self.task.samples or SAMPLES
        if maker.many is not None and (wanted > maker.many or not self.task.samples):
            if self.task.samples:
                raise UsageError(f"RULER's {self.task.name} has {maker.many} questions, {wanted} are asked for")
            wanted = min(wanted, maker.many)
        dataset = Dataset(self.context.cache, f"ruler-{self.task.name}-{self.materials.length}", self._identity())
        receipts = dataset.load()
        if len(receipts) < wanted:
            receipts = self._receipts(maker, wanted, receipts)
            dataset.save(receipts)
        for receipt in receipts[:wanted]:
            sample = self._made(maker, receipt)
            if sample.key != receipt.key:
                dataset.note_damage(f"sample {receipt.index} is another one now")
                remade = self._receipts(maker, wanted, [])
                dataset.save(remade)
                yield from (self._made(maker, again) for again in remade[receipt.index : wanted])
                return
            yield sample

    def _identity(self) -> dict[str, str]:
        shared = facts(self.task, self.context)
        shared.pop("not lengths of RULER", None)
        numbers = {"seed": self.context.seed, "reserve": self.context.reserve, "length": self.materials.length}
        options = {f"option {k}": v for k, v in sorted(self.task.options.items())}
        return {"task": self.task.name, **shared, **{k: str(v) for k, v in {**numbers, **options}.items()}}

    def _receipts(self, maker: Maker, wanted: int, had: list[Receipt]) -> list[Receipt]:
        """Size the samples that are not yet among ``had``; all anew with whole counts where sums turn out to be wrong."""
        for exact in (False, True):
            sizer = Sizer(self.materials.counts, self.materials.budget, exact=exact)
            try:
                return [*had, *(self._receipt(maker, sizer, index) for index in range(len(had), wanted))]
            except NotAdditive:
                had = []
                self.fresh.clear()
        raise AssertionError("whole counts are never sums")

    def _receipt(self, maker: Maker, sizer: Sizer, index: int) -> Receipt:
        draft = maker.draft(self._generator(index), index)
        try:
            units, tokens = sizer.size(draft, check=index < FIRST or index % EVERY == 0)
        except TooShort as error:
            raise self._too_short(error.needed, index) from error
        receipt = Receipt(index, units, tokens + self.context.reserve, "")
        sample = self._sample(receipt, draft.write(units))
        if (index + 1) * len(sample.prompt) <= KEPT:  # samples of one task and length are of like size
            self.fresh[index] = sample
        return replace(receipt, key=sample.key)

    def _too_short(self, needed: int, index: int = 0) -> UsageError:
        return UsageError(
            f"RULER's {self.task.name} at {self.materials.length} tokens: the prompt of sample {index} takes at least {needed}, "
            f"and {self.materials.budget} are left after {self.kind.max_tokens} for the answer and {self.context.reserve} for "
            f"the template; take a longer length"
        )

    def _made(self, maker: Maker, receipt: Receipt) -> Sample:
        """Return the sample of a receipt: as it was just made, or written again."""
        if receipt.index in self.fresh:
            return self.fresh.pop(receipt.index)
        draft = maker.draft(self._generator(receipt.index), receipt.index)
        return self._sample(receipt, draft.write(receipt.units))

    def _sample(self, receipt: Receipt, question: Question) -> Sample:
        return Sample(
            task=self.task.name,
            length=self.materials.length,
            index=receipt.index,
            prompt=question.prompt,
            answer_prefix=question.answer_prefix,
            references=question.references,
            metric=self.kind.metric,
            details=question.details,
            max_tokens=self.kind.max_tokens,
            cluster=question.cluster,
            tokens=receipt.tokens,
        )

    def _generator(self, index: int) -> random.Random:
        return generator("ruler", VERSION, self.context.seed, self.task.name, self.materials.length, index)
