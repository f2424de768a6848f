"""Texts of which a JSON record must be made: invoices and support tickets, each in several layouts, with a schema."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.items.words import CITIES, CURRENCIES, GOODS, cents, firm, person
from kvverify.accuracy.sample import Sample

_MAX_TOKENS = 512
_STOP = ("\n###",)

INVOICE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["number", "date", "vendor", "currency", "lines", "total"],
    "properties": {
        "number": {"type": "string"},
        "date": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        "vendor": {"type": "string"},
        "currency": {"enum": list(CURRENCIES)},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["item", "quantity", "unit_price"],
                "properties": {
                    "item": {"type": "string"},
                    "quantity": {"type": "integer"},
                    "unit_price": {"type": "number"},
                },
            },
        },
        "total": {"type": "number"},
    },
}
SEVERITIES = ("low", "medium", "high", "critical")
TICKET: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["customer", "email", "order", "item", "city", "severity", "refund_wanted", "units_affected"],
    "properties": {
        "customer": {"type": "string"},
        "email": {"type": "string"},
        "order": {"type": "string"},
        "item": {"type": "string"},
        "city": {"type": "string"},
        "severity": {"enum": list(SEVERITIES)},
        "refund_wanted": {"type": "boolean"},
        "units_affected": {"type": "integer"},
    },
}


def invoice(draw: Draw) -> Sample:
    """Make a record of an invoice; the total is stated, so that nothing has to be computed."""
    return _question(draw, _invoice, INVOICE, "invoice")


def ticket(draw: Draw) -> Sample:
    """Make a record of a support ticket; booleans and an enumeration have to be read from sentences."""
    return _question(draw, _ticket, TICKET, "ticket")


def _question(draw: Draw, make: Any, schema: dict[str, Any], kind: str) -> Sample:
    (shown, example), (text, record) = make(draw), make(draw)
    task = (
        f"Write each {kind} as one JSON object of this JSON schema, and nothing else. Copy names and numbers exactly.\n"
        f"{json.dumps(schema)}\n\n### {kind}\n{shown}\n### JSON\n{json.dumps(example)}\n\n### {kind}\n{text}\n### JSON\n"
    )
    return draw.sample(
        prompt=task,
        references=(json.dumps(record),),
        metric="json-fields",
        details={"schema": schema},
        max_tokens=_MAX_TOKENS,
        stop=_STOP,
    )


def _invoice(draw: Draw) -> tuple[str, dict[str, Any]]:
    random = draw.random
    goods = random.sample(GOODS, random.randint(1, 4))
    lines: list[dict[str, Any]] = [
        {"item": g, "quantity": random.randint(1, 40), "unit_price": cents(random, 1, 90)} for g in goods
    ]
    day = date(2024, 1, 1) + timedelta(days=random.randrange(700))
    record: dict[str, Any] = {
        "number": f"{random.choice('ABCR')}{random.choice('INXZ')}-{random.randrange(10**6):06}",
        "date": day.isoformat(),
        "vendor": firm(random),
        "currency": random.choice(CURRENCIES),
        "lines": lines,
        "total": round(sum(line["quantity"] * line["unit_price"] for line in lines), 2),
    }
    written = random.choice([day.strftime("%d %B %Y"), day.strftime("%B %d, %Y"), day.isoformat()])
    money = record["currency"]
    rows = [f"{line['quantity']} x {line['item']} at {line['unit_price']:.2f} {money} each" for line in lines]
    total = f"{record['total']:.2f} {money}"
    letter = (
        f"{record['vendor']} thanks you for your order. Invoice {record['number']} was issued on {written}. "
        f"It covers {'; '.join(rows)}. Please pay {total} within 30 days."
    )
    table = "\n".join(
        [
            f"INVOICE No. {record['number']}",
            f"From: {record['vendor']}",
            f"Date: {written}",
            *rows,
            f"TOTAL DUE: {total}",
        ]
    )
    return random.choice([letter, table]), record


def _ticket(draw: Draw) -> tuple[str, dict[str, Any]]:
    random = draw.random
    name, units = person(random), random.randint(2, 60)
    record: dict[str, Any] = {
        "customer": name,
        "email": f"{name.lower().replace(' ', '.')}{random.randrange(100)}@example.com",
        "order": f"{random.randrange(10**8):08}",
        "item": random.choice(GOODS),
        "city": random.choice(CITIES),
        "severity": random.choice(SEVERITIES),
        "refund_wanted": random.random() < 0.5,
        "units_affected": units,
    }
    wish = "I want my money back." if record["refund_wanted"] else "No refund is needed, please send new ones."
    text = (
        f"Hello, this is {name} from {record['city']}. In order {record['order']} the {record['item']} came broken: "
        f"{units} units of it cannot be used. {wish} You can reach me at {record['email']}.\n"
        f"[desk: priority {record['severity']}]"
    )
    return text, record
