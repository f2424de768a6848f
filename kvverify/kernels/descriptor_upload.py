"""Copy descriptors (addresses, sizes) on their way from the host to a kernel on the device, without stopping the host."""

from __future__ import annotations

from typing import Any

import torch


class DescriptorUpload:
    """Uploads lists of int64 on the current stream; the host never waits for the stream, however busy it is.

    A pinned buffer is written again only when the upload that read it is done. There is one buffer on the device: uploads and
    the kernels that read it follow each other on one stream. All memory for calls of up to ``capacity`` numbers is allocated
    here, since an allocation may synchronise the device; larger calls allocate.
    """

    _BUFFERS = 4  # calls in flight before another pinned buffer is allocated

    def __init__(self, device: torch.device, capacity: int) -> None:
        self._device = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._pinned: list[tuple[torch.Tensor, Any]] = [self._new(capacity) for _ in range(self._BUFFERS)]

    @staticmethod
    def _new(capacity: int) -> tuple[torch.Tensor, Any]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return torch.empty(capacity, dtype=torch.int64, pin_memory=True), event

    def __call__(self, *lists: torch.Tensor) -> list[torch.Tensor]:
        """Return each of ``lists`` (int64 [n] on the CPU, all equally long) on the device, valid until the next call's upload."""
        count = lists[0].numel()
        width = count + count % 2  # every list begins at a multiple of 16 bytes, so that Triton compiles one variant
        buffer, event = self._free(width * len(lists))
        for position, values in enumerate(lists):
            buffer[position * width : position * width + count] = values
        used = self._device[: width * len(lists)]
        used.copy_(buffer[: width * len(lists)], non_blocking=True)
        event.record()
        return [used[position * width : position * width + count] for position in range(len(lists))]

    def _free(self, size: int) -> tuple[torch.Tensor, Any]:
        """Return a pinned buffer that no upload reads any more; grow what is too small."""
        if self._device.numel() < size:
            self._device = torch.empty(size, dtype=torch.int64, device=self._device.device)
        for buffer, event in self._pinned:
            if buffer.numel() >= size and event.query():
                return buffer, event
        self._pinned.append(self._new(size))
        return self._pinned[-1]
