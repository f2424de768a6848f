"""Where the processes of several ranks wait for each other while they execute one program.

Every rank comes to the same meetings in the same order and says there whether it has stopped. So a rank that fails meets once more,
as one that stopped, and all others stop at their next meeting; nobody waits for one that went away. A rank that died or hangs
breaks the group: the others notice by a closed connection or when the program's time is up.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from kvverify.errors import EnvironmentProblem

STOPPED = "stopped"  # the kind of an outcome that is another rank's
_JOIN = timedelta(seconds=180)
_SHARE = 0.8  # of the time limit, so that one who waits in vain says so before it is taken for the one that hangs


class Stopped(Exception):
    """Another rank stopped executing the program."""


class Meeting:
    """Of one process, which meets nobody."""

    rank = 0
    world_size = 1
    broken = False  # a rank is gone: the process group cannot be used any more

    def begin(self, limit_s: float) -> None:
        """Begin a program that may take ``limit_s`` seconds."""

    def meet(self) -> None:
        """Wait until all ranks are here.

        Raises:
            Stopped: one of them has stopped, or is gone.
        """

    def finish(self) -> None:
        """Meet for the last time in this program."""

    def leave(self) -> None:
        """Tell the others that this rank has stopped, unless all know that the program is over."""


class GroupMeeting(Meeting):
    """Of the ranks that torch.distributed knows, over its CPU backend; the default group is the kernel's alone.

    Rank, number of ranks and address come from the environment variables that torchrun sets too.

    Args:
        device: ``cpu`` or ``cuda``; on GPUs the default group also has NCCL (RCCL), which connects when it is used first.

    Raises:
        RuntimeError: the ranks do not find each other.
    """

    def __init__(self, device: str) -> None:
        import torch.distributed as dist

        both = device == "cuda" and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo", timeout=_JOIN)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._group: Any = dist.new_group(backend="gloo", timeout=_JOIN)
        self._deadline = 0.0
        self._over = True

    def begin(self, limit_s: float) -> None:
        """See :meth:`Meeting.begin`."""
        self._deadline = time.monotonic() + _SHARE * limit_s
        self._over = False

    def meet(self) -> None:
        """See :meth:`Meeting.meet`."""
        if self._any_stopped(self_stopped=False):
            raise Stopped("another rank stopped")

    def finish(self) -> None:
        """See :meth:`Meeting.finish`."""
        self.meet()
        self._over = True

    def leave(self) -> None:
        """See :meth:`Meeting.leave`."""
        if not self._over:
            self._any_stopped(self_stopped=True)

    def _any_stopped(self, *, self_stopped: bool) -> bool:
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(self_stopped)])
        try:
            work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
            work.wait(timedelta(seconds=max(0.1, self._deadline - time.monotonic())))
        except RuntimeError:  # the connection is closed, or nobody came
            self.broken = True
            flag[0] = 1
        self._over = self._over or bool(flag)
        return bool(flag)


def take_gpu() -> None:
    """Make the GPU of this rank the current one, before anything is made on another.

    Raises:
        EnvironmentProblem: there are fewer GPUs.
    """
    import torch

    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise EnvironmentProblem(f"rank {number} has no GPU: torch sees {count}, and each rank takes one")
    torch.cuda.set_device(number)
