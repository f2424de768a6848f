"""Connectors for vLLM that behave as another one does, and then spoil what it loaded.

``FaultyX`` is the registered connector ``X`` with planted faults, for every ``X``: a subclass, so that vLLM meets the very same
behaviour, metrics and layouts::

    --kv-transfer-config '{"kv_connector": "FaultyOffloadingConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "kvverify.inserver.fault_connector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 4294967296, "kvverify.plant": "wrong-block"}}'

``kvverify.plant`` names the fault at the start, none if it is absent. It is switched while the server runs by the worker
extension (``kvverify_plant``), or by writing its name into the file that ``kvverify.plant_file`` names. For connectors that load
whole blocks before the forward pass; those that load layer by layer during it overwrite the fault.

Written against vLLM 0.26 and 0.32. The scheduler's side notes which blocks each load writes and sends that along with the
connector's own metadata; the worker's side plants right before the forward pass that reads the blocks first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvverify.inserver import kv_blocks
from kvverify.inserver.kv_faults import Load, Planter

_PREFIX = "Faulty"
_LOADS = "kvverify_loads"  # the attribute that carries the loads in the connector's metadata

if TYPE_CHECKING:

    class _Connector:  # vLLM's KVConnectorBase_V1, as far as it is used here
        _vllm_config: Any
        _kv_cache_config: Any
        _kv_transfer_config: Any

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None: ...
        def register_kv_caches(self, kv_caches: dict[str, Any]) -> Any: ...
        def bind_connector_metadata(self, connector_metadata: Any) -> Any: ...
        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> Any: ...
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any: ...
        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any: ...
        def build_connector_meta(self, scheduler_output: Any) -> Any: ...
else:
    _Connector = object


class FaultsMixin(_Connector):
    """The hooks of both sides; stands before the real connector in the order of the bases."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self._kvverify_file = extra.get("kvverify.plant_file", "")
        self._kvverify_first = extra.get("kvverify.plant", "")
        self._kvverify_planter: Planter | None = None
        self._kvverify_caches: dict[str, Any] = {}
        self._kvverify_used: list[Load] = []  # of this step, loaded during it
        # scheduler's side
        self._kvverify_matches: dict[str, tuple[int, bool]] = {}  # request -> tokens that HBM holds, asynchronous
        self._kvverify_planned: list[Load] = []  # since the last step
        self._kvverify_waiting: dict[str, Load] = {}  # not yet read by a forward pass

    # --- scheduler ---------------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """Note how far HBM reaches."""
        found, asynchronous = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._kvverify_matches[request.request_id] = (num_computed_tokens, bool(asynchronous))
        return found, asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        """Note which blocks the load will write."""
        held, asynchronous = self._kvverify_matches.pop(request.request_id, (0, False))
        if num_external_tokens > 0:
            written = self._kvverify_written(blocks.get_block_ids(), held, held + num_external_tokens)
            load = Load(request.request_id, written, asynchronous)
            self._kvverify_planned.append(load)
            self._kvverify_waiting[load.request] = load
        return super().update_state_after_alloc(request, blocks, num_external_tokens)

    def _kvverify_written(self, ids: Any, first: int, end: int) -> tuple[tuple[int, ...], ...]:
        groups = self._kv_cache_config.kv_cache_groups
        sizes = [group.kv_cache_spec.block_size for group in groups]
        spans = [ids[g][first // size : -(-end // size)] for g, size in enumerate(sizes)]
        return tuple(tuple(block for block in span if block != 0) for span in spans)  # 0 is vLLM's null block

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Send the loads of this step along, and those that its forward pass reads.

        Raises:
            RuntimeError: the connector's metadata takes no further attribute.
        """
        meta = super().build_connector_meta(scheduler_output)
        used = [
            self._kvverify_waiting.pop(r) for r in scheduler_output.num_scheduled_tokens if r in self._kvverify_waiting
        ]
        try:
            setattr(meta, _LOADS, (self._kvverify_planned, used))
        except AttributeError as error:
            raise RuntimeError(
                f"{type(meta).__name__} takes no attribute: kvverify cannot plant faults here"
            ) from error
        self._kvverify_planned = []
        for request in scheduler_output.finished_req_ids:
            self._kvverify_waiting.pop(request, None)
            self._kvverify_matches.pop(request, None)
        return meta

    # --- worker ------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> Any:
        """Note the tensors of the layers."""
        self._kvverify_caches = kv_caches
        return super().register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> Any:
        """A step begins: plant into what was loaded before it and is read in it."""
        super().bind_connector_metadata(connector_metadata)
        planned, used = getattr(connector_metadata, _LOADS, ([], []))
        planter = self._kvverify_ready()
        planter.catch_up()
        for load in planned:
            planter.before(load)
        for load in used:
            if load.asynchronous:
                planter.after(load)
        self._kvverify_used = [load for load in used if not load.asynchronous]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> Any:
        """Let the connector load, then plant into what it loaded for this step."""
        answer = super().start_load_kv(forward_context, **kwargs)
        used, self._kvverify_used = self._kvverify_used, []
        for load in used:
            self._kvverify_ready().after(load)
        return answer

    def kvverify_switch(self, name: str) -> dict[str, Any]:
        """Plant ``name`` from now on, nothing if empty; answer what was planted so far.

        Raises:
            ValueError: there is no such fault.
        """
        planter = self._kvverify_ready()
        before = {"was": planter.name, "planted": planter.planted}
        planter.switch(name)
        return {"plant": name, **before}

    def _kvverify_ready(self) -> Planter:
        if self._kvverify_planter is None:
            groups = self._kv_cache_config.kv_cache_groups
            self._kvverify_planter = Planter([self._kvverify_views(group.layer_names) for group in groups])
            self._kvverify_planter.switch(self._kvverify_first)
        if self._kvverify_file:
            path = Path(self._kvverify_file)
            name = path.read_text().strip() if path.exists() else ""
            if name != self._kvverify_planter.name:
                self._kvverify_planter.switch(name)
        return self._kvverify_planter

    def _kvverify_views(self, layers: list[str]) -> list[Any]:
        # with one tensor for all layers (vLLM 0.26) the connector gets only that one; each layer still has its view of it
        context = self._vllm_config.compilation_config.static_forward_context
        found: dict[tuple[Any, ...], Any] = {}
        for layer in layers:
            cache = self._kvverify_caches.get(layer)
            for tensor in kv_blocks.flat([context[layer].kv_cache if cache is None else cache]):
                found[(tensor.data_ptr(), tuple(tensor.shape), tensor.stride())] = tensor
        return [kv_blocks.by_block(tensor, self._kv_cache_config.num_blocks) for tensor in found.values()]


def __getattr__(name: str) -> Any:
    """Return the connector ``name`` without its prefix, with faults; vLLM asks for it by ``kv_connector``.

    Raises:
        AttributeError: no prefix, or no such connector in vLLM.
    """
    if not name.startswith(_PREFIX) or name == _PREFIX:
        raise AttributeError(name)
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        base = KVConnectorFactory.get_connector_class_by_name(name.removeprefix(_PREFIX))
    except ValueError as error:
        raise AttributeError(f"{name}: {error}") from error
    made = type(base)(name, (FaultsMixin, base), {"__module__": __name__, "__doc__": f"{base.__name__} with faults."})
    globals()[name] = made  # one class a process: vLLM asks several times
    return made
