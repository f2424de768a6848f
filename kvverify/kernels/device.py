"""Can the installed torch use the device that copies are asked for on, and which GPU is that?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvverify.errors import EnvironmentProblem

_DRIVER_VERSIONS = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))


def check_device(device: str) -> None:
    """Return where the torch that is installed can use ``device``, ``cpu`` or ``cuda``.

    Imports torch for a GPU only; allocates a few bytes there.

    Raises:
        EnvironmentProblem: it cannot; the message says what to install or where to look.
    """
    if device != "cuda":
        return
    try:
        import torch
    except (ImportError, OSError) as error:  # a CUDA or ROCm library that torch is linked to may be the missing one
        raise EnvironmentProblem(
            f"torch cannot be imported ({error}); install the CUDA or ROCm build of torch that your engine serves with"
        ) from error
    if torch.cuda.is_available():
        _check_computes(device)
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise EnvironmentProblem(
            f"torch {torch.__version__} is built without GPU support; install a CUDA or ROCm build of torch"
        )
    raise EnvironmentProblem(
        f"torch {torch.__version__} is built for {_built_for()} and sees no GPU; check the driver, and CUDA_VISIBLE_DEVICES or "
        "HIP_VISIBLE_DEVICES"
    )


def gpu_facts() -> dict[str, Any]:
    """Return what a report says of the current GPU: name, architecture, how many torch sees, build of torch, driver.

    Call it where :func:`check_device` has passed. What cannot be found out is left out.
    """
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    architecture = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    facts = {
        "name": torch.cuda.get_device_name(),
        "architecture": architecture or f"sm_{properties.major}{properties.minor}",
        "memory_bytes": int(properties.total_memory),
        "count": torch.cuda.device_count(),
        "torch": torch.__version__,
        "torch_version_cuda": torch.version.cuda,
        "torch_version_hip": torch.version.hip,
        "runtime": _runtime_of_driver(),
        "driver": next((path.read_text().strip() for path in _DRIVER_VERSIONS if path.is_file()), None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _check_computes(device: str) -> None:
    """Run one operation: a build of torch that has no code for this GPU sees it all the same."""
    import torch

    try:
        torch.ones(1, device=device).add_(1).item()
    except RuntimeError as error:
        raise EnvironmentProblem(
            f"torch {torch.__version__} is built for {_built_for()} and cannot compute on {torch.cuda.get_device_name()}: "
            f"{str(error).splitlines()[0]}; install a build of torch for this GPU, or free its memory"
        ) from error


def _built_for() -> str:
    import torch

    return f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"


def _runtime_of_driver() -> str | None:
    """The CUDA or HIP version that the driver serves, which torch only gives away as a number."""
    import torch

    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    if ask is None:
        return None
    number = int(ask())
    if torch.version.hip:
        return f"HIP {number // 10_000_000}.{number % 10_000_000 // 100_000}"
    return f"CUDA {number // 1000}.{number % 1000 // 10}"
