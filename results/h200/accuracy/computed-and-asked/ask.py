"""Compute prompts with so many in flight, then ask them again with so many: which of the two moves the score?

    python ask.py URL TOKENIZER 256-256 256-3 3-256 > answers.ndjson

Needs kvverify with its accuracy and live extras. The prompts are the first 50 of each task of suite niah-2k; each gets a salt of its
own, so that it hits all of itself and nothing else.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import openai

from kvverify.accuracy.draw import Draw
from kvverify.accuracy.source import SourceContext
from kvverify.accuracy.suite import load_suite
from kvverify.accuracy.template import template_named
from kvverify.accuracy.tokens import load_tokenizer

SAMPLES = 50


def samples(tokenizer: str) -> list:
    suite = load_suite("niah-2k").reduced(samples=SAMPLES, lengths=(), tasks=(), template=None)
    loaded = load_tokenizer(tokenizer)
    reserve = template_named(suite.template, None, loaded).reserve(loaded)
    cache = Path(tempfile.gettempdir()) / "samples"
    return list(Draw(suite, SourceContext(tokenizer=loaded, seed=0, reserve=reserve, corpora=None, cache=cache)).samples())


async def all_of(client, model, found, salt, in_flight, *, whole):
    turns = asyncio.Semaphore(in_flight)

    async def one(number, sample):
        async with turns:
            answer = await client.completions.create(
                model=model,
                prompt=sample.prompt + sample.answer_prefix,
                max_tokens=sample.max_tokens if whole else 1,
                temperature=0,
                extra_body={"cache_salt": f"{salt} {number}"},
            )
            return answer.choices[0].text

    return await asyncio.gather(*(one(n, sample) for n, sample in enumerate(found)))


async def main(url, tokenizer, *pairs):
    found = samples(tokenizer)
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=2, timeout=300) as client:
        model = (await client.models.list()).data[0].id
        for pair in pairs:
            computed, asked = map(int, pair.split("-"))
            await all_of(client, model, found, pair, computed, whole=False)
            await asyncio.sleep(1)
            for sample, text in zip(found, await all_of(client, model, found, pair, asked, whole=True)):
                score = sum(r.lower() in text.lower() for r in sample.references) / len(sample.references)
                told = {"computed": computed, "asked": asked, "task": sample.task, "key": sample.key, "score": score, "text": text}
                print(json.dumps(told), flush=True)


asyncio.run(main(*sys.argv[1:]))
