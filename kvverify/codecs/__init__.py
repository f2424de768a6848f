"""Reference numerics of the KV formats: readable encoders and decoders, and what each format costs (numpy).

``codec("turboquant_4bit_nc", 128)`` gives one; see :mod:`kvverify.codecs.interface` for the interface. Importing the
package does not import numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvverify.codecs.interface import Codec

__all__ = ["codec", "codec_names"]


def codec(name: str, head_size: int, **options: Any) -> Codec:
    """Return the codec called ``name`` for ``head_size``; see :func:`kvverify.codecs.registry.codec`."""
    from kvverify.codecs import registry

    return registry.codec(name, head_size, **options)


def codec_names() -> tuple[str, ...]:
    """Return every codec name."""
    from kvverify.codecs import registry

    return registry.codec_names()
