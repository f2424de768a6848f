"""Compile the Triton kernels of a module for AMD GPUs, without one: ``python -m tests.arena.compile_for_hip MODULE ARCH...``.

A process of its own, because another test may have switched Triton's interpreter on. ``MODULE.SIGNATURES`` gives each kernel's
argument types; kernels named with an underscore are called by those. Writes one JSON object a line: what was compiled and the
sizes of what came out.
"""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

Signature = dict[str, str | int]
EM_AMDGPU = 224
WARP = 64
ALIGNED: list[list[str | int]] = [
    ["tt.divisibility", 16]
]  # of every pointer: what Triton assumes where torch allocated
SMALL: list[list[str | int]] = [
    *ALIGNED,
    ["tt.pointer_range", 32],
]  # and of tensors under 2 GiB, which AMD's backend reads with buffer operations
BY_UNIT = ("memory", "extremes", "masks")  # pointers to units of 1 or 8 bytes


def kernels_of(module: ModuleType) -> dict[str, Any]:
    """The kernels that are launched; those named with an underscore are parts of them."""
    from triton.runtime.jit import JITFunction

    found = {name: value for name, value in vars(module).items() if isinstance(value, JITFunction)}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def variants(signature: Signature) -> Iterator[Signature]:
    """The signature as exported, and with each of its choices the other way round."""
    yield signature
    if signature.get("UNIT") == 8:
        bytewise = {name: "*u8" for name in BY_UNIT if name in signature}
        yield {**signature, **bytewise, "UNIT": 1}
    for name, value in signature.items():
        if isinstance(value, bool):
            yield {**signature, name: not value}


def compile_one(kernel: Any, signature: Signature, arch: str, pointers: list[list[str | int]]) -> dict[str, Any]:
    """Compile and say what came out."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {name: value if isinstance(value, str) else "constexpr" for name, value in signature.items()}
    constants = {name: value for name, value in signature.items() if not isinstance(value, str)}
    positions = [kernel.arg_names.index(name) for name, value in types.items() if value.startswith("*")]
    source = ASTSource(kernel, types, constants, {(position,): pointers for position in positions})
    built = triton.compile(source, target=GPUTarget("hip", arch, WARP))
    binary: bytes = built.asm["hsaco"]
    (machine,) = struct.unpack_from("<H", binary, 18)  # e_machine
    assert (binary[:4], machine) == (b"\x7fELF", EM_AMDGPU)
    assert f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"' in built.asm["amdgcn"]
    return {"arch": arch, "constants": constants, "bytes": len(binary), "spills": built.asm["amdgcn"].count("scratch_")}


def main() -> None:
    """Compile everything; the first failure ends it with a traceback."""
    module = importlib.import_module(sys.argv[1])
    kernels = kernels_of(module)
    assert set(kernels) == set(module.SIGNATURES), f"{sorted(kernels)} launched, {sorted(module.SIGNATURES)} exported"
    for name, exported in module.SIGNATURES.items():
        assert set(exported) == set(kernels[name].arg_names), (
            f"{name}: arguments {kernels[name].arg_names}, not {list(exported)}"
        )
        for signature in variants(exported):
            for arch in sys.argv[2:]:
                for pointers in (ALIGNED, SMALL):
                    result = compile_one(kernels[name], signature, arch, pointers)
                    print(json.dumps({"kernel": name, **result}), flush=True)


if __name__ == "__main__":
    main()
