"""A worker extension for vLLM: digests and poison of the KV blocks, from inside the worker, and the switch of the fault connector.

Start the server with ``VLLM_SERVER_DEV_MODE=1`` and
``--worker-extension-cls kvverify.inserver.worker_extension.KvverifyWorker``; the methods are then called through
``POST /collective_rpc {"method": "kvverify_digests", "args": [[1, 2, 3]]}`` and answer once for each rank. Written against vLLM
0.26 and 0.32, whose model runners (both versions of each) keep the tensors in ``kv_caches``.

Which blocks are free only the scheduler knows. After a flush that succeeded all of them are, which is when to poison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvverify.inserver import kv_blocks

if TYPE_CHECKING:
    import torch

_NULL_BLOCK = 0  # vLLM's filler in block tables; it holds nobody's tokens


class KvverifyWorker:
    """Mixed into vLLM's worker. All names begin with ``kvverify_``: vLLM refuses one that its worker has."""

    model_runner: Any
    cache_config: Any

    def kvverify_describe(self) -> dict[str, Any]:
        """Return what the pool is made of: blocks, bytes a block, and shape, strides and element type of each tensor."""
        views = self.kvverify_views()
        tensors = kv_blocks.flat(self.model_runner.kv_caches)
        return {
            "rank": int(getattr(self, "rank", 0)),
            "blocks": self.kvverify_blocks(),
            "block_bytes": sum(view[0].numel() * view.element_size() for view in views),
            "tensors": [
                {"shape": list(t.shape), "stride": list(t.stride()), "dtype": str(t.dtype), "device": str(t.device)}
                for t in tensors
            ],
        }

    def kvverify_digests(self, block_ids: list[int] | None = None, by_layer: bool = False) -> dict[str, Any]:
        """Return a digest of each block, or of each layer of each block.

        Args:
            block_ids: those blocks; all but vLLM's null block if not given.
            by_layer: a list of digests for each block in place of one.
        """
        ids = self.kvverify_ids(block_ids)
        rows = kv_blocks.digests(self.kvverify_views(), ids)
        answers: list[Any] = list(rows) if by_layer else [kv_blocks.combined(row) for row in rows]
        return {"blocks": ids, "digests": answers}

    def kvverify_poison(self, block_ids: list[int] | None = None, pattern: int = kv_blocks.POISON) -> dict[str, Any]:
        """Fill blocks with ``pattern``, all but the null block if none are named. No request may be running."""
        ids = self.kvverify_ids(block_ids)
        self.kvverify_settle()
        written = kv_blocks.poison(self.kvverify_views(), ids, pattern)
        self.kvverify_settle()
        return {"blocks": len(ids), "bytes": written, "pattern": pattern}

    def kvverify_poisoned(self, block_ids: list[int] | None = None, pattern: int = kv_blocks.POISON) -> dict[str, Any]:
        """Return how many of the blocks hold nothing but ``pattern``, and which."""
        ids = self.kvverify_ids(block_ids)
        whole = kv_blocks.poisoned(self.kvverify_views(), ids, pattern)
        return {"looked_at": len(ids), "poisoned": len(whole), "blocks": whole}

    def kvverify_scramble(self, pattern: int = kv_blocks.POISON) -> dict[str, Any]:
        """Overwrite what the packed layers hold, and leave all hashes: hits then read this. No request may be running.

        Packed is a layer whose elements are one byte. Where none is, all layers are overwritten. Layers of several groups may
        share their memory; blocks are then overwritten for all of them.
        """
        views = self.kvverify_views()
        packed = [view for view in views if view.element_size() == 1] or views
        ids = self.kvverify_ids(None)
        self.kvverify_settle()
        written = kv_blocks.poison(packed, ids, pattern)
        self.kvverify_settle()
        seen = kv_blocks.poisoned(packed, ids, pattern)
        return {"blocks": len(ids), "scrambled": len(seen), "bytes": written, "layers": len(packed), "of": len(views)}

    def kvverify_plant(self, name: str = "") -> dict[str, Any]:
        """Switch the fault that the fault connector plants; an empty name switches it off. Answers what was planted so far.

        Raises:
            RuntimeError: the server's connector is not the fault connector.
            ValueError: there is no such fault.
        """
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        connector = get_kv_transfer_group() if has_kv_transfer_group() else None
        switch = getattr(connector, "kvverify_switch", None)
        if switch is None:
            raise RuntimeError(
                f"the KV connector is {type(connector).__name__}, expected one of kvverify.inserver.fault_connector"
            )
        answer: dict[str, Any] = switch(name)
        return answer

    def kvverify_blocks(self) -> int:
        """Return the number of blocks in the pool, as the scheduler counts them."""
        config = getattr(self.model_runner, "kv_cache_config", None)
        return int(self.cache_config.num_gpu_blocks if config is None else config.num_blocks)

    def kvverify_views(self) -> list[torch.Tensor]:
        """Return the KV tensors by block, in the order of the layers; of layers that share one, one."""
        tensors = {(t.data_ptr(), tuple(t.shape), t.stride()): t for t in kv_blocks.flat(self.model_runner.kv_caches)}
        return [kv_blocks.by_block(tensor, self.kvverify_blocks()) for tensor in tensors.values()]

    def kvverify_ids(self, block_ids: list[int] | None) -> list[int]:
        """Return the blocks that are meant.

        Raises:
            ValueError: a number that is no block of the pool.
        """
        blocks = self.kvverify_blocks()
        if block_ids is None:
            return [block for block in range(blocks) if block != _NULL_BLOCK]
        ids = [int(block) for block in block_ids]  # a tuple or strings, after the way through JSON
        wrong = [block for block in ids if not 0 <= block < blocks]
        if wrong:
            raise ValueError(f"block {wrong[0]} is not in the pool, which has {blocks} blocks")
        return ids

    def kvverify_settle(self) -> None:
        """Wait for all streams: a store still reading a block must not read the poison."""
        import torch

        views = self.kvverify_views()
        if views and views[0].is_cuda:
            torch.cuda.synchronize(views[0].device)
