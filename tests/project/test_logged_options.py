"""Options in the event log: what was written is read back, older logs are read, others are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.errors import UsageError
from kvverify.logged_options import LoggedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(LoggedOptions):
    url: str
    tasks: tuple[str, ...] = ()
    documents: tuple[dict[str, list[int]], ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    samples: int | None = None


OPTIONS = st.builds(
    Options,
    url=st.text(),
    tasks=st.lists(st.text()).map(tuple),
    documents=st.lists(st.dictionaries(st.text(), st.lists(st.integers()))).map(tuple),
    facts=st.dictionaries(st.text(), st.text()),
    samples=st.none() | st.integers(),
)


@given(OPTIONS)
def test_options_survive_the_log(options: Options) -> None:
    assert Options.from_log(json.loads(json.dumps(options.to_log()))) == options


def test_what_an_older_log_does_not_name_has_its_default() -> None:
    assert Options.from_log({"url": "u", "tasks": ["a"]}) == Options(url="u", tasks=("a",))


def test_what_is_unknown_or_missing_is_named() -> None:
    with pytest.raises(UsageError) as error:
        Options.from_log({"tasks": [], "colour": "blue"})
    assert str(error.value) == "the run to resume was made with other options (colour, url); start a new one"
