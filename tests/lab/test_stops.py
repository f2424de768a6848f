"""Stop strings: what is shown of an answer, part by part, is the text before the first of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from kvverify.lab.stops import Stops
from kvverify.lab.tokens import Bytes

texts = st.text("ab", max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(texts, stops)
def test_parts_add_up_to_the_text_before_the_first_stop(text: str, named: list[str]) -> None:
    own, sent, ended = Stops.of(named), "", False
    for n in range(1, len(text) + 1):
        ended = own.ended(text[:n].encode(), Bytes())
        shown = own.shown(text[:n], last=ended or n == len(text))
        assert shown.startswith(sent)  # nothing that was shown is taken back
        sent = shown
        if ended:
            break
    places = [text.index(stop) for stop in named if stop in text]
    # the stop that is whole first ends the answer, and the earliest place in the text so far counts
    first_end = min((text.index(stop) + len(stop) for stop in named if stop in text), default=len(text))
    expected = min((text.index(stop) for stop in named if stop in text[:first_end]), default=len(text))
    assert ended == bool(places)
    assert sent == text[:expected]


@pytest.mark.parametrize(
    ("given_", "texts"), [(None, ()), ("", None), ("x", ("x",)), (["x", "y"], ("x", "y")), ([], ())]
)
def test_a_text_or_a_list_of_texts(given_: object, texts: tuple[str, ...] | None) -> None:
    if texts is None:
        with pytest.raises(ValueError, match="got stop ''; expected a text or a list of texts, none of them empty"):
            Stops.of(given_)
    else:
        assert Stops.of(given_).texts == texts
