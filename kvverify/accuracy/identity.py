"""In what two arms differ, and whether they may: one declared variable, and nothing else that decides scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kvverify.accuracy.arm import Arm
from kvverify.events_accuracy import IdentityDiffered

FORMAT, TIER, CONTROL, AGAIN = "format", "tier", "control", "again"
FORMAT_VARIABLE = "kv_cache_dtype"
UNSTATED = "not stated"


def effect_of(role: str, vary: Sequence[str]) -> str:
    """Return what the difference of an arm measures."""
    if role != "candidate":
        return {"tier": TIER, "control": CONTROL}.get(role, AGAIN)
    return FORMAT if any(name.endswith(FORMAT_VARIABLE) for name in vary) else vary[0]


def may_differ(role: str, vary: Sequence[str]) -> tuple[str, ...]:
    """Return the variables in which an arm of this role may differ from its base.

    A control is served from HBM after it was overwritten, and the base asked again may share its batches with others.
    """
    known = {"candidate": tuple(vary), "tier": ("tier",), "control": ("control", "tier"), "again": ("concurrency",)}
    return known[role]


def must_differ(role: str, vary: Sequence[str]) -> tuple[str, ...]:
    """Return the variables of which one at least must differ, or nothing is tested; none for the base asked again."""
    return {"candidate": tuple(vary), "tier": ("tier",), "control": ("control",)}.get(role, ())


def differences(base: Arm, arm: Arm, declared: Collection[str]) -> list[IdentityDiffered]:
    """Return every difference of the two identities, in the order of the base's variables."""
    one, other = base.start.identity, arm.start.identity
    names = [name for name in dict.fromkeys([*one, *other]) if _value(one, name) != _value(other, name)]
    return [
        IdentityDiffered(
            base=base.label,
            arm=arm.label,
            variable=name,
            base_value=_words(one, name),
            arm_value=_words(other, name),
            declared=name in declared,
        )
        for name in names
    ]


def nearest_base(arm: Arm, bases: Sequence[Arm], vary: Sequence[str]) -> Arm:
    """Return the arm from which ``arm`` differs in the fewest undeclared variables, the first of several."""
    declared = may_differ(arm.role, vary)
    return min(bases, key=lambda base: sum(not e.declared for e in differences(base, arm, declared)))


def refusal(arm: Arm, found: Sequence[IdentityDiffered], tested: Sequence[str]) -> str:
    """Return why the two arms are not compared, empty where they may be: ``tested`` are the variables that must differ."""
    if wrong := [e for e in found if not e.declared]:
        texts = ", ".join(f"{e.variable} ({e.base_value} against {e.arm_value})" for e in wrong)
        return f"differs in {texts}, which nobody declared"
    if tested and not {e.variable for e in found} & set(tested):
        names = ", ".join(f"{name} ({_words(arm.start.identity, name)})" for name in tested)
        return f"does not differ in {names}, so nothing is tested"
    return ""


def _value(identity: Mapping[str, Any], name: str) -> Any:
    return identity.get(name, UNSTATED)


def _words(identity: Mapping[str, Any], name: str) -> str:
    return str(_value(identity, name))
