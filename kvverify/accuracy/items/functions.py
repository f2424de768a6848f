"""Small Python functions to be completed, with parameters drawn for each question and cases computed by the solution itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from kvverify.accuracy.checkers.code import check_permission
from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.sample import Sample

_MAX_TOKENS = 320
_STOP = ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\n#", "\n```")
_CASES = 8
Arguments = Callable[[Random], list[Any]]
Kind = tuple[
    str, str, str, str, Arguments
]  # name, parameters, what it does, body, arguments of a case; {a} and {b} are drawn


def _numbers(random: Random) -> list[int]:
    return [random.randint(-30, 30) for _ in range(random.randint(0, 9))]


def _word(random: Random) -> str:
    return "".join(random.choice("abcdefgxyz ") for _ in range(random.randint(0, 12)))


_KINDS: tuple[Kind, ...] = (
    (
        "sum_above", "values", "Return the sum of those values that are greater than {a} and not divisible by {b}.",
        "    return sum(v for v in values if v > {a} and v % {b} != 0)\n",
        lambda random: [_numbers(random)],
    ),
    (
        "rotate", "values", "Return a list with the values moved {a} places to the right, the last ones coming to the front.",
        "    if not values:\n        return []\n    k = {a} % len(values)\n    return values[-k:] + values[:-k] if k else list(values)\n",
        lambda random: [_numbers(random)],
    ),
    (
        "shift_letters", "text", "Return text with every letter a-z moved {a} places on in the alphabet, z followed by a; leave the rest.",
        "    return ''.join(chr((ord(c) - 97 + {a}) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)\n",
        lambda random: [_word(random)],
    ),
    (
        "digit_sum", "number", "Return the sum of the digits of a number >= 0 written in base {b}.",
        "    total = 0\n    while number:\n        total += number % {b}\n        number //= {b}\n    return total\n",
        lambda random: [random.randrange(10 ** random.randint(1, 9))],
    ),
    (
        "recurrence", "n", "Return f(n), where f(0) = 0, f(1) = 1 and f(n) = {a} * f(n - 1) + {b} * f(n - 2).",
        "    first, second = 0, 1\n    for _ in range(n):\n        first, second = second, {a} * second + {b} * first\n    return first\n",
        lambda random: [random.randint(0, 20)],
    ),
    (
        "run_lengths", "text", "Return a list of [character, length] for each run of equal characters of at least {b} in a row.",
        ("    runs = []\n    for c in text:\n        if runs and runs[-1][0] == c:\n            runs[-1][1] += 1\n        else:\n"
        "            runs.append([c, 1])\n    return [run for run in runs if run[1] >= {b}]\n"),
        lambda random: ["".join(random.choice("ab") * random.randint(1, 5) for _ in range(random.randint(0, 5)))],
    ),
    (
        "chunks", "values", "Return the values cut into lists of {b}, the last of which may be shorter.",
        "    return [values[i : i + {b}] for i in range(0, len(values), {b})]\n",
        lambda random: [_numbers(random)],
    ),
    (
        "clamp_all", "values", "Return the values with each below -{a} replaced by -{a} and each above {a} by {a}.",
        "    return [max(-{a}, min({a}, v)) for v in values]\n",
        lambda random: [_numbers(random)],
    ),
    (
        "word_counts", "text", "Return a dict from each word (split at spaces) of at least {b} letters to how often it occurs.",
        ("    counts = {{}}\n    for word in text.split():\n        if len(word) >= {b}:\n            counts[word] = counts.get(word, 0) + 1\n"
        "    return counts\n"),
        lambda random: [" ".join(random.choice(("a", "bb", "ccc", "dddd", "eeeee")) for _ in range(random.randint(0, 9)))],
    ),
    (
        "close_pairs", "values", "Return how many pairs of positions i < j have values that differ by {a} or less.",
        "    return sum(abs(values[i] - values[j]) <= {a} for i in range(len(values)) for j in range(i + 1, len(values)))\n",
        lambda random: [_numbers(random)],
    ),
)  # fmt: skip


def completion(draw: Draw) -> Sample:
    """Ask for the body of a function. Its cases are exact, so that one wrong branch shows.

    Raises:
        UsageError: the suite or the environment does not allow to run what the model writes.
        EnvironmentProblem: this machine cannot confine it.
    """
    check_permission(draw.options, draw.task)
    random = draw.random
    name, parameters, says, body, arguments = random.choice(_KINDS)
    drawn = {"a": random.randint(2, 9), "b": random.randint(2, 6)}
    head = f'def {name}({parameters}):\n    """{says.format(**drawn)}"""\n'
    solution = body.format(**drawn)
    cases = [arguments(random) for _ in range(_CASES)]
    return draw.sample(
        prompt=f"# Python 3, standard library only. The rest of the function, and nothing after it.\n\n{head}",
        references=(solution,),
        metric="code",
        details={
            "function": name,
            "code_prefix": head,
            "cases": [{"args": case, "expected": _result(head + solution, name, case)} for case in cases],
            "allow_code": True,
        },
        max_tokens=_MAX_TOKENS,
        stop=_STOP,
    )


def _result(program: str, name: str, case: list[Any]) -> Any:
    scope: dict[str, Any] = {}
    exec(program, scope)  # noqa: S102 - a solution of the table above, nothing that a model wrote
    return json.loads(json.dumps(scope[name](*json.loads(json.dumps(case)))))
