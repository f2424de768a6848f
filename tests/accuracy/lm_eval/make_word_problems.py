"""Writes evals/lm_eval/word_problems/test.jsonl: word problems in three to four steps, made by rule from a seed.

python tests/accuracy/lm_eval/make_word_problems.py > evals/lm_eval/word_problems/test.jsonl
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

NUMBER, SEED = 400, 20_261_130
NAMES = ["Anna", "Bilal", "Chen", "Dina", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jana", "Kofi", "Lena"]
THINGS = ["apples", "books", "coins", "stamps", "shells", "pencils", "buttons", "postcards", "marbles", "tickets"]

Problem = tuple[str, list[str], int]  # question, steps, answer


def shopping(draw: random.Random) -> Problem:
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    packs, each, spoilt = draw.randint(3, 12), draw.randint(4, 15), draw.randint(1, 9)
    total = packs * each
    kept = total - spoilt
    given = draw.randint(1, kept - 1)
    question = (
        f"{name} buys {packs} boxes of {thing}. There are {each} {thing} in every box, but {spoilt} of them are damaged and thrown "
        f"away. Then {name} gives {given} of the good ones to a friend. How many {thing} does {name} have left?"
    )
    steps = [f"{packs} x {each} = {total}", f"{total} - {spoilt} = {kept}", f"{kept} - {given} = {kept - given}"]
    return question, steps, kept - given


def wages(draw: random.Random) -> Problem:
    name = draw.choice(NAMES)
    days, hours, wage, fare = draw.randint(2, 6), draw.randint(3, 8), draw.randint(9, 21), draw.randint(2, 7)
    worked, paid = days * hours, days * hours * wage
    cost = days * fare
    question = (
        f"{name} works {hours} hours a day on {days} days and earns {wage} dollars an hour. The bus costs {fare} dollars a day. "
        f"How many dollars does {name} have after paying for the bus?"
    )
    steps = [f"{days} x {hours} = {worked}", f"{worked} x {wage} = {paid}", f"{days} x {fare} = {cost}"]
    return question, [*steps, f"{paid} - {cost} = {paid - cost}"], paid - cost


def sharing(draw: random.Random) -> Problem:
    one, other, third = draw.sample(NAMES, 3)
    thing, each = draw.choice(THINGS), draw.randint(3, 25)
    first, second = draw.randint(5, 60), draw.randint(5, 60)
    last = 3 * each - (first + second) % (3 * each) + draw.randint(0, 5) * 3 * each
    total = first + second + last
    question = (
        f"{one} has {first} {thing}, {other} has {second} and {third} has {last}. They put all of them together and share them "
        f"equally among the three. How many {thing} does each of them get?"
    )
    return (
        question,
        [
            f"{first} + {second} = {first + second}",
            f"{first + second} + {last} = {total}",
            f"{total} / 3 = {total // 3}",
        ],
        total // 3,
    )


def journey(draw: random.Random) -> Problem:
    name = draw.choice(NAMES)
    slow, fast, before, after = draw.randint(8, 25), draw.randint(40, 110), draw.randint(2, 5), draw.randint(2, 6)
    one, two = slow * before, fast * after
    back = draw.randint(5, one - 5)
    question = (
        f"{name} rides a bicycle for {before} hours at {slow} kilometres an hour and then a train for {after} hours at {fast} kilometres "
        f"an hour. Then {name} walks {back} kilometres back. How many kilometres from the start is {name} now?"
    )
    steps = [f"{before} x {slow} = {one}", f"{after} x {fast} = {two}", f"{one} + {two} = {one + two}"]
    return question, [*steps, f"{one + two} - {back} = {one + two - back}"], one + two - back


KINDS: list[Callable[[random.Random], Problem]] = [shopping, wages, sharing, journey]


def lines() -> Iterator[str]:
    """Yield the lines of the file; no question comes twice."""
    draw, seen = random.Random(SEED), set[str]()
    while len(seen) < NUMBER:
        question, steps, answer = KINDS[len(seen) % len(KINDS)](draw)
        if question in seen:
            continue
        seen.add(question)
        yield json.dumps({"question": question, "answer": f"{'. '.join(steps)}.\n#### {answer}"})


if __name__ == "__main__":
    print("\n".join(lines()))
