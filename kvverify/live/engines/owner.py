"""Whose models a server serves: engines that are not vLLM's kin are recognised by it."""

from __future__ import annotations

from collections.abc import Mapping

from kvverify.live.control import Control, ServerProblem
from kvverify.live.engines.geometry import member


async def owned_by(control: Control, owner: str) -> bool:
    """Does the server name ``owner`` as the owner of its first model? Not if it doesn't answer."""
    try:
        models = await control.get_json("/v1/models")
    except ServerProblem:
        return False
    served = member(models, "data") if isinstance(models, Mapping) else None
    return isinstance(served, list) and bool(served) and member(served[0], "owned_by") == owner
