"""Configuration faults that make a cache useless or a test meaningless: what a server says of itself, held against what is known.

Each check looks at effective settings (:class:`EngineInfo`) and at what two requests showed (:class:`Seen`), and answers with a
:class:`ConfigurationChecked`: ok, fault or unknown, what it breaks and what to set. Facts are of vLLM 0.26 and 0.32, LMCache 0.5.3
and 0.5.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvverify.events import ConfigurationChecked
from kvverify.live.engine import EngineInfo

OK, FAULT, UNKNOWN = "ok", "fault", "unknown"
_IN_PROCESS = "LMCacheConnectorV1"
_LEAST_UNITS = 3
_LAST_READ = (0, 32)  # the newest vLLM in which the branch of vllm-project/vllm#46460 was found


@dataclass(frozen=True, slots=True)
class Seen:
    """What requests showed; None: not tried, or the server does not say.

    ``second_hit`` and ``lower_hit`` are the tokens that an identical prompt hit in HBM, and in the lower tier once HBM was empty;
    ``expected`` those it should have. ``repeats``: the same prompt got the same tokens and logprobs from HBM twice.
    """

    second_hit: int | None = None
    lower_hit: int | None = None
    expected: int = 0
    repeats: bool | None = None
    first_hit: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    outcome: str
    found: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, what a fault breaks, and what to set."""

    name: str
    look: Callable[[EngineInfo, Seen], Finding]
    breaks: str
    fix: str


def diagnose(info: EngineInfo, seen: Seen) -> list[ConfigurationChecked]:
    """Return the outcome of every check."""
    results = []
    for check in CHECKS:
        finding = check.look(info, seen)
        bad = finding.outcome != OK
        results.append(
            ConfigurationChecked(
                check=check.name,
                outcome=finding.outcome,
                found=finding.found,
                breaks=check.breaks if bad else "",
                fix=check.fix if bad else "",
            )
        )
    return results


def _connector(info: EngineInfo) -> str:
    return str(info.options.get("kv_connector") or "")


def _is_vllm(info: EngineInfo) -> bool:
    return info.engine.startswith(("vllm", "lab"))


def _extra(info: EngineInfo) -> Mapping[str, Any]:
    extra = info.options.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def _truth(value: Any) -> bool:
    return str(value).strip().lower() in ("1", "true", "yes", "on")


def _packed(info: EngineInfo) -> bool:
    return str(info.kv_cache_dtype or "").startswith(("turboquant", "ultraquant"))


def _hash_seed(info: EngineInfo, seen: Seen) -> Finding:
    ranks, connector = info.ranks, _connector(info)
    if connector.startswith(_IN_PROCESS) or info.engine == "vllm-lmcache-in-process":
        algorithm = _extra(info).get("lmcache.pre_caching_hash_algorithm")
        if ranks == 1 or algorithm not in (None, "builtin"):
            return Finding(OK, f"{ranks} rank(s), hash {algorithm or 'builtin'}: one process, or a stable hash")
        if seen.lower_hit:
            return Finding(OK, f"{ranks} ranks agree on their hashes: {seen.lower_hit} tokens were hit below HBM")
        outcome = FAULT if seen.lower_hit == 0 else UNKNOWN
        return Finding(outcome, f"{ranks} ranks hash with Python's own hash, whose seed no endpoint shows")
    algorithm = info.options.get("lmcache_hash_algorithm")
    if algorithm == "builtin" and info.options.get("lmcache_l2_adapters"):
        return Finding(FAULT, "LMCache's server hashes with Python's own hash, and keeps an L2 that outlives it")
    told = algorithm or info.options.get("prefix_caching_hash_algo")
    return Finding(OK, f"hash {told or 'not told'}, computed in one process")


def _shared_server(info: EngineInfo, seen: Seen) -> Finding:
    models = info.options.get("lmcache_models")
    if models is None:
        if info.engine == "vllm-lmcache":
            return Finding(UNKNOWN, "LMCache's server was not asked; give --lmcache-url")
        return Finding(OK, "no LMCache server")
    names = [str(model[0]) for model in models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return Finding(FAULT, f"{names.count(twice[0])} configurations of {twice[0]} use this LMCache server")
    if seen.first_hit:
        return Finding(FAULT, f"a prompt that was never sent before hit {seen.first_hit} tokens")
    return Finding(OK, f"registered with LMCache's server: {', '.join(names) or 'nobody yet'}")


def _kv_dtype(info: EngineInfo, seen: Seen) -> Finding:
    dtype, device = str(info.kv_cache_dtype or "auto"), str(info.options.get("device") or "")
    if device == "cpu" and info.engine != "lab":
        weights = str(info.options.get("dtype") or "").removeprefix("torch.")
        if _packed(info):
            return Finding(FAULT, f"KV dtype {dtype} on the CPU: accepted, not implemented, answers are garbage")
        if weights == "float32" and dtype in ("float16", "bfloat16"):
            return Finding(FAULT, f"KV dtype {dtype} with {weights} weights on the CPU: accepted, answers are garbage")
    if not device and info.engine != "lab" and _is_vllm(info) and _packed(info):
        return Finding(UNKNOWN, f"KV dtype {dtype}, and the server does not tell its device")
    if seen.repeats is False:
        return Finding(UNKNOWN, f"KV dtype {dtype}: the same prompt, alone, got two different answers from HBM")
    return Finding(OK, f"KV dtype {dtype}" + (f" on {device}" if device else ""))


def _shared_steps(info: EngineInfo, seen: Seen) -> Finding:
    at_once = info.options.get("max_num_seqs")
    if not info.engine.startswith("vllm") or not str(info.kv_cache_dtype or "").startswith("turboquant"):
        return Finding(OK, "no known defect of this KV dtype")
    if at_once == 1:
        return Finding(OK, f"KV dtype {info.kv_cache_dtype}, one sequence at a time")
    if not _version(info) or _version(info) > _LAST_READ:
        return Finding(UNKNOWN, f"KV dtype {info.kv_cache_dtype} with {info.build or 'an untold build'}: not looked at")
    return Finding(FAULT, f"KV dtype {info.kv_cache_dtype} with {info.build}, {at_once or 'several'} sequences at once")


def _prefix_caching(info: EngineInfo, seen: Seen) -> Finding:
    setting = info.options.get("enable_prefix_caching")
    if setting is not None and not _truth(setting):
        return Finding(FAULT, f"enable_prefix_caching is {setting}")
    if seen.second_hit is None:
        return Finding(UNKNOWN, seen.problem or "two identical prompts: nothing tells what the second hit")
    if seen.second_hit < seen.expected or not seen.expected:
        said = "" if setting is None else f", though enable_prefix_caching is {setting}"
        return Finding(
            FAULT, f"of two identical prompts the second hit {seen.second_hit} of {seen.expected} tokens{said}"
        )
    return Finding(OK, f"of two identical prompts the second hit {seen.second_hit} tokens")


def _batch_invariant(info: EngineInfo, seen: Seen) -> Finding:
    if not _truth(info.options.get("VLLM_BATCH_INVARIANT", "0")):
        return Finding(OK, "batch-invariant mode is off")
    backend = str(info.options.get("VLLM_ATTENTION_BACKEND") or "")
    if _packed(info):
        return Finding(
            FAULT, f"VLLM_BATCH_INVARIANT with KV dtype {info.kv_cache_dtype}, whose kernels have no such mode"
        )
    if backend in ("FLASHINFER", "TRITON_MLA"):
        return Finding(
            FAULT, f"VLLM_BATCH_INVARIANT with {backend} turns prefix caching off, with one warning in the log"
        )
    return Finding(OK, f"batch-invariant mode with KV dtype {info.kv_cache_dtype or 'auto'}")


def _failure_policy(info: EngineInfo, seen: Seen) -> Finding:
    policy = info.options.get("kv_load_failure_policy")
    if policy == "recompute":
        return Finding(FAULT, "kv_load_failure_policy is recompute")
    if policy is None and _connector(info):
        return Finding(OK, "kv_load_failure_policy is not told; vLLM's default is fail")
    return Finding(OK, f"kv_load_failure_policy is {policy}" if policy else "no connector that could fail")


def _connector_works(info: EngineInfo, seen: Seen) -> Finding:
    connector = _connector(info)
    if connector.startswith(_IN_PROCESS):
        if info.options.get("device") == "cpu":
            return Finding(FAULT, f"{connector} on the CPU runs in degraded mode, without a tier")
        if _version(info) >= (0, 26):
            return Finding(
                FAULT, f"{connector} with {info.build} misreads its KV layout: wrong bytes, full hit counters"
            )
    if _is_vllm(info) and info.dev_endpoints and not connector:
        return Finding(FAULT, "no KV connector: there is no lower tier")
    if seen.lower_hit is None:
        return Finding(UNKNOWN, seen.problem or "the server does not tell what it hit below HBM")
    if seen.lower_hit < seen.expected or not seen.expected:
        found = (
            f"once HBM was empty, a known prompt hit {seen.lower_hit} of {seen.expected} tokens in {info.lower_tier}"
        )
        return Finding(FAULT, found)
    return Finding(OK, f"once HBM was empty, a known prompt hit {seen.lower_hit} tokens in {info.lower_tier}")


def _version(info: EngineInfo) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", info.build)
    return tuple(int(part) for part in found.groups()) if found else ()


def _sizes(info: EngineInfo, seen: Seen) -> Finding:
    block, unit, context = info.block_tokens, info.hit_tokens, info.max_context
    if not block or not unit:
        return Finding(UNKNOWN, "the server does not tell its block, or the unit in which the lower tier is hit")
    if unit % block:
        return Finding(FAULT, f"the lower tier's unit of {unit} tokens is no multiple of the block of {block}")
    if context is not None and context <= _LEAST_UNITS * unit:
        return Finding(FAULT, f"{_LEAST_UNITS} units of {unit} tokens do not fit the context of {context}")
    capacity = info.capacity_tokens.get("hbm")
    if capacity is not None and capacity <= _LEAST_UNITS * unit:
        return Finding(FAULT, f"HBM holds {capacity} tokens, fewer than {_LEAST_UNITS} units of {unit}")
    return Finding(OK, f"blocks of {block} tokens, hits in units of {unit}")


def _dev_endpoints(info: EngineInfo, seen: Seen) -> Finding:
    if not _is_vllm(info) or info.dev_endpoints:
        return Finding(OK, ", ".join(info.dev_endpoints) or f"{info.engine} needs none")
    return Finding(FAULT, "reset_prefix_cache, server_info and collective_rpc are not served")


def _log_stats(info: EngineInfo, seen: Seen) -> Finding:
    stats = info.options.get("log_stats")
    if stats is None:
        return Finding(OK, "not an option of this engine") if not _is_vllm(info) else Finding(UNKNOWN, "not told")
    return Finding(OK, "metrics are served") if _truth(stats) else Finding(FAULT, "the server has no vllm: metrics")


CHECKS = (
    Check(
        "hash seed",
        _hash_seed,
        "ranks, or a restarted server, give one block different keys: the tier fills up and is never hit, without an error",
        "PYTHONHASHSEED=0 for every process, or LMCACHE_PRE_CACHING_HASH_ALGORITHM=sha256_cbor; blake3 for LMCache's server",
    ),
    Check(
        "shared cache server",
        _shared_server,
        "its keys hold model and rank but no KV dtype or format: one configuration is served another's bytes",
        "an LMCache server, or a cache_salt, for each configuration; clear the server when the configuration changes",
    ),
    Check(
        "KV dtype",
        _kv_dtype,
        "answers are wrong, or not repeatable, whichever tier they come from; no comparison of tiers means anything",
        "a --kv-cache-dtype that the platform implements: auto, or on the CPU the weights' own dtype",
    ),
    Check(
        "shared steps",
        _shared_steps,
        "a request whose beginning is cached ignores it when a new prompt as long is in its step: wrong answers, and wrong KV in every tier "
        "(vllm-project/vllm#46460)",
        "--max-num-seqs 1, or a vLLM in which that is mended; kvverify isolation --beside 8 shows which",
    ),
    Check(
        "prefix caching",
        _prefix_caching,
        "nothing is ever hit: every request is computed, and a comparison of tiers compares one computation with another",
        "start without --no-enable-prefix-caching; look for a warning that the backend or batch-invariant mode turned it off",
    ),
    Check(
        "batch-invariant mode",
        _batch_invariant,
        "the server refuses requests, or runs without a prefix cache, and is compared with one that has it",
        "unset VLLM_BATCH_INVARIANT, or use bf16 KV with FLASH_ATTN or TRITON_ATTN",
    ),
    Check(
        "load failure policy",
        _failure_policy,
        "a load that failed is computed anew without a word, while hit counters say that it was loaded",
        '"kv_load_failure_policy": "fail" in --kv-transfer-config',
    ),
    Check(
        "lower tier",
        _connector_works,
        "the tier below HBM is not used, or gives wrong bytes: its memory is lost, and every test of it is empty",
        "a connector that works with this engine: OffloadingConnector or LMCacheMPConnector; see «degraded mode» in the log",
    ),
    Check(
        "block and chunk sizes",
        _sizes,
        "prompts are shorter than what the lower tier keeps, or the units do not fit each other: it can never be hit",
        "a smaller --chunk-size (LMCache) or block_size (offloading), a multiple of the engine's block; a longer context",
    ),
    Check(
        "dev endpoints",
        _dev_endpoints,
        "HBM cannot be flushed and settings cannot be read; only filler requests can force a prompt out",
        "VLLM_SERVER_DEV_MODE=1 in the environment of a server under test (not of one that strangers reach)",
    ),
    Check(
        "log statistics",
        _log_stats,
        "hits and loaded bytes are not counted, so that nothing can be proved",
        "start without --disable-log-stats",
    ),
)
