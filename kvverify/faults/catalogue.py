"""The catalogue of planted faults: what a checker of KV copies must be able to see.

F01 to F22 are the public ones; L, V and S in the origins of other tools stand for LMCache/LMCache, vllm-project/vllm and
sgl-project/sglang. K faults are our own.
"""

from __future__ import annotations

from functools import cache

from kvverify.errors import UsageError, nearest
from kvverify.faults import own, races, reported
from kvverify.faults.fault import Fault

_ACCESSORS = "no adapter has accessors that wait layer by layer"
_SERVER = "needs a live server"
_LENT = ("wrong-bytes", "early-return", "contract")
_RACE = ("wrong-bytes", "early-return", "race")


@cache
def catalogue() -> tuple[Fault, ...]:
    """Return all faults in the order of their ids."""
    return (*_COPY_FAULTS, *_faults_elsewhere(), *_OWN_FAULTS)


def fault_named(name: str) -> Fault:
    """Return the fault with the id or name ``name``, whatever its case.

    Raises:
        UsageError: there is none; the message names the nearest ids.
    """
    wanted = name.lower()
    for fault in catalogue():
        if wanted in (fault.id.lower(), fault.name):
            return fault
    words = [fault.name if "-" in name else fault.id for fault in catalogue()]
    raise UsageError(f"unknown fault {name!r}: {nearest(name, words)}")


def plantable_named(name: str, device: str = "cpu") -> Fault:
    """Return the fault called ``name`` if a copy kernel on ``device`` (cpu or cuda) can carry it.

    Raises:
        UsageError: there is none of that name, or it needs a GPU's stream, a live server, or what no kernel has.
    """
    fault = fault_named(name)
    if reason := fault.out_of_reach(device):
        raise fault.not_plantable(reason)
    return fault


_COPY_FAULTS: tuple[Fault, ...] = (
    Fault(
        "F01",
        "strided-as-contiguous",
        "a strided view (cross-layer, heads outside, split K/V) is addressed as contiguous",
        ("LMCache/LMCache#2374", "LMCache/LMCache#4463", "vllm-project/vllm-xpu-kernels#429"),
        "results",
        reported.StridedAsContiguous,
        reported.has_scattered_blocks,
    ),
    Fault(
        "F02",
        "kv-axis-swap",
        "K/V-first and blocks-first are exchanged",
        ("LMCache/LMCache#2308", "LMCache/LMCache#2495"),
        "results",
        reported.AxisSwap,
        reported.has_split_layers,
    ),
    Fault(
        "F03",
        "kernel-block-stride",
        "the block stride is taken from the kernel block",
        ("vllm-project/vllm#51718", "vllm-project/vllm#30692", "vllm-project/vllm#28677"),
        "views",
        reported.KernelBlockStride,
        reported.has_kernel_blocks,
    ),
    Fault(
        "F04",
        "short-copy-width",
        "the copy is as wide as the values; inline scales behind them are cut off",
        ("vllm-project/vllm#48411",),
        "results",
        reported.short_copy_width,
        reported.has_trailing_scales,
    ),
    Fault(
        "F05",
        "sidecar-dropped",
        "scales, norms, minima and zero points are not copied",
        (
            "sgl-project/sglang#39089",
            "sgl-project/sglang#36121",
            "ROCm/ATOM#2146",
            "kvcache-ai/Mooncake#2236",
        ),
        "results",
        reported.sidecar_dropped,
        reported.has_scales,
    ),
    Fault(
        "F06",
        "logical-element-size",
        "bytes are counted in elements of the logical dtype: half of each cell is copied",
        ("ovg-project/kvcached#387", "ovg-project/kvcached#424", "kekzl/imp#942"),
        "results",
        reported.logical_element_size,
        reported.has_byte_layers,
    ),
    Fault(
        "F07",
        "word-remainder",
        "token rows are copied in 8-byte words without the remainder",
        ("LMCache/LMCache#2309", "vllm-project/vllm#45466", "kekzl/imp#1344"),
        "results",
        reported.word_remainder,
        reported.has_odd_rows,
    ),
    Fault(
        "F08",
        "int32-offset",
        "block id times stride is computed in 32 bits",
        ("vllm-project/vllm#50427", "vllm-project/vllm#52109", "ROCm/aiter#4474"),
        "results",
        reported.Int32Offset,
        reported.crosses_int32,
    ),
    Fault(
        "F09",
        "subblock-skip-side",
        "a load that starts inside a slot skips on the wrong side",
        ("vllm-project/vllm#28951",),
        "ids",
        reported.SkipSide,
        reported.has_load_part,
        chunked=True,
    ),
    Fault(
        "F10",
        "full-hit-tail",
        "the last token of a load is left out",
        ("LMCache/LMCache#4614", "LMCache/LMCache#2540", "vllm-project/vllm#52617"),
        "results",
        reported.full_hit_tail,
        reported.has_tokens,
    ),
    Fault(
        "F11",
        "layer-shift",
        "a load brings layer i + 1's bytes to layer i",
        ("vllm-project/vllm-ascend#10202", "vllm-project/vllm-ascend#11829"),
        "results",
        reported.LayerShift,
        reported.has_layers_alike,
    ),
    Fault(
        "F12",
        "store-no-wait",
        "a store does not wait for the kernels that produce its blocks",
        (
            "vllm-project/vllm#31210",
            "vllm-project/vllm#31341",
            "vllm-project/vllm#45704",
            "vllm-project/vllm#46278",
            "vllm-project/vllm#39306",
        ),
        "order",
        races.store_no_wait,
        races.orders_itself("store"),
        only_on="cuda",
        checks=_RACE,
    ),
    Fault(
        "F13",
        "load-no-wait",
        "a load does not wait for readers of the block that it re-uses",
        ("vllm-project/vllm#47282", "sgl-project/sglang#36738"),
        "order",
        races.load_no_wait,
        races.orders_itself("load"),
        only_on="cuda",
        checks=_RACE,
    ),
    Fault(
        "F15",
        "realloc-pending-store",
        "a store reads its blocks after they were given to somebody else",
        ("vllm-project/vllm#29870", "vllm-project/vllm#46951", "vllm-project/vllm#52211"),
        "order",
        races.PendingStore,
        checks=_RACE,
    ),
    Fault(
        "F16",
        "swallowed-error",
        "the third transfer of a load fails and counts as loaded",
        ("ai-dynamo/dynamo#15079", "vllm-project/vllm#52234", "ai-dynamo/nixl#1696"),
        "ids",
        reported.SwallowedError,
        reported.has_third_slot,
    ),
    Fault(
        "F21",
        "noop-load",
        "a load does nothing and returns success",
        ("vllm-project/vllm#53498", "ggml-org/llama.cpp#26676"),
        "order",
        reported.NoLoad,
    ),
    Fault(
        "F21b",
        "noop-store",
        "a store does nothing and returns success",
        ("vllm-project/vllm#53498", "LMCache/LMCache#3009"),
        "order",
        reported.NoStore,
    ),
    Fault(
        "F21c",
        "store-to-nowhere",
        "a store goes where no load looks",
        ("LMCache/LMCache#3009",),
        "results",
        reported.StoreToNowhere,
    ),
)


def _faults_elsewhere() -> tuple[Fault, ...]:
    rows = (
        ("F14", "accessor-no-wait", "one accessor misses the per-layer wait", _ACCESSORS),
        ("F17", "key-tenant-fields", "the key omits adapter, image or salt", _SERVER),
        ("F18", "key-format-fields", "the key omits layout, cache dtype or TP size", _SERVER),
        ("F19", "unstable-hash", "the hash has a per-process seed", _SERVER),
        ("F20", "reset-hbm-only", "reset clears HBM only", _SERVER),
        ("F22", "mixed-batch-prefix", "the cached prefix is ignored when a cold prefill shares the batch", _SERVER),
    )
    return tuple(Fault(id_, name, text, elsewhere=why) for id_, name, text, why in rows)


_OWN_FAULTS: tuple[Fault, ...] = (
    Fault(
        "K01",
        "through-float",
        "16-bit values pass through float32: NaN is quieted",
        (),
        "results",
        own.ThroughFloat,
        own.has_halves,
    ),
    Fault(
        "K02",
        "minus-zero",
        "float32 minus zero becomes zero",
        (),
        "results",
        own.MinusZero,
        own.has_floats,
    ),
    Fault("K03", "zeros-skipped", "cells of zeros are not written", (), "results", own.ZerosSkipped),
    Fault(
        "K04",
        "host-int32",
        "host slot times row stride is computed in 32 bits",
        (),
        "results",
        own.HostInt32,
        own.has_far_slots,
        only_on="cpu",
    ),
    Fault(
        "K05",
        "sorts-arguments",
        "the caller's list of block ids is sorted in place",
        (),
        "ids",
        own.SortsItsArguments,
        checks=_LENT,
    ),
    Fault("K06", "reads-ids-late", "the caller's lists are read in wait()", (), "order", own.ReadsIdsLate),
    Fault(
        "K07",
        "turns-lent-views",
        "two dimensions of a lent view are exchanged in place",
        (),
        "views",
        own.TurnsLentViews,
        checks=_LENT,
    ),
    Fault(
        "K08",
        "takes-what-it-reads",
        "a load damages a slot that was just stored",
        (),
        "results",
        own.TakesWhatItReads,
    ),
    Fault("K09", "loads-twice", "the next store repeats the last load", (), "order", own.LoadsTwice),
    Fault("K10", "stale-cache", "a slot is cached at its first load and never again", (), "results", own.StaleCache),
    Fault(
        "K11",
        "drops-repeated",
        "a slot named twice in a load is read once",
        (),
        "ids",
        own.DropsRepeated,
        own.has_two_whole_slots,
    ),
    Fault(
        "K12",
        "seventeenth-dropped",
        "a store of 17 slots forgets the last",
        (),
        "ids",
        own.SeventeenthDropped,
        own.has_seventeen,
    ),
    Fault(
        "K13",
        "already-resident",
        "a block that got a slot once is not loaded again",
        (),
        "ids",
        own.AlreadyResident,
    ),
    Fault("K14", "wipes-on-close", "close() wipes the host memory it was lent", (), "order", own.WipesOnClose),
    Fault("K15", "late-by-thread", "the last block arrives after wait()", (), "order", own.LateByThread),
    Fault("K16", "one-cell", "one head of one token in one layer is left out", (), "results", own.one_cell),
    Fault(
        "K17",
        "zero-point-bits",
        "the low mantissa bits of int4 scales are lost",
        (),
        "results",
        own.ZeroPointBits,
        own.has_zero_points,
    ),
    Fault(
        "K18",
        "keys-and-values",
        "K and V are exchanged on a load",
        (),
        "results",
        own.KeysAndValues,
        own.has_equal_halves,
    ),
    Fault("K19", "last-block", "the last block of the pool is mistaken for its neighbour", (), "ids", own.LastBlock),
    Fault("K20", "first-group", "the block table's group is ignored", (), "ids", own.FirstGroup, own.has_groups),
    Fault(
        "K21",
        "padded-part",
        "a chunk that is not full is filled up with its last block id",
        (),
        "ids",
        own.PaddedPart,
        own.has_partial_slots,
        chunked=True,
    ),
    Fault(
        "K22",
        "done-too-early",
        "done() says yes as soon as the copies were asked for",
        (),
        "order",
        races.DoneTooEarly,
        races.has_done,
        only_on="cuda",
        checks=_RACE,
    ),
    Fault(
        "K23",
        "wait-too-short",
        "wait() returns before the copies have read and written",
        (),
        "order",
        races.WaitTooShort,
        races.has_done,
        only_on="cuda",
        checks=_RACE,
    ),
    Fault(
        "K24",
        "last-not-waited",
        "wait() forgets the last of several transfers",
        (),
        "order",
        races.LastNotWaited,
        checks=_RACE,
    ),
)
