"""What changed between two releases: every check of the one against that of the same name in the other.

A side is run folders, whose verdicts are computed anew from their events, or a signoff.json, whose verdicts are those it states.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvverify.errors import UsageError
from kvverify.events import Verdict
from kvverify.reasons import SEVERITY
from kvverify.report.signoff.checks import Check, checks
from kvverify.report.signoff.document import FORMAT, VERSION
from kvverify.report.signoff.gather import gather
from kvverify.report.signoff.subject import Kernel, Subject, subject
from kvverify.report.signoff.write import FILES

JSON = FILES[3]
_WORDS_OF_CHECKS = ("KV format", "tiers")  # checks are named by them


@dataclass(frozen=True, slots=True)
class Side:
    """One release: its checks by name. ``stated``: read from a sign-off, and not computed from events.

    ``tested`` says what was tested: model, engine and the like, and the library of each kernel.
    """

    name: str
    checks: Mapping[str, Check]
    stated: bool
    tested: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One check that is not as it was. ``old`` or ``new`` is None where that side has none of this name."""

    name: str
    old: Check | None
    new: Check | None


@dataclass(frozen=True, slots=True)
class Changes:
    """``undecided`` are checks that now say neither yes nor no; ``lost`` said something and are not there any more."""

    worse: list[Change] = field(default_factory=list)
    undecided: list[Change] = field(default_factory=list)
    lost: list[Change] = field(default_factory=list)
    better: list[Change] = field(default_factory=list)
    new: list[Change] = field(default_factory=list)
    same: int = 0

    @property
    def verdict(self) -> Verdict:
        """FAIL where something is worse; INCONCLUSIVE where that cannot be said of every check, or there is none in common."""
        if self.worse:
            return Verdict.FAIL
        nothing = not (self.same or self.better)
        return Verdict.INCONCLUSIVE if self.undecided or self.lost or nothing else Verdict.PASS


def read_side(paths: Sequence[Path]) -> Side:
    """Return one side: a signoff.json, the folder of a sign-off, or run folders.

    Raises:
        UsageError: what is there is none of these, or several things of which one is a sign-off.
    """
    name = ", ".join(str(path) for path in paths)
    documents = [found for path in paths if (found := _signoff_file(path)) is not None]
    if not documents:
        runs = gather(paths)
        return Side(name, checks(runs), stated=False, tested=_tested(subject(runs)))
    if len(paths) > 1:
        raise UsageError(f"{name}: {documents[0]} is a sign-off and stands for a whole release; give it alone")
    return _stated(name, documents[0])


def _signoff_file(path: Path) -> Path | None:
    if path.is_file():
        return path
    inside = path / JSON
    return inside if inside.is_file() and not (path / "events.ndjson").exists() else None


def _tested(about: Subject) -> dict[str, str]:
    facts = {word: ", ".join(values) for word, values in about.facts.items() if word not in _WORDS_OF_CHECKS and values}
    libraries: dict[str, list[str]] = {}
    for kernel in about.kernels:
        libraries.setdefault(f"library of {kernel.name}", []).append(kernel.library)
    return {**facts, **{word: ", ".join(dict.fromkeys(names)) for word, names in libraries.items()}}


def moved(old: Side, new: Side) -> list[tuple[str, str, str]]:
    """Return what is another thing in ``new`` than in ``old``: (word, old, new), of what both sides tell."""
    both = [word for word in old.tested if word in new.tested]
    return [(word, old.tested[word], new.tested[word]) for word in both if old.tested[word] != new.tested[word]]


def _stated(name: str, path: Path) -> Side:
    try:
        data: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read as JSON ({error}); expected the {JSON} of a sign-off, or a run folder"
        ) from error
    kind = data.get("format") if isinstance(data, dict) else None
    if kind != FORMAT or data.get("version") != VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise UsageError(
            f"{path}: format {kind!r}, version {version!r}; expected a {JSON} of version {VERSION}, or a run folder"
        )
    try:
        made = {check: _check(entry) for check, entry in dict(data["checks"]).items()}
        about = dict(data.get("tested") or {})
        kernels = [Kernel(**entry) for entry in about.get("kernels", [])]
        return Side(name, made, stated=True, tested=_tested(Subject(dict(about.get("facts", {})), kernels, [])))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: a check is damaged ({error}); make the sign-off again") from error


def _check(entry: Mapping[str, Any]) -> Check:
    bounds = [None if entry[end] is None else float(entry[end]) for end in ("low", "high")]
    return Check(Verdict(entry["verdict"]), str(entry["figure"]), *bounds)


def compare(old: Side, new: Side) -> Changes:
    """Return what changed from ``old`` to ``new``."""
    found = Changes()
    same = 0
    for name in dict.fromkeys([*old.checks, *new.checks]):
        change = Change(name, old.checks.get(name), new.checks.get(name))
        kind = _kind(change)
        if kind:
            getattr(found, kind).append(change)
        else:
            same += 1
    return dataclasses.replace(found, same=same)


def _kind(change: Change) -> str:
    """Return the list that a change belongs to, empty where nothing changed."""
    old, new = change.old, change.new
    if old is None or new is None:
        # a check that fails for the first time is worse than none; one that failed and is gone was not mended
        fails = new is not None and new.verdict in (Verdict.FAIL, Verdict.ERROR)
        return "worse" if fails else "new" if old is None else "lost"
    if old.verdict is not new.verdict:
        if new.verdict is Verdict.INCONCLUSIVE:
            return "undecided"
        return "worse" if SEVERITY.index(new.verdict) > SEVERITY.index(old.verdict) else "better"
    if None not in (old.low, old.high, new.low, new.high):
        if new.high < old.low:  # type: ignore[operator]  # not None, see above
            return "worse"
        if new.low > old.high:  # type: ignore[operator]
            return "better"
    return ""


def to_json(changes: Changes, old: Side, new: Side) -> dict[str, Any]:
    """Return the changes as one JSON document."""
    kinds = ("worse", "undecided", "lost", "better", "new")
    return {
        "verdict": changes.verdict,
        "old": {"name": old.name, "checks": len(old.checks), "stated": old.stated},
        "new": {"name": new.name, "checks": len(new.checks), "stated": new.stated},
        **{kind: [dataclasses.asdict(change) for change in getattr(changes, kind)] for kind in kinds},
        "same": changes.same,
        "tested": [{"what": word, "old": before, "new": after} for word, before, after in moved(old, new)],
    }
