"""SQL answers: run in SQLite, in memory, read only, and compared by the rows they return."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvverify.accuracy.checkers.answer_text import AROUND, fenced, whole_answer
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score

Rows = list[tuple[Any, ...]]

STEPS = 3_000_000  # of SQLite's machine; the queries of small tables take some thousands
SECONDS = 5.0  # a second bound, for a machine that stands still; steps are the first, as they are the same everywhere
_STEPS_A_LOOK = 1_000
_ROWS = 10_000
_VALUE_BYTES = 2_000  # of one value or row: bounds the memory that STEPS can fill
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_STATEMENT = re.compile(r"^[ \t]*(?:SELECT|WITH)\b", re.IGNORECASE | re.MULTILINE)
_OTHER = re.compile(
    r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE|DROP|CREATE|ALTER|ATTACH|DETACH|PRAGMA|REPLACE|VACUUM|BEGIN|EXPLAIN)\b",
    re.IGNORECASE,
)
_FORMAT = re.compile(r"(?:[^%]|%%|%[-+ 0#,!]*\d{0,3}(?:\.\d{1,2})?[a-zA-Z])*")
_NO_SQL = re.compile(r"syntax error|incomplete input|unrecognized token", re.IGNORECASE)


class QueryProblem(Exception):
    """A query that did not return rows; ``form`` says that it is not SQL at all."""

    def __init__(self, line: str, *, form: bool = False) -> None:
        super().__init__(line)
        self.form = form


def sql(sample: Sample, text: str) -> Score:
    """Score 1 where the answer's query returns the rows of the reference's, over the tables that ``details["setup"]`` makes.

    Rows are compared as a bag, in order where ``details["ordered"]``; names of columns do not count, their order does. Aspect
    ``executable``: the query ran to its end. One that writes, attaches a file or does not end within STEPS is stopped and wrong.
    """
    query, error = read_query(whole_answer(sample, text))
    setup = str(sample.details["setup"])
    aspects = {"executable": 0.0}
    if not query:
        return Score(0.0, format_error=error, aspects=aspects)
    try:
        got = run_query(setup, query)
    except QueryProblem as problem:
        return Score(0.0, format_error=str(problem) if problem.form else error, aspects=aspects)
    expected = run_query(setup, sample.references[0])
    right = same_rows(expected, got, ordered=bool(sample.details.get("ordered")))
    return Score(float(right), format_error=error, aspects={"executable": 1.0})


def read_query(answer: str) -> tuple[str, str]:
    """Return the answer's one statement, empty where it has none, and what is wrong with its form."""
    if "\0" in answer or any("\ud800" <= c <= "\udfff" for c in answer):
        return "", "not SQL: a null or half a character"
    block = fenced(answer)
    body, error = (block.body, f"SQL with {AROUND}" if block.around else "") if block else (answer, "")
    start = _STATEMENT.search(body)
    if start is None:
        return (body.strip(), error) if _OTHER.match(body) else ("", "no SELECT in the answer")
    if body[: start.start()].strip():
        error = f"SQL with {AROUND}"
    query, rest = _first_statement(body[start.start() :])
    if _OTHER.match(rest):
        return "", "more than one statement"
    return query, f"SQL with {AROUND}" if rest.strip() else error


def run_query(setup: str, query: str) -> Rows:
    """Return the rows of a read-only query over new tables.

    Raises:
        QueryProblem: it is not SQL, writes, takes too long, or returns too much.
    """
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(setup)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for name in ("printf", "format"):
            connection.create_function(name, -1, _printf, deterministic=True)
        connection.set_authorizer(_only_reading)
        connection.set_progress_handler(_stop_after(STEPS, SECONDS), _STEPS_A_LOOK)
        rows = connection.execute(query).fetchmany(_ROWS + 1)
    except (sqlite3.Error, sqlite3.Warning, OverflowError) as problem:
        raise QueryProblem(f"not SQL: {problem}"[:200], form=bool(_NO_SQL.search(str(problem)))) from None
    finally:
        connection.close()
    if len(rows) > _ROWS:
        raise QueryProblem(f"more than {_ROWS:,} rows")
    return rows


def same_rows(expected: Rows, got: Rows, *, ordered: bool) -> bool:
    """Return whether two results hold the same rows; numbers to nine digits, so that the order of a sum does not count."""
    mine, theirs = [_plain(row) for row in expected], [_plain(row) for row in got]
    return mine == theirs if ordered else Counter(mine) == Counter(theirs)


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_rounded(value) if isinstance(value, int | float) else (type(value).__name__, value) for value in row)


def _rounded(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    return number if number == 0 or not math.isfinite(number) else float(f"{number:.9g}")


def _first_statement(text: str) -> tuple[str, str]:
    """Cut after the first semicolon that ends a statement, quotes and comments heeded; at a blank line where there is none."""
    at = text.find(";")
    while at >= 0:
        if sqlite3.complete_statement(text[: at + 1]):
            return text[: at + 1], text[at + 1 :]
        at = text.find(";", at + 1)
    query, _, rest = text.partition("\n\n")
    return query, rest


def _only_reading(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    harmful = action == sqlite3.SQLITE_FUNCTION and second == "load_extension"
    return sqlite3.SQLITE_OK if action in _READING and not harmful else sqlite3.SQLITE_DENY


def _printf(form: str | None = None, *values: Any) -> Any:
    """Format as SQLite does, but refuse widths of a thousand and more: one call could take minutes, and no step ends it."""
    if form is None or not _FORMAT.fullmatch(form):
        return None if form is None else _refuse_format(form)
    with contextlib.closing(sqlite3.connect(":memory:")) as plain:
        marks = "".join(", ?" for _ in values)
        return plain.execute(f"SELECT printf(?{marks})", (form, *values)).fetchone()[0]


def _refuse_format(form: str) -> None:
    raise QueryProblem(f"format {form!r:.60}")


def _stop_after(steps: int, seconds: float) -> Callable[[], int]:
    looks, end = 0, time.monotonic() + seconds

    def look() -> int:
        nonlocal looks
        looks += 1
        return int(looks * _STEPS_A_LOOK > steps or time.monotonic() > end)

    return look
