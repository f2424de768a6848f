"""What kvverify's client costs beside the bare openai client, against a local server that answers at once.

python -m bench.live cpu URL PROMPT_TOKENS AS_IDS REQUESTS ROUNDS     CPU of a request, bare and ours, as JSON
python -m bench.live memory URL REQUESTS                             peak memory of a process that keeps so many answers
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openai

from bench import commands
from kvverify.live.client import Client
from kvverify.live.prompt import Prompt

TOKENS = 256  # of each answer, with their logprobs


@contextmanager
def stub(tokens: int) -> Iterator[str]:
    """Start the local server in a process of its own and yield its URL."""
    command = commands.python("-m", "bench.live_stub", str(tokens))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def added_cpu(url: str, prompt_tokens: int, as_ids: int, requests: int, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds of one request through the bare client and through ours: the best of alternating rounds."""
    ids = list(range(1_000, 1_000 + prompt_tokens))
    prompt = Prompt(
        ids if as_ids else " ".join(map(str, ids)), prompt_tokens
    )  # as text five characters and more a token
    bare = openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=60.0)
    best = {"bare": float("inf"), "ours": float("inf")}
    async with bare, Client(url, "m", api_key="") as client:

        async def ask_bare() -> None:
            await _bare(bare, prompt)

        async def ask_ours() -> None:
            answer = await client.complete(prompt, max_tokens=TOKENS)
            if answer.error:
                raise RuntimeError(answer.error)

        sides: dict[str, Callable[[], Awaitable[None]]] = {"bare": ask_bare, "ours": ask_ours}
        for side in sides.values():
            await side()  # connections and caches
        for _ in range(rounds):
            for name, ask in sides.items():
                start = time.process_time()
                for _ in range(requests):
                    await ask()
                best[name] = min(best[name], 1000 * (time.process_time() - start) / requests)
    return best


async def _bare(client: openai.AsyncOpenAI, prompt: Prompt) -> None:
    """Send the same request as ours and read all parts of the answer."""
    stream = await client.completions.create(
        model="m",
        prompt=prompt.body,
        max_tokens=TOKENS,
        logprobs=1,
        temperature=0.0,
        seed=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    async for _ in stream:
        pass


async def keep_answers(url: str, requests: int) -> None:
    """Send so many requests and keep their answers to the end."""
    async with Client(url, "m", api_key="") as client:
        answers = [await client.complete(f"prompt {number}", max_tokens=TOKENS) for number in range(requests)]
    if bad := [a.error for a in answers if a.error or len(a.logprobs) != TOKENS]:
        raise RuntimeError(f"{len(bad)} answers are not as the server sent them: {bad[0]}")


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def measured(mode: str, url: str, *numbers: int) -> dict[str, float]:
    """Run a measurement in a process of its own and return what it prints."""
    command = commands.python("-m", "bench.live", mode, url, *map(str, numbers))
    answer: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return answer


if __name__ == "__main__":
    mode, url, *numbers = sys.argv[1:]
    values = [int(n) for n in numbers]
    if mode == "cpu":
        print(json.dumps(asyncio.run(added_cpu(url, *values))))
    else:
        asyncio.run(keep_answers(url, *values))
        print(json.dumps({"peak": peak_bytes()}))
