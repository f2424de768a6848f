"""Can the installed torch use the device that copies are asked for on?"""

from __future__ import annotations

from kvverify.errors import EnvironmentProblem


def check_device(device: str) -> None:
    """Return where the torch that is installed can use ``device``, ``cpu`` or ``cuda``.

    Raises:
        EnvironmentProblem: it cannot; the message says what to install or where to look.
    """
    import torch

    if device != "cuda" or torch.cuda.is_available():
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise EnvironmentProblem(
            f"torch {torch.__version__} is built without GPU support; install a CUDA or ROCm build of torch"
        )
    built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    raise EnvironmentProblem(
        f"torch {torch.__version__} is built for {built} and sees no GPU; check the driver, and CUDA_VISIBLE_DEVICES or "
        "HIP_VISIBLE_DEVICES"
    )
