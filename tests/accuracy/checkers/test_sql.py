# ruff: noqa: S608 - every value is a number

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.accuracy.checkers import sql as rule
from kvverify.accuracy.scoring import score
from tests.accuracy.checkers.asked import asked

SETUP = "CREATE TABLE t (id INTEGER, name TEXT, price REAL);" + "".join(
    f"INSERT INTO t VALUES ({i}, 'n{i % 3}', {i}.5);" for i in range(9)
)
BAG = asked("sql", "SELECT name, SUM(price) FROM t GROUP BY name", details={"setup": SETUP})
LIST = asked("sql", "SELECT id FROM t WHERE id > 5 ORDER BY id DESC", details={"setup": SETUP, "ordered": True})


@pytest.mark.parametrize(
    "answer",
    [
        "SELECT name, SUM(price) FROM t GROUP BY name;",
        "select T.NAME, total(t.price) as x from t group by 1 order by 2 desc",
        "```sql\nSELECT name, SUM(price)\nFROM t\nGROUP BY name;\n```",
        "WITH s AS (SELECT * FROM t) SELECT name, SUM(price) FROM s GROUP BY name -- done;\n;",
    ],
)
def test_a_right_query_scores_1_however_it_is_written(answer: str) -> None:
    found = score(BAG, answer)
    assert (found.value, found.format_error, found.aspects) == (1.0, "", {"executable": 1.0})


@pytest.mark.parametrize(
    "answer",
    [
        "SELECT name, SUM(price) FROM t WHERE id > 0 GROUP BY name",
        "SELECT SUM(price), name FROM t GROUP BY name",
        "SELECT name, COUNT(*) FROM t GROUP BY name",
        "SELECT name, SUM(price) FROM t GROUP BY name UNION ALL SELECT 'n0', 0",
    ],
)
def test_other_rows_are_wrong(answer: str) -> None:
    assert score(BAG, answer).value == 0.0


def test_the_order_counts_where_it_was_asked_for() -> None:
    assert score(LIST, "SELECT id FROM t WHERE id >= 6 ORDER BY 1 DESC").value == 1.0
    assert score(LIST, "SELECT id FROM t WHERE id >= 6 ORDER BY 1").value == 0.0


def test_numbers_as_text_are_other_values_and_a_sum_in_another_order_is_not() -> None:
    assert rule.same_rows([(0.1 + 0.2,)], [(0.3,)], ordered=False)
    assert rule.same_rows([(3,)], [(3.0,)], ordered=False)
    assert not rule.same_rows([(3,)], [("3",)], ordered=False)
    assert not rule.same_rows([(1,), (1,)], [(1,)], ordered=False)
    assert not rule.same_rows([(None,)], [(0,)], ordered=False)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("", "no SELECT in the answer"),
        ("There are nine.", "no SELECT in the answer"),
        ("SELECT FROM WHERE;", "not SQL: near"),
        ("SELECT name FROM t GROUP", "not SQL: incomplete input"),
        ("SELECT 1; DROP TABLE t;", "more than one statement"),
        ("Here you are:\nSELECT name, SUM(price) FROM t GROUP BY name;\nDone.", "SQL with text around it"),
        ("SELECT '\ud800';", "not SQL: a null or half a character"),
        ("SELECT 1 \0;", "not SQL: a null or half a character"),
    ],
)
def test_format_errors(answer: str, error: str) -> None:
    found = score(BAG, answer)
    assert found.format_error.startswith(error)
    assert found.value == float("Here you are" in answer)


@pytest.mark.parametrize(
    "answer",
    [
        "INSERT INTO t VALUES (1, 'x', 2)",
        "DELETE FROM t",
        "DROP TABLE t",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "CREATE TABLE u AS SELECT * FROM t",
        "VACUUM INTO 'FILE'",
        "ATTACH 'FILE' AS f",
    ],
)
def test_what_writes_or_reaches_out_is_stopped(answer: str, tmp_path: Path) -> None:
    file = tmp_path / "out.db"
    with pytest.raises(rule.QueryProblem):
        rule.run_query(SETUP, answer.replace("FILE", str(file)))
    assert not file.exists()
    assert score(BAG, answer).aspects == {"executable": 0.0}


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f, t g, t h, t i",
        "WITH RECURSIVE n(i) AS (SELECT zeroblob(1000) UNION ALL SELECT zeroblob(1000) FROM n) SELECT * FROM n ORDER BY 1",
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%.*c', 100000000, 'x')",
        "SELECT format('%2000000000d', 1)",
        "SELECT printf('%.2000000000f', 1.0)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT i FROM n",
    ],
)
def test_a_query_without_end_is_stopped_soon(query: str) -> None:
    start = time.monotonic()
    with pytest.raises(rule.QueryProblem):
        rule.run_query(SETUP, query)
    assert time.monotonic() - start < 2 * rule.SECONDS


def test_printf_is_that_of_sqlite() -> None:
    query = "SELECT printf('%.2f|%5d|%s|%,d|100%%', 2.345, 7, 'a', 1234567), format('%-4s', 'x'), printf(NULL)"
    assert rule.run_query(SETUP, query) == [("2.35|    7|a|1,234,567|100%", "x   ", None)]


@given(st.text() | st.text(alphabet="SELCTFROM*t;'\"()1, \n-", min_size=1).map("SELECT ".__add__))
def test_no_answer_makes_the_rule_raise(text: str) -> None:
    assert score(BAG, text).value == 0.0
