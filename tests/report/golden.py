"""One log with everything in it: two kernels that ran, one that did not, a failure found twice, a resume, a kill table."""

from __future__ import annotations

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

HEADLINE = "block 7, layer 3, token 5, head 1, bytes 128–133 (scale, minimum) hold block 3's"
LAYOUTS = {
    "minimax-tq4-LBNHC": ["bf16", "turboquant_4bit_nc"],
    "llama-bf16-LHBNC": ["bf16"],
    "qwen-fp8-BLHNC": ["fp8_e4m3"],
}


def started(*, at: float = 1_790_000_000.0, resumed: bool = False, command: str = "roundtrip") -> RunStarted:
    options = {"examples": 100, "profile": "ci"}
    return RunStarted(at=at, command=command, version="0.1.0", seed=42, options=options, resumed=resumed)


def probed(kernel: str, reason: str = "") -> KernelProbed:
    provenance = {} if reason else {"library": "lmcache", "version": "0.5.6"}
    return KernelProbed(at=1_790_000_001.0, kernel=kernel, available=not reason, reason=reason, provenance=provenance)


def batch(
    kernel: str = "torch",
    layout: str = "llama-bf16-LHBNC",
    number: int = 0,
    *,
    sequences: int = 20,
    compared_bytes: int = 3 * 2**20,
    at: float = 1_790_000_010.0,
) -> BatchFinished:
    return BatchFinished(
        at=at,
        batch=number,
        kernel=kernel,
        layout=layout,
        order=layout.rsplit("-", 1)[-1],
        sequences=sequences,
        steps={"fill": 40, "store": 60, "load": 55, "check": 20},
        formats=dict.fromkeys(LAYOUTS.get(layout, ["bf16"]), sequences),
        lengths={"8": sequences // 2, "12": sequences - sequences // 2},
        compared_bytes=compared_bytes,
        moved_bytes=compared_bytes // 4,
        seconds=0.5,
    )


def failure(kernel: str = "lmcache", *, number: int = 1, fingerprint: str = "abc123") -> FailureFound:
    return FailureFound(
        at=1_790_000_012.0,
        batch=number,
        kernel=kernel,
        layout="minimax-tq4-LBNHC",
        kind="wrong-bytes",
        step=3,
        headline=HEADLINE,
        details=["store [7] -> [0]", "expected 3f 80\nfound    00 00"],
        path=f"failures/b{number}-{fingerprint}.json",
        fingerprint=fingerprint,
    )


def fault(outcome: str, kernel: str = "torch", name: str = "F04", *, reason: str = "") -> FaultPlanted:
    by = "wrong-bytes" if outcome == "killed" else ""
    return FaultPlanted(
        at=1_790_000_013.0,
        fault=name,
        name="short-copy-width",
        kernel=kernel,
        outcome=outcome,
        reason=reason,
        by=by,
        headline=HEADLINE if by else "",
        examples=12,
        seconds=0.4,
    )


def finished(*, interrupted: bool = False, at: float = 1_790_000_020.0) -> RunFinished:
    return RunFinished(at=at, seconds=20.0, interrupted=interrupted)


def campaign(kernel: str) -> CampaignStarted:
    refused = {"deepseek-mla-LBNHC": "no K/V dimension"} if kernel == "lmcache" else {}
    notes = ["host side not checked"] if kernel == "lmcache" else []
    return CampaignStarted(at=1_790_000_002.0, kernel=kernel, layouts=LAYOUTS, refused=refused, notes=notes)


PASSING: list[Event] = [
    started(),
    probed("torch"),
    campaign("torch"),
    *(batch("torch", layout, n) for n, layout in enumerate(LAYOUTS)),
    finished(),
]

GOLDEN: list[Event] = [
    started(),
    probed("torch"),
    probed("lmcache"),
    probed("vllm-triton", "triton cannot be imported: No module named 'triton'"),
    campaign("torch"),
    batch("torch", "minimax-tq4-LBNHC"),
    started(at=1_790_000_011.0, resumed=True),
    probed("torch"),
    probed("lmcache"),
    probed("vllm-triton", "triton cannot be imported: No module named 'triton'"),
    campaign("torch"),
    batch("torch", "llama-bf16-LHBNC", 1),
    campaign("lmcache"),
    failure(),
    batch("lmcache", "minimax-tq4-LBNHC", 1, sequences=5),
    failure(number=4),
    batch("lmcache", "llama-bf16-LHBNC", 2),
    fault("killed"),
    fault("n/a", "lmcache", reason="owns its tier"),
    finished(),
]
