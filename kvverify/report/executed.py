"""What a run really executed: the last word of a CI job, which must not pass by having done nothing.

A pytest run in which every test is skipped exits 0, and a campaign on a machine with a GPU can pass without having touched it.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from kvverify.events import BatchFinished, Event, KernelProbed, RunStarted

_DEVICES = ("cpu", "cuda")


def executed_tests(junit: Path) -> int:
    """Return how many tests of a JUnit file ran; skipped ones did not, and no file means none.

    Raises:
        ValueError: the file is not JUnit XML.
    """
    return sum(int(s.get("tests", "0")) - int(s.get("skipped", "0")) for s in _suites(junit))


def skipped_tests(junit: Path) -> int:
    """Return how many tests of a JUnit file were skipped; ValueError where it is none."""
    return sum(int(s.get("skipped", "0")) for s in _suites(junit))


def _suites(junit: Path) -> list[ET.Element]:
    if not junit.is_file():
        return []
    try:
        return list(ET.parse(junit).getroot().iter("testsuite"))  # noqa: S314 - written by the pytest we just ran
    except ET.ParseError as error:
        raise ValueError(f"{junit}: not a JUnit file ({error})") from error


def kernel_devices(events: list[Event]) -> dict[str, str]:
    """Return the device on which each kernel's sequences ran, for kernels that executed at least one.

    A kernel may say its own device in its provenance (``device``: cpu, cuda or cuda:N; a GPU's name says nothing new); else it is
    the run's ``--device``, ``cpu`` where none was given.
    """
    asked = next((str(e.options.get("device") or "cpu") for e in events if isinstance(e, RunStarted)), "cpu")
    said = {e.kernel: own for e in events if isinstance(e, KernelProbed) and (own := _own_device(e))}
    ran = dict.fromkeys(e.kernel for e in events if isinstance(e, BatchFinished) and e.sequences > 0)
    return {kernel: said.get(kernel, asked) for kernel in ran}


def _own_device(probed: KernelProbed) -> str:
    own = str(probed.provenance.get("device", ""))
    return own if own.partition(":")[0] in _DEVICES else ""


def nothing_done(events: list[Event], tests: int, *, gpu: bool) -> list[str]:
    """Return why a passing run must not count as one, nothing where it may.

    ``tests`` is the number of executed tests, ``gpu`` whether this machine has a GPU that torch can use.
    """
    devices = kernel_devices(events)
    reasons = []
    if not devices:
        reasons.append("no kernel executed a sequence")
    elif gpu and not any(device.startswith("cuda") for device in devices.values()):
        ran = ", ".join(f"{kernel} on {device}" for kernel, device in devices.items())
        reasons.append(f"a GPU is visible and no kernel ran on it (ran: {ran})")
    if tests == 0:
        reasons.append("no test executed")
    return reasons
