"""Requests that one of several tools answers, with typed parameters: numbers, enumerations, dates, lists, flags, objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from random import Random
from typing import Any

from kvverify.accuracy.items.draw import Draw
from kvverify.accuracy.items.words import CITIES, CURRENCIES, GOODS, cents, person
from kvverify.accuracy.sample import Sample

_MAX_TOKENS = 256
_STOP = ("\n###",)
Request = tuple[str, dict[str, Any]]  # what the user says, and the arguments it asks for


def _tool(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT, _WHOLE, _NUMBER, _FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_DATE = {"type": "string", "description": "YYYY-MM-DD"}


def _day(random: Random) -> str:
    return (date(2025, 1, 1) + timedelta(days=random.randrange(364))).isoformat()


def _order(random: Random) -> Request:
    item, number, city, express = (
        random.choice(GOODS),
        random.randint(2, 500),
        random.choice(CITIES),
        random.random() < 0.5,
    )
    said = f"Order {number} units of {item} for our site in {city}, {'express' if express else 'not express'} please."
    return said, {"item": item, "quantity": number, "city": city, "express": express}


def _transfer(random: Random) -> Request:
    amount, money, account = cents(random, 5, 9000), random.choice(CURRENCIES), f"{random.randrange(10**10):010}"
    return f"Transfer {amount:.2f} {money} to account {account}.", {
        "amount": amount,
        "currency": money,
        "account": account,
    }


def _meeting(random: Random) -> Request:
    guests, day, minutes = (
        sorted({person(random) for _ in range(random.randint(2, 3))}),
        _day(random),
        random.choice((15, 30, 45, 60)),
    )
    said = f"Book a meeting of {minutes} minutes on {day} with {' and '.join(guests)}; name them in this order."
    return said, {"day": day, "minutes": minutes, "guests": guests}


def _reading(random: Random) -> Request:
    sensor, low, high = f"S{random.randrange(1000):03}", random.randint(-20, 10), random.randint(11, 60)
    said = f"Set the limits of sensor {sensor} to {low} and {high} degrees."
    return said, {"sensor": sensor, "range": {"low": low, "high": high}}


def _shipments(random: Random) -> Request:
    first, last = sorted((_day(random), _day(random)))
    state, most = random.choice(("open", "sent", "lost", "returned")), random.randint(5, 90)
    said = f"List at most {most} {state} shipments between {first} and {last}."
    return said, {"state": state, "since": first, "until": last, "limit": most}


TOOLS: dict[str, tuple[dict[str, Any], Callable[[Random], Request]]] = {
    "place_order": (
        _tool("place_order", "Order goods.", item=_TEXT, quantity=_WHOLE, city=_TEXT, express=_FLAG),
        _order,
    ),
    "transfer_money": (
        _tool("transfer_money", "Send money.", amount=_NUMBER, currency={"enum": list(CURRENCIES)}, account=_TEXT),
        _transfer,
    ),
    "book_meeting": (
        _tool("book_meeting", "Book a meeting.", day=_DATE, minutes=_WHOLE, guests={"type": "array", "items": _TEXT}),
        _meeting,
    ),
    "set_sensor_range": (
        _tool(
            "set_sensor_range",
            "Set the limits of a sensor.",
            sensor=_TEXT,
            range={"type": "object", "properties": {"low": _WHOLE, "high": _WHOLE}, "required": ["low", "high"]},
        ),
        _reading,
    ),
    "list_shipments": (
        _tool(
            "list_shipments",
            "List shipments.",
            state={"enum": ["open", "sent", "lost", "returned"]},
            since=_DATE,
            until=_DATE,
            limit=_WHOLE,
        ),
        _shipments,
    ),
}


def in_text(draw: Draw) -> Sample:
    """Ask with the tools in the prompt and one example; the call is to be JSON."""
    shown_name, shown = _request(draw)
    name, (said, arguments) = _request(draw)
    prompt = (
        "Answer each request with one call of a tool, as a JSON object with the keys name and arguments, and nothing else. "
        f"The tools:\n{_TOOL_LINES}\n\n### request\n{shown[0]}\n### call\n{_call(shown_name, shown[1])}\n\n"
        f"### request\n{said}\n### call\n"
    )
    return draw.sample(
        prompt=prompt,
        references=(_call(name, arguments),),
        metric="tool-call",
        details={"tools": _offer(draw)},
        max_tokens=_MAX_TOKENS,
        stop=_STOP,
    )


def by_interface(draw: Draw) -> Sample:
    """Ask through the chat interface's ``tools``: the server's own template and parser take part."""
    name, (said, arguments) = _request(draw)
    return draw.sample(
        messages=({"role": "user", "content": said},),
        tools=tuple(_offer(draw)),
        references=(_call(name, arguments),),
        metric="tool-call",
        max_tokens=_MAX_TOKENS,
    )


def _line(tool: dict[str, Any]) -> str:
    """Write a tool as one line, name(parameter: type, ...), shorter than its schema."""
    function = tool["function"]
    return f"{function['name']}({_fields(function['parameters'])}) - {function['description']}"


def _fields(schema: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {_kind(kind)}" for name, kind in schema["properties"].items())


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(schema["enum"])
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}"
    if schema["type"] == "object":
        return f"{{{_fields(schema)}}}"
    return str(schema.get("description", schema["type"]))


_TOOL_LINES = "\n".join(_line(tool) for tool, _ in TOOLS.values())


def _request(draw: Draw) -> tuple[str, Request]:
    name = draw.random.choice(sorted(TOOLS))
    return name, TOOLS[name][1](draw.random)


def _offer(draw: Draw) -> list[dict[str, Any]]:
    return [tool for tool, _ in TOOLS.values()]


def _call(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments})
