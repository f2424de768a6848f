"""Long prompts of a given size: tables, segments that are almost the same, a filled context, two languages in turn."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.items.fit import fitting
from kvverify.accuracy.items.words import CHINESE_GOODS, CHINESE_PLACES, CITIES, FIRST, GOODS
from kvverify.accuracy.sample import Sample

_MAX_TOKENS = 32
_LEAST = 4  # units
_COLUMNS = ("order", "city", "item", "units", "price")
_PLACES = ("start", "middle", "end")


class _Numbers:
    """Different numbers of ``digits`` digits in a random order, made as they are asked for."""

    def __init__(self, random: Random, digits: int) -> None:
        self._random, self._low, self._seen = random, 10 ** (digits - 1), set[int]()

    def one(self) -> int:
        while (number := self._random.randrange(self._low, 10 * self._low)) in self._seen:
            pass
        self._seen.add(number)
        return number


def table(draw: Draw) -> Sample:
    """Ask for one cell of a long table, by the number of its row."""
    random, numbers, where = draw.random, _Numbers(draw.random, 6), draw.random.random()
    column = random.choice((1, 3, 4))

    def row(_: int) -> str:
        cells = (
            numbers.one(),
            random.choice(CITIES),
            random.choice(GOODS),
            random.randint(1, 999),
            f"{random.randrange(100, 99999) / 100:.2f}",
        )
        return f"| {' | '.join(map(str, cells))} |\n"

    def asked(rows: Sequence[str]) -> list[str]:
        return [cell.strip() for cell in rows[int(where * len(rows))].strip("|\n ").split("|")]

    head = f"A table of orders:\n\n| {' | '.join(_COLUMNS)} |\n|{' --- |' * 5}\n"

    def prompt(rows: Sequence[str]) -> tuple[str, str]:
        order = asked(rows)[0]
        name = _COLUMNS[column]
        return (
            f"{head}{''.join(rows)}\nWhat stands in the column {name} of order {order}? Answer with that cell alone.\n",
            f"The {name} of order {order} is",
        )

    rows = fitting(draw, row, lambda r: "".join(prompt(r)), max_tokens=_MAX_TOKENS, least=_LEAST)
    return _made(draw, prompt(rows), asked(rows)[column], {"rows": len(rows)})


def segments(draw: Draw) -> Sample:
    """Ask about one of many segments that differ in a number and a time alone: tokens of the wrong segment look right."""
    random, numbers, where = draw.random, _Numbers(draw.random, 5), draw.random.random()

    def segment(_: int) -> str:
        time = f"{random.randrange(24):02}:{random.randrange(60):02}"
        return (
            f"Line {numbers.one()}. The gate of this line is opened by the guard on duty, who signs the book, checks the seal and "
            f"reports to the desk. The gate opens at {time}. Nobody passes before the desk has confirmed.\n"
        )

    def asked(made: Sequence[str]) -> tuple[str, str]:
        text = made[int(where * len(made))]
        return text.split(".")[0].removeprefix("Line "), text.split("opens at ")[1][:5]

    def prompt(made: Sequence[str]) -> tuple[str, str]:
        line = asked(made)[0]
        return (
            f"Rules of the gates:\n\n{''.join(made)}\nWhen does the gate of line {line} open? Answer with the time alone.\n",
            f"The gate of line {line} opens at",
        )

    made = fitting(draw, segment, lambda m: "".join(prompt(m)), max_tokens=_MAX_TOKENS, least=_LEAST)
    return _made(draw, prompt(made), asked(made)[1], {"segments": len(made)})


def full_context(draw: Draw) -> Sample:
    """Ask for one of three facts, at the start, in the middle and at the end of a prompt that fills its length to a few tokens."""
    random, place = draw.random, draw.index % 3
    names = random.sample(FIRST, 3)
    numbers = [f"{random.randrange(10**6, 10**7)}" for _ in names]
    facts = [f"The code of {name} is {number}.\n" for name, number in zip(names, numbers, strict=True)]

    def filler(_: int) -> str:
        return f"{random.choice(CITIES)} sent {random.randint(2, 99)} units of {random.choice(GOODS)}.\n"

    def prompt(made: Sequence[str]) -> tuple[str, str]:
        half = len(made) // 2
        body = facts[0] + "".join(made[:half]) + facts[1] + "".join(made[half:]) + facts[2]
        return (
            f"Notes of the day:\n\n{body}\nWhat is the code of {names[place]}? Answer with the number alone.\n",
            f"The code of {names[place]} is",
        )

    made = fitting(draw, filler, lambda m: "".join(prompt(m)), max_tokens=_MAX_TOKENS, least=_LEAST)
    return _made(draw, prompt(made), numbers[place], {"place": _PLACES[place]})


def two_languages(draw: Draw) -> Sample:
    """Ask in the one language for what is written in the other, among records of both in turn."""
    random, numbers, where = draw.random, _Numbers(draw.random, 5), draw.random.random()

    def record(i: int) -> str:
        place, number, code = random.choice(CHINESE_PLACES), numbers.one(), random.randrange(10**5, 10**6)
        if i % 2:
            units, item = random.randint(2, 99), random.choice(GOODS)
            return f"Store {place}-{number} holds {units} units of {item}; its key code is {code}.\n"
        return f"仓库{place}-{number}存有{random.randint(2, 99)}箱{random.choice(CHINESE_GOODS)}，钥匙编号是{code}。\n"

    def asked(made: Sequence[str]) -> tuple[str, str, bool]:
        text = made[int(where * len(made))]
        chinese = text.startswith("仓库")
        name = text[2 : text.index("存有")] if chinese else text.split()[1]
        code = text.split("编号是")[1].strip("。\n") if chinese else text.split("code is ")[1].strip(".\n")
        return name, code, chinese

    def prompt(made: Sequence[str]) -> tuple[str, str]:
        name, _, chinese = asked(made)
        question = (
            (
                f"\nWhat is the key code of store {name}? Answer with the number alone.\n",
                f"The key code of store {name} is",
            )
            if chinese
            else (f"\n仓库{name}的钥匙编号是什么？只回答数字。\n", f"仓库{name}的钥匙编号是")
        )
        return f"Records of the stores / 仓库记录:\n\n{''.join(made)}{question[0]}", question[1]

    made = fitting(draw, record, lambda m: "".join(prompt(m)), max_tokens=_MAX_TOKENS, least=_LEAST)
    return _made(draw, prompt(made), asked(made)[1], {"fact": "zh" if asked(made)[2] else "en"})


def _made(draw: Draw, prompt: tuple[str, str], answer: str, details: dict[str, object]) -> Sample:
    return draw.sample(
        prompt=prompt[0],
        answer_prefix=prompt[1],
        references=(answer,),
        metric="contains",
        details=details,
        max_tokens=_MAX_TOKENS,
        stop=("\n",),
    )
