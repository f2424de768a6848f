"""One arm from its options: find the servers, draw the samples, ask those without an answer, state what was read from the cache.

Samples and their order depend on suite, seed and tokenizer alone, so two arms are asked the very same ones. An answer is in the
event log before the next sample is asked; a resumed run asks what has none, of servers that must be as they were.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvverify.accuracy.arm_identity import of_arm
from kvverify.accuracy.ask import Asker, Manner, Question, counter, questions_of
from kvverify.accuracy.dispatch import CHUNK, Dispatch, Lane, Queue
from kvverify.accuracy.draw import Draw, Drawn
from kvverify.accuracy.endpoints import PROBE, Endpoint, different, open_all, probe, refuse_long
from kvverify.accuracy.judging import judge_all, judge_of, waits
from kvverify.accuracy.lanes import Direct
from kvverify.accuracy.lm_eval import raw_kv
from kvverify.accuracy.options import LOWER, RAW_KV, AccuracyOptions
from kvverify.accuracy.reads import stated
from kvverify.accuracy.source import SourceContext, Tokenizer
from kvverify.accuracy.suite import Suite, load_suite
from kvverify.accuracy.template import Template, template_named
from kvverify.accuracy.tokens import BYTES, FILE, load_tokenizer
from kvverify.accuracy.waves import Waves, arm_name, gated
from kvverify.errors import KvverifyError, UsageError
from kvverify.events import Event, ProblemMet
from kvverify.events_accuracy import ArmStarted, SampleAnswered, SampleLeftOut
from kvverify.live.engine import Evidence
from kvverify.tierdiff.connect import KNOW_SALTS, emit_engine

LAB = "lab-tiny"


def accuracy_run(
    options: AccuracyOptions, seed: int, emit: Callable[[Event], None], earlier: Iterable[Event] = ()
) -> None:
    """Run one arm and emit what happens; ``earlier`` are the events of the run that is resumed.

    What is wrong with servers, corpora or samples is a :class:`ProblemMet`; a failing request is one in its answer.
    """
    try:
        asyncio.run(_Run(options, seed, emit, list(earlier)).run())
    except KvverifyError as problem:
        emit(ProblemMet(where=", ".join(options.urls), problem=str(problem)))


def suite_of(options: AccuracyOptions) -> Suite:
    """Return the suite with the user's changes.

    Raises:
        UsageError: no such suite, or changes that it does not allow.
    """
    return load_suite(options.suite).reduced(
        samples=options.samples, lengths=options.lengths, tasks=options.tasks, template=options.template
    )


@dataclass(slots=True)
class _Run:
    options: AccuracyOptions
    seed: int
    emit: Callable[[Event], None]
    earlier: list[Event]
    answers: dict[str, SampleAnswered] = field(default_factory=dict)  # by key, the last one
    left_out: list[SampleLeftOut] = field(
        default_factory=list
    )  # found in the thread that makes samples, not emitted yet

    async def run(self) -> None:
        options, suite = self.options, suite_of(self.options)
        self.answers = {e.key: e for e in self.earlier if isinstance(e, SampleAnswered)}
        async with AsyncExitStack() as stack:
            endpoints = await open_all(options, secrets.randbits(40), self.emit, stack)
            infos = [endpoint.server.info for endpoint in endpoints]
            salted = not options.share and all(info.engine.startswith(KNOW_SALTS) for info in infos)
            self._refuse(endpoints, salted=salted)
            where = options.tokenizer or await _own_tokenizer(endpoints[0])
            tokenizer = await asyncio.to_thread(load_tokenizer, where)
            template = template_named(suite.template, _folder(where), tokenizer)
            refuse_long(endpoints, (length for task in suite.tasks for length in task.lengths))
            for endpoint in endpoints:
                emit_engine(endpoint.server, [f"endpoint {endpoint.number}: {endpoint.url}", f"tokenizer {where}"])
                await probe(endpoint, len(tokenizer.ids(PROBE, start=True)))
            draw = Draw(suite, self._context(tokenizer, template))
            drawn = await asyncio.to_thread(draw.drawn)
            raw_kv.refuse_mixed(options, drawn.rules, template)
            judge = await judge_of(options, drawn.rules, stack)
            server = endpoints[0].identity
            facts = await asyncio.to_thread(draw.facts) | (judge.identity() if judge else {})
            identity = of_arm(
                server,
                suite,
                options,
                seed=self.seed,
                template=template,
                tokenizer=tokenizer.identity,
                salted=salted,
                facts=facts,
            )
            self._start(suite, drawn, identity, [raw_kv.NOTE] if options.control == RAW_KV else [])
            questions = self._questions(draw, drawn, template, tokenizer, min(_contexts(endpoints), default=None))

            async def judged() -> None:
                if judge is not None:
                    await judge_all(judge, draw.samples(), self.answers, self._tell, self.emit)

            await self._ask_all(endpoints, questions, suite, tokenizer, judged, salted=salted)

    def _refuse(self, endpoints: Sequence[Endpoint], *, salted: bool) -> None:
        info, options = endpoints[0].server.info, self.options
        if options.waves and not salted:
            raise KvverifyError(
                f"--tier and --control need a cache_salt for each sample, so that none hits another's prefix; {info.engine} "
                "is not known to take one, or --share was given"
            )
        if options.tier in LOWER and options.tier != info.lower_tier:
            raise KvverifyError(f"--tier {options.tier}: {info.engine} serves from {info.lower_tier} when HBM is empty")

    def _context(self, tokenizer: Tokenizer, template: Template) -> SourceContext:
        options = self.options
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvverify" / "samples"
        return SourceContext(
            tokenizer=tokenizer,
            seed=self.seed,
            reserve=template.reserve(tokenizer),
            corpora=Path(options.corpora) if options.corpora else None,
            cache=Path(options.cache) if options.cache else kept,
        )

    def _start(self, suite: Suite, drawn: Drawn, identity: dict[str, Any], notes: list[str]) -> None:
        """Log what the arm is; a resumed one must be what it was.

        Raises:
            KvverifyError: other samples or another server than before.
        """
        before = next((e for e in self.earlier if isinstance(e, ArmStarted)), None)
        if before is None:
            self.emit(
                ArmStarted(
                    label=self.options.label,
                    suite=suite.name,
                    kind=suite.kind,
                    identity=identity,
                    planned=drawn.planned,
                    samples_hash=drawn.hash,
                    notes=notes,
                    margin=suite.margin,
                )
            )
            return
        if wrong := different(before.identity, identity):
            raise KvverifyError(
                f"the run to resume was another arm: {wrong}; resume it with that server, or start a new run"
            )
        if before.samples_hash != drawn.hash:
            raise KvverifyError(
                "the samples are not those that this run began with: corpora or kvverify changed; start a new run"
            )

    def _questions(
        self, draw: Draw, drawn: Drawn, template: Template, tokenizer: Tokenizer, context: int | None
    ) -> Iterator[Question]:
        """Yield what has no answer yet, and fits; called in a thread."""
        done = {key for key, e in self.answers.items() if not e.error or waits(e)}
        done |= {e.key for e in self.earlier if isinstance(e, SampleLeftOut)}
        left = (sample for sample in draw.samples() if sample.key not in done)
        while batch := list(itertools.islice(left, CHUNK)):
            for question in questions_of(batch, template, tokenizer, trust=self._trusts):
                if self._fits(question, drawn, context):
                    yield question

    @property
    def _trusts(self) -> bool:
        """Can a wrong count of a source be seen, and set right, when the server counts otherwise?"""
        return not self.options.waves and self.options.ray is None

    def _fits(self, question: Question, drawn: Drawn, context: int | None) -> bool:
        """Return whether the context holds a sample; one that it does not is noted.

        Raises:
            KvverifyError: a source that gives other samples each time it is asked.
            UsageError: a conversation in passes, whose prompts have to be known.
        """
        sample = question.sample
        if question.key not in drawn.keys:
            raise KvverifyError(f"source of {sample.task} gave another sample {sample.index} when it was asked again")
        if question.text is None and self.options.waves:
            raise UsageError(
                f"{sample.task}: conversations cannot be proved to come from a tier; leave --tier and --control out"
            )
        if context is None or question.tokens + sample.max_tokens <= context:
            return True
        reason = f"{question.tokens} tokens and {sample.max_tokens} to generate, the context is {context}"
        self.left_out.append(
            SampleLeftOut(task=sample.task, length=sample.length, index=sample.index, key=question.key, reason=reason)
        )
        return False

    async def _ask_all(
        self,
        endpoints: Sequence[Endpoint],
        questions: Iterator[Question],
        suite: Suite,
        tokenizer: Tokenizer,
        judged: Callable[[], Awaitable[None]],
        *,
        salted: bool,
    ) -> None:
        options, info = self.options, endpoints[0].server.info
        manner = Manner(
            temperature=suite.temperature,
            seed=suite.seed,
            salt=f"kvverify-{secrets.token_hex(5)}" if salted else "",
            replay=options.replay,
            block=info.block_tokens or 0,
        )
        before = [await endpoint.evidence() for endpoint in endpoints]
        try:
            if options.waves:
                number, serial = gated(self.earlier, options)
                waves = Waves(
                    endpoints[0].server, options, manner, self.emit, self._tell, counter(tokenizer), serial, number
                )
                await waves.run(questions)
            else:
                await self._spread(endpoints, questions, manner, tokenizer)
        finally:
            self._drain()
        counted = [_since(old, await endpoint.evidence()) for old, endpoint in zip(before, endpoints, strict=True)]
        await judged()  # after the counters were read: the judge may be one of these servers
        infos = [endpoint.server.info for endpoint in endpoints]
        control = arm_name(options) if options.control != "none" else ""
        control = raw_kv.NOTE if options.control == RAW_KV else control
        told = stated(
            options.label, self.answers.values(), infos, counted, control=control, in_flight=options.concurrency
        )
        self.emit(told)

    async def _spread(
        self, endpoints: Sequence[Endpoint], questions: Iterator[Question], manner: Manner, tokenizer: Tokenizer
    ) -> None:
        options = self.options

        def asker(e: Endpoint) -> Asker:
            return Asker(e.server.client, manner, e.number, e.control, recount=counter(tokenizer))

        async with AsyncExitStack() as stack:
            lanes: list[Lane]
            if options.ray is not None:
                from kvverify.accuracy.on_ray import lanes_on_ray

                lanes = await stack.enter_async_context(lanes_on_ray(options, endpoints, manner))
            elif options.control == RAW_KV:
                lanes = await raw_kv.echo_lanes(options, endpoints, tokenizer, stack)
            else:
                lanes = [Direct(e, asker(e), options.concurrency) for e in endpoints]
            width = sum(lane.width for lane in lanes)

            def lost(lane: Lane, error: str) -> None:
                gone = next(e for e in endpoints if e.url in lane.name)
                emit_engine(gone.server, [f"{lane.name} is lost, its samples go to the others: {error}"])

            await Dispatch(Queue(questions, 2 * width), self._tell, lost).run(lanes)

    def _tell(self, event: SampleAnswered) -> None:
        self._drain()
        self.answers[event.key] = event
        self.emit(event)

    def _drain(self) -> None:
        while self.left_out:
            self.emit(self.left_out.pop(0))


async def _own_tokenizer(endpoint: Endpoint) -> str:
    """Return the served model's folder where the server names one that is here; else its /tokenize, which is exact and slow."""
    if endpoint.server.info.engine == "lab" and endpoint.server.info.model == LAB:
        return BYTES
    models = await endpoint.control.get_json("/v1/models")
    root = next(
        (str(card.get("root") or "") for card in models["data"] if card.get("id") == endpoint.server.client.model), ""
    )
    return root if root and (Path(root) / FILE).is_file() else endpoint.url


def _folder(where: str) -> Path | None:
    path = Path(where).expanduser()
    return path.parent if path.is_file() else path if path.is_dir() else None


def _contexts(endpoints: Sequence[Endpoint]) -> list[int]:
    told = [endpoint.server.info.max_context for endpoint in endpoints]
    return [context for context in told if context is not None]


def _since(before: Evidence | None, after: Evidence | None) -> Evidence | None:
    return None if before is None or after is None else after.since(before)
