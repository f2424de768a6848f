"""Questions over small tables, answered by one SELECT; the tables are new for each question."""

# ruff: noqa: S608 - every value is a word or a number of ours

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.items.words import CITIES, GOODS, person
from kvverify.accuracy.sample import Sample

_TABLES = (
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);\n"
    "CREATE TABLE products (id INTEGER PRIMARY KEY, title TEXT, price REAL);\n"
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER, quantity INTEGER, day TEXT);"
)
_EXAMPLE = "### question\nHow many products are there?\n### SQL\nSELECT COUNT(*) FROM products;\n\n"
_MAX_TOKENS = 256
Asked = tuple[str, str, bool]  # question, query, whether the order of rows counts


def question(draw: Draw) -> Sample:
    """Ask one of the kinds below, with values that occur in the tables, so that its result is never empty."""
    random = draw.random
    cities, goods = random.sample(CITIES, 4), random.sample(GOODS, 6)
    said, query, ordered = random.choice(_KINDS)(random, cities, goods)
    prompt = (
        "Answer each question about these SQLite tables with one SELECT statement that ends with a semicolon, and nothing else.\n"
        f"{_TABLES}\n\n{_EXAMPLE}### question\n{said}\n### SQL\n"
    )
    return draw.sample(
        prompt=prompt,
        references=(query,),
        metric="sql",
        details={"setup": _TABLES + _rows(random, cities, goods), "ordered": ordered},
        max_tokens=_MAX_TOKENS,
        stop=("\n###",),
    )


def _rows(random: Random, cities: list[str], goods: list[str]) -> str:
    """Return 12 customers and 60 orders in which every city, product and month of 2025's first half occurs."""
    people = [(i, person(random), cities[i % 4]) for i in range(1, 13)]
    prices = [random.randrange(100, 400), *random.sample(range(2, 100), 5)]  # one is dear, no two are equal
    products = [
        (i, title, price + random.randrange(100) / 100)
        for i, (title, price) in enumerate(zip(goods, prices, strict=True), 1)
    ]
    orders = [
        (
            i,
            i if i <= 12 else random.randint(1, 12),
            1 + i % 6 if i <= 12 else random.randint(1, 6),
            random.randint(1, 30),
            f"2025-{1 + i // 2 % 6:02}-{random.randint(1, 28):02}",
        )
        for i in range(1, 61)
    ]
    inserts = []
    for table, rows in (("customers", people), ("products", products), ("orders", orders)):
        inserts += [f"\nINSERT INTO {table} VALUES ({', '.join(map(_literal, row))});" for row in rows]
    return "".join(inserts)


def _literal(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _customers_of(random: Random, cities: list[str], goods: list[str]) -> Asked:
    city = random.choice(cities)
    return f"What are the names of the customers in {city}?", f"SELECT name FROM customers WHERE city = '{city}'", False


def _dearer(random: Random, cities: list[str], goods: list[str]) -> Asked:
    low = random.randint(5, 90)
    query = f"SELECT title, price FROM products WHERE price > {low} ORDER BY price DESC LIMIT {(most := random.randint(2, 5))}"
    return f"Title and price of the {most} dearest products that cost more than {low}, the dearest first.", query, True


def _units(random: Random, cities: list[str], goods: list[str]) -> Asked:
    item = random.choice(goods)
    query = f"SELECT SUM(quantity) FROM orders JOIN products ON products.id = product_id WHERE title = '{item}'"
    return f"How many units of {item} were ordered in total?", query, False


def _by_city(random: Random, cities: list[str], goods: list[str]) -> Asked:
    month = random.randint(1, 6)
    query = (
        "SELECT city, COUNT(*) FROM orders JOIN customers ON customers.id = customer_id "
        f"WHERE day LIKE '2025-{month:02}-%' GROUP BY city"
    )
    return f"Each city with orders in month {month:02} of 2025, and its number of orders then.", query, False


def _revenue(random: Random, cities: list[str], goods: list[str]) -> Asked:
    city = random.choice(cities)
    query = (
        "SELECT SUM(quantity * price) FROM orders JOIN products ON products.id = product_id "
        f"JOIN customers ON customers.id = customer_id WHERE city = '{city}'"
    )
    return f"What did customers in {city} spend in total (quantity times price)?", query, False


def _busy(random: Random, cities: list[str], goods: list[str]) -> Asked:
    number = random.randint(3, 5)
    query = (
        "SELECT customer_id FROM orders GROUP BY customer_id "
        f"HAVING COUNT(*) >= {number} ORDER BY SUM(quantity) DESC, customer_id"
    )
    said = f"Ids of customers with at least {number} orders, most units ordered first, equal ones by id."
    return said, query, True


_KINDS: tuple[Callable[[Random, list[str], list[str]], Asked], ...] = (
    _customers_of,
    _dearer,
    _units,
    _by_city,
    _revenue,
    _busy,
)
