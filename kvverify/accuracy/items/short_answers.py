"""Short questions without a document: word problems, choices, copies. What a damaged cache should not touch at all."""

from __future__ import annotations

from random import Random

from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.items.words import CITIES, FIRST, GOODS
from kvverify.accuracy.sample import Sample

_STOP = ("\n###", "\nQuestion:")


def word_problem(draw: Draw) -> Sample:
    """Ask for a number after two to four steps of reasoning, with one worked example."""
    (_, shown, worked, result), (_, said, steps, answer) = _problem(draw.random), _problem(draw.random)
    prompt = f"Question: {shown}\nAnswer: {worked} #### {result}\n\nQuestion: {said}\nAnswer:"
    return draw.sample(
        prompt=prompt,
        references=(str(answer),),
        metric="number",
        details={"worked": steps},
        max_tokens=200,
        stop=_STOP,
    )


def choice(draw: Draw) -> Sample:
    """Ask which of four is the largest, smallest, first or last by some order, with one example."""
    (shown, first), (said, letter) = _choice(draw.random), _choice(draw.random)
    prompt = f"Question: {shown}\nAnswer: {first}\n\nQuestion: {said}\nAnswer:"
    return draw.sample(prompt=prompt, references=(letter,), metric="choice", max_tokens=8, stop=("\n",))


def copy(draw: Draw) -> Sample:
    """Ask for a list of codes again, to the letter: a single wrong token shows."""
    first, second = _codes(draw.random, 3), _codes(draw.random, 12)
    prompt = f"Repeat each list exactly.\n\n### list\n{first}\n### again\n{first}\n\n### list\n{second}\n### again\n"
    return draw.sample(prompt=prompt, references=(second,), metric="exact", max_tokens=160, stop=("\n",))


def _problem(random: Random) -> tuple[str, str, str, int]:
    who, item, city = random.choice(FIRST), random.choice(GOODS), random.choice(CITIES)
    boxes, each, sold, price = (
        random.randint(3, 20),
        random.randint(4, 30),
        random.randint(2, 11),
        random.randint(2, 15),
    )
    stock = boxes * each
    if random.random() < 0.5:
        said = (
            f"{who} has {boxes} boxes with {each} units of {item} each in {city} and sells {sold}. How many are left?"
        )
        return who, said, f"{boxes} * {each} = {stock}. {stock} - {sold} = {stock - sold}.", stock - sold
    left = stock - sold
    said = (
        f"{who} has {boxes} boxes with {each} units of {item} each in {city}. {sold} units are broken. The others are sold for "
        f"{price} coins each. How many coins does {who} get?"
    )
    worked = f"{boxes} * {each} = {stock}. {stock} - {sold} = {left}. {left} * {price} = {left * price}."
    return who, said, worked, left * price


def _choice(random: Random) -> tuple[str, str]:
    numbers = random.sample(range(100, 10_000), 4)
    say, best = random.choice(
        (
            ("Which number is the largest?", max(numbers)),
            ("Which number is the smallest?", min(numbers)),
            ("Which number has the largest last two digits?", max(numbers, key=lambda n: (n % 100, n))),
        )
    )
    if sum(n % 100 == best % 100 for n in numbers) > 1:  # a tie has no answer
        return _choice(random)
    options = "  ".join(f"{letter}. {number}" for letter, number in zip("ABCD", numbers, strict=True))
    return f"{say} {options}", "ABCD"[numbers.index(best)]


def _codes(random: Random, number: int) -> str:
    return " ".join(
        f"{random.choice('BCDFGHJKLMNPQRSTVWXZ')}{random.randrange(1000):03}{random.choice('bcdfghjkmnpqrstvwxz')}"
        for _ in range(number)
    )
