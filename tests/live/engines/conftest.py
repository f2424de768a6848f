"""Engine adapters and the lab that some are tried on need torch and the live extra: without these there is nothing to collect."""

from __future__ import annotations

import importlib.util

_NEEDED = ("torch", "openai", "httpx2", "prometheus_client")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in _NEEDED) else ["test_*.py"]
