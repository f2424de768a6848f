"""Load vLLM's kernel modules with one change each and print what the comparison says of it, one JSON line a change.

Run as ``python -m tests.conformance.altered FOLDER``, with Triton's interpreter on: importing vLLM takes long, so that one process
tries all changes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

STORE, DEQUANT = "_store_module", "_dequant_module"

TABLE = "        midpoints,\n        kv_cache,"  # the arguments of the store kernel
THREE_BITS = "__import__('kvverify.codecs.lloyd_max', fromlist=['midpoints']).midpoints(D, 3)"

# name: (module, text that stands there once or once for each width of V, what replaces it, preset)
CHANGES: dict[str, tuple[str, str, str, str]] = {
    "key nibbles swapped": (
        STORE,
        "((idx_pairs & 0xF) << shifts_4",
        "((idx_pairs & 0xF) << (4 - shifts_4)",
        "turboquant_4bit_nc",
    ),
    "value nibbles swapped": (
        STORE,
        "((q_pairs & 0xF) << shifts_4",
        "((q_pairs & 0xF) << (4 - shifts_4)",
        "turboquant_4bit_nc",
    ),
    "norm a little longer": (
        STORE,
        "tl.load(Norms_ptr + pid).to(tl.float16)",
        "(tl.load(Norms_ptr + pid) * 1.001).to(tl.float16)",
        "turboquant_4bit_nc",
    ),
    "norm behind the value": (STORE, "norm_offset = MSE_BYTES", "norm_offset = MSE_BYTES + 1", "turboquant_4bit_nc"),
    "scale divided by 16": (STORE, "(val_max - val_min) / 15.0", "(val_max - val_min) / 16.0", "turboquant_4bit_nc"),
    "scale of 3 bits divided by 8": (
        STORE,
        "(val_max - val_min) / 7.0",
        "(val_max - val_min) / 8.0",
        "turboquant_3bit_nc",
    ),
    "value truncated": (
        STORE,
        "((val_vec - val_min) / v_scale + 0.5).to(tl.int32), 0), 15",
        "((val_vec - val_min) / v_scale).to(tl.int32), 0), 15",
        "turboquant_4bit_nc",
    ),
    "highest index never used": (
        STORE,
        "tl.minimum(lo, N_CENTROIDS - 1)",
        "tl.minimum(lo, N_CENTROIDS - 2)",
        "turboquant_3bit_nc",
    ),
    "one step of the search left out": (
        STORE,
        "for _ in range(MSE_BITS)",
        "for _ in range(MSE_BITS - 1)",
        "turboquant_3bit_nc",
    ),
    "scale one step up": (
        STORE,
        "sc_u16 = sc_f16.to(tl.uint16, bitcast=True)",
        "sc_u16 = sc_f16.to(tl.uint16, bitcast=True) + 1",
        "turboquant_4bit_nc",
    ),
    "minimum one step up": (
        STORE,
        "zr_u16 = zr_f16.to(tl.uint16, bitcast=True)",
        "zr_u16 = zr_f16.to(tl.uint16, bitcast=True) + 1",
        "turboquant_4bit_nc",
    ),
    "minimum of 3 bits one step up": (
        STORE,
        "zr_u16 = zr_f16.to(tl.uint16, bitcast=True)",
        "zr_u16 = zr_f16.to(tl.uint16, bitcast=True) + 1",
        "turboquant_3bit_nc",
    ),
    "sign of the rotated key": (STORE, "y = x_hat @ PiT", "y = -(x_hat @ PiT)", "turboquant_4bit_nc"),
    "table of 3 bits": (
        STORE,
        TABLE,
        TABLE.replace("midpoints", f"torch.cat([torch.from_numpy({THREE_BITS}), torch.full((8,), float('inf'))])"),
        "turboquant_4bit_nc",
    ),
    "table of twice the head size": (
        STORE,
        TABLE,
        TABLE.replace("midpoints", "midpoints * 0.5**0.5"),
        "turboquant_4bit_nc",
    ),
    "norm correction left out": (DEQUANT, "k_mse = k_mse * c_inv_norm", "k_mse = k_mse", "turboquant_4bit_nc"),
    "decoded norm forgotten": (DEQUANT, "k_recon = vec_norm * k_mse", "k_recon = k_mse", "turboquant_4bit_nc"),
    "block table ignored": (
        DEQUANT,
        "page_idx = pos // BLOCK_SIZE\n    page_off = pos % BLOCK_SIZE\n    block_num = tl.load(Block_table_ptr + bid * stride_bt_b + page_idx)",
        "page_idx = pos // BLOCK_SIZE\n    page_off = pos % BLOCK_SIZE\n    block_num = tl.load(Block_table_ptr + bid * stride_bt_b)",
        "turboquant_4bit_nc",
    ),
}


def changed(installed: ModuleType, old: str, new: str, path: Path) -> ModuleType:
    """Return a copy of ``installed``, loaded from ``path``, in which ``old`` is ``new``."""
    assert installed.__file__ is not None
    source = Path(installed.__file__).read_text()
    assert source.count(old) in {1, 2}, f"{installed.__name__} holds {old!r} {source.count(old)} times"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    """Try every change, and none at all."""
    from kvverify.conformance.vllm import check_vllm
    from kvverify.kernels.vllm_turboquant import VllmTurboQuant

    kernels = VllmTurboQuant()
    installed = {STORE: kernels._store_module, DEQUANT: kernels._dequant_module}
    for i, (name, (where, old, new, preset)) in enumerate(CHANGES.items()):
        copy = changed(installed[where], old, new, folder / f"changed_{i}.py")
        setattr(kernels, where, copy)
        checks = [dataclasses.asdict(c.check()) for c in check_vllm(kernels, preset, 64, 5)]
        setattr(kernels, where, installed[where])
        print(json.dumps({"change": name, "checks": checks}), flush=True)
    for preset in ("turboquant_4bit_nc", "turboquant_3bit_nc"):
        checks = [dataclasses.asdict(c.check()) for c in check_vllm(kernels, preset, 64, 5)]
        print(json.dumps({"change": f"none, {preset}", "checks": checks}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
