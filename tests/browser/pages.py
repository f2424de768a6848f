"""The pages that are tried in a browser: reports of the committed runs, and of runs with hostile names and with very many events."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvverify.cli.main import run as kvverify
from kvverify.event_json import to_json
from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    Event,
    FailureFound,
    FaultPlanted,
    KernelProbed,
    RunFinished,
    RunStarted,
)
from kvverify.report.html import render_html
from kvverify.report.log import read_events
from kvverify.report.summary import summarise

RESULTS = Path(__file__).parents[2] / "results"
MANY = 10_000
ORDERS = ("LBNHC", "LHBNC", "BLHNC", "LBHNC")
FORMATS = ("bf16", "turboquant_4bit_nc", "fp8_e4m3", "turboquant_k8v4")
SIGNED_OFF = (
    *(f"h200/{name}" for name in ("roundtrip", "selftest", "offload-dma", "live/native-bf16", "live/native-tq4")),
    *(
        f"h200/live/{name}"
        for name in ("lmcache-server", "lmcache-in-process", "isolation-bf16", "isolation-tq4-first")
    ),
    *("h200/live/doctor", "codecs/verify-h200"),
)
ROLLED_BACK = ("rollout/baseline/records", "rollout/candidate-lossy/records")
HOSTILE = "<img src=http://kvverify.invalid/x onerror=alert(1)>\"'&\x1b[31m" + "long" * 60


def of_run(run: str, folder: Path) -> Path:
    """Make the report of a committed run again."""
    return written(folder, read_events(RESULTS / run))


def of_events(events: Callable[[], list[Event]], folder: Path) -> Path:
    """Make the report of invented events."""
    return written(folder, events())


def signed_off(runs: tuple[str, ...], policy: str, folder: Path) -> Path:
    """Make the sign-off of committed runs by a shipped policy."""
    words = ["report", *(str(Path("results") / run) for run in runs), "--policy", policy, "--out", str(folder)]
    with contextlib.chdir(RESULTS.parent), contextlib.redirect_stdout(io.StringIO()):
        kvverify(words)  # its exit code is the verdict, and the page is there whatever that is
    return folder / "signoff.html"


def signed_off_many(folder: Path) -> Path:
    """Make the sign-off of two runs with 10,000 events together."""
    runs = [folder / "first", folder / "second"]
    for seed, run in enumerate(runs):
        run.mkdir(parents=True)
        events = many(MANY // 2, seed)
        (run / "events.ndjson").write_text("".join(f"{json.dumps(to_json(event))}\n" for event in events))
    return signed_off(tuple(str(run) for run in runs), "copy-kernels", folder / "signoff")


def written(folder: Path, events: list[Event]) -> Path:
    """Write the page of a run and return its path."""
    folder.mkdir(parents=True)
    page = folder / "report.html"
    page.write_text(render_html(summarise(events), Path("runs/shown")))
    return page


def hostile() -> list[Event]:
    """Return a run whose every free text tries to break out of the page."""
    layouts = {HOSTILE: [HOSTILE]}
    return [
        RunStarted(at=1.0, command="roundtrip", version=HOSTILE, seed=1, options={HOSTILE: HOSTILE}),
        KernelProbed(at=1.0, kernel=HOSTILE, available=True, provenance={HOSTILE: HOSTILE}),
        KernelProbed(at=1.0, kernel="other", available=False, reason=HOSTILE),
        CampaignStarted(at=1.0, kernel=HOSTILE, layouts=layouts, refused={HOSTILE + "2": HOSTILE}, notes=[HOSTILE]),
        _failure(0, HOSTILE, HOSTILE),
        _batch(0, HOSTILE, HOSTILE, HOSTILE),
        FaultPlanted(at=1.0, fault="F04", name=HOSTILE, kernel=HOSTILE, outcome="survived", reason=HOSTILE),
        RunFinished(at=2.0, seconds=1.0, interrupted=True),
    ]


def many(count: int = MANY, seed: int = 0) -> list[Event]:
    """Return a campaign of that many events: four kernels on 400 layouts, a hundred failures."""
    kernels = ["torch", "lmcache", "vllm-triton", "memcpy-batch"]
    names = [f"{ORDERS[n % 4].lower()}-bf16x2+tq{n % 7}x{n}-h{1 << n % 4}-d128-n16" for n in range(400)]
    layouts = {name: ["bf16", FORMATS[n % 4]] for n, name in enumerate(names)}
    events: list[Event] = [
        RunStarted(at=1.0, command="roundtrip", version="0.1.0", seed=seed, options={"profile": "soak"})
    ]
    events += [KernelProbed(at=1.0, kernel=kernel, available=True, provenance={"library": "x"}) for kernel in kernels]
    events += [CampaignStarted(at=1.0, kernel=kernel, layouts=layouts, refused={}) for kernel in kernels]
    events += [_failure(n, kernels[1], names[n]) for n in range(100)]
    left = count - len(events) - 1
    events += [_batch(n, kernels[n % 4], names[n // 4 % 400], FORMATS[n // 4 % 4]) for n in range(left)]
    return [*events, RunFinished(at=2.0, seconds=3600.0)]


def _batch(number: int, kernel: str, layout: str, fmt: str) -> BatchFinished:
    return BatchFinished(
        at=1.0,
        batch=number,
        kernel=kernel,
        layout=layout,
        order=ORDERS[number % 4],
        sequences=8,
        steps={"fill": 40, "store": 60, "load": 55, "check": 20},
        formats={"bf16": 8, fmt: 8},
        lengths={str(4 + number % 40): 8},
        compared_bytes=3 << 20,
        moved_bytes=1 << 20,
        seconds=0.5,
    )


def _failure(number: int, kernel: str, layout: str) -> FailureFound:
    return FailureFound(
        at=1.0,
        batch=number,
        kernel=kernel,
        layout=layout,
        kind="wrong-bytes",
        step=3,
        headline=f"block 7, layer 3, token 5, head 1, bytes 128-133 (scale, minimum) hold block {number}'s",
        details=["step 0: fill([1, 4, 6, 0, 5, 3], 0)", "step 1: store([7], [0])", layout],
        path=f"failures/{number:05}.json",
        fingerprint=f"{number:08x}",
    )


PAGES: dict[str, Callable[[Path], Path]] = {
    "pass": partial(of_run, "roundtrip-cpu"),
    "fail": partial(of_run, "h200/roundtrip"),
    "kill-table": partial(of_run, "selftest"),
    "codecs": partial(of_run, "codecs/verify-cpu"),
    "tier-diff": partial(of_run, "live-cpu/lmcache"),
    "tier-diff-fail": partial(of_run, "live-cpu/lmcache-skipped"),
    "inconclusive": partial(of_run, "live-cpu/no-connector"),
    "doctor": partial(of_run, "live-cpu/doctor"),
    "hostile": partial(of_events, hostile),
    "many": partial(of_events, many),
    "sign-off": partial(signed_off, SIGNED_OFF, "release"),
    "rollout": partial(signed_off, ROLLED_BACK, "shadow"),
    "sign-off-kernels": partial(signed_off, ("roundtrip-cpu", "selftest"), "copy-kernels"),
    "sign-off-many": signed_off_many,
}
