"""The errors a user can meet, and how their one line is written.

    KvverifyError
    ├── UsageError          the command line or a file the user gave is wrong
    │   ├── LayoutError     a model, dtype or layout that no engine supports
    │   ├── CodecError      numbers a format cannot hold, or bytes that are not of this format
    │   └── FailureFileError
    ├── EnvironmentProblem  a folder, library or device is not usable
    └── ContractError       a plug-in does not keep the plug-in contract

Every one of them ends the process with exit code 2 and no traceback. What a kernel under test does wrong is never one of
these: it is a finding, and findings are events.
"""

from __future__ import annotations

from collections.abc import Iterable


class KvverifyError(Exception):
    """Base of all errors shown as one line; ``exit_code`` is what the process ends with."""

    exit_code = 2


class UsageError(KvverifyError):
    """What the user asked for cannot be done as asked."""


class LayoutError(UsageError):
    """A model, KV dtype, engine rule or placement that cannot exist."""


class CodecError(UsageError):
    """Numbers that a KV format cannot hold, or bytes that were not written in this format."""


class FailureFileError(UsageError):
    """A failure file that is damaged or was written by an unknown format version."""


class EnvironmentProblem(KvverifyError):
    """The machine, not the input, stands in the way: unwritable folder, full disk, missing library."""


class ContractError(KvverifyError):
    """A plug-in broke the plug-in contract in a way that makes checking impossible."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return the part of an error line that names the valid words nearest to ``word``.

    >>> nearest("bf61", ["bf16", "fp8"])
    "did you mean 'bf16'? valid: bf16, fp8"
    """
    import difflib

    choices = sorted(valid)
    by_lower = {choice.lower(): choice for choice in choices}
    close = [by_lower[c] for c in difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
    return f"{hint}valid: {', '.join(choices)}"
