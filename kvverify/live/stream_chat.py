"""The parts of a streamed chat answer put together: text and tool calls."""

from __future__ import annotations

from typing import Any

from kvverify.live.stream import BadAnswer, Received, short, take_usage


class ChatParts:
    """Takes the parts of an answer one by one. Reasoning that a server sends apart from the answer is counted, and not kept."""

    def __init__(self) -> None:
        self.number = 0
        self._text: list[str] = []
        self._calls: dict[int, list[str]] = {}  # index -> name, then pieces of the arguments
        self._finish = ""
        self._usage: Any = None
        self._first_at = self._last_at = 0.0

    def take(self, part: Any, now: float) -> None:
        """Take the next part, decoded JSON that came ``now``.

        Raises:
            BadAnswer: the part is of another form.
        """
        try:
            if part.get("usage") is not None:
                self._usage = part["usage"]
            for choice in part["choices"]:
                if self._take_delta(choice["delta"]):
                    self._last_at = now
                    self._first_at = self._first_at or now
                if choice.get("finish_reason") is not None:
                    self._finish = str(choice["finish_reason"])
        except (AttributeError, TypeError, KeyError) as error:
            raise BadAnswer(f"part {self.number} of the answer is of another form: {short(part)}") from error
        self.number += 1

    def _take_delta(self, delta: Any) -> bool:
        """Return whether the delta holds anything that was generated."""
        text = delta.get("content")
        if text is not None:
            self._text.append(text)
        for call in delta.get("tool_calls") or ():
            made = self._calls.setdefault(call.get("index") or 0, [""])
            function = call["function"]
            made[0] += function.get("name") or ""
            made.append(function.get("arguments") or "")
        return bool(text or delta.get("tool_calls") or delta.get("reasoning") or delta.get("reasoning_content"))

    def whole(self) -> Received:
        """Return the answer after its last part.

        Raises:
            BadAnswer: no end or no usage (the stream was cut), or text that is none.
        """
        if not self._finish:
            raise BadAnswer(f"the stream was cut: {self.number} parts came, no finish_reason")
        if not {type(text) for text in self._text} <= {str}:
            raise BadAnswer(f"the answer's text is of another form: {short(self._text)}")
        prompt, cached, generated = take_usage(self._usage, None)
        calls = tuple((name, "".join(pieces)) for _, (name, *pieces) in sorted(self._calls.items()))
        text = "".join(self._text)
        return Received(prompt, cached, (), (), (), text, self._first_at, self._last_at, self._finish, generated, calls)
