"""Which byte of the KV cache is what: model configs, slot formats, engine rules and placements (pure Python)."""
