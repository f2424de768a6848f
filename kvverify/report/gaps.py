"""What a report must admit: what a reader could believe to be verified and was not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kvverify.events import CampaignStarted, FaultPlanted
from kvverify.reasons import Reason
from kvverify.report.words import plural

Faults = Mapping[tuple[str, str], Mapping[str, FaultPlanted]]


_FEW = 3  # refused layouts that are shown with their reasons; the report has all of them


def not_covered(
    reasons: Iterable[Reason],
    campaigns: Mapping[str, CampaignStarted],
    missed: Mapping[str, list[str]],
    met: Mapping[str, Mapping[str, Collection[str]]],
    faults: Faults,
) -> list[str]:
    """Return the gaps of a run in plain lines.

    ``reasons`` are those for which something did not run or was not decided. ``missed`` maps kernel to the layouts that it was
    offered and never met, ``met`` maps a word (format, order, step) to kernel to the names that it met, ``faults`` is the kill table.
    """
    lines = [r.text for r in reasons]
    for kernel, campaign in campaigns.items():
        if layouts := missed.get(kernel):
            of_all = f"{len(layouts)} of {plural(len(campaign.layouts), 'layout')}"
            lines.append(f"kernel {kernel}: {of_all} not met ({_some(layouts)})")
        if len(campaign.refused) <= _FEW:
            lines += [f"kernel {kernel}: layout {name} refused: {why}" for name, why in campaign.refused.items()]
        else:
            refused = plural(len(campaign.refused), "layout")
            lines.append(f"kernel {kernel}: {refused} refused ({_some(campaign.refused)})")
        lines += [f"kernel {kernel}: {note}" for note in campaign.notes]
    for word, by_kernel in met.items():
        lines += _only_elsewhere(word, by_kernel)
    return list(dict.fromkeys([*lines, *_not_shown(faults)]))


def _only_elsewhere(word: str, by_kernel: Mapping[str, Collection[str]]) -> list[str]:
    everything = dict.fromkeys(name for names in by_kernel.values() for name in names)
    missing = {kernel: [name for name in everything if name not in names] for kernel, names in by_kernel.items()}
    return [
        f"kernel {kernel}: {plural(len(names), word)} met only with another kernel ({_some(names)})"
        for kernel, names in missing.items()
        if names
    ]


def _not_shown(faults: Faults) -> list[str]:
    """Return the faults that do not apply to some of the kernels; one that applies to none is a reason already."""
    lines = []
    for (fault, name), row in faults.items():
        absent = [e for e in row.values() if e.outcome == "n/a"]
        if absent and len(absent) < len(row):
            why = "; ".join(dict.fromkeys(e.reason for e in absent if e.reason))
            kernels = ", ".join(e.kernel for e in absent)
            lines.append(f"planted fault {fault} {name} not shown with {kernels}" + (f": {why}" if why else ""))
    return lines


def _some(names: Iterable[str], most: int = 6) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
