"""All codecs by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvverify.codecs.int4 import Int4Codec
from kvverify.codecs.interface import Codec, SlotCodec
from kvverify.codecs.kivi import KiviCodec
from kvverify.codecs.kvquant import NonUniformCodec
from kvverify.codecs.per_token_head import TOPS, PerTokenHeadCodec
from kvverify.codecs.plain import GRIDS, Fp8Codec, HalfCodec
from kvverify.codecs.turboquant import PRESETS, TurboQuantCodec
from kvverify.codecs.ultraquant import UltraQuantCodec
from kvverify.errors import CodecError, nearest
from kvverify.layout.formats import ALIASES

CODECS: dict[str, type[Codec]] = {
    "bf16": HalfCodec,
    "fp16": HalfCodec,
    **{name: Fp8Codec for name in GRIDS if name.startswith("fp8")},
    **dict.fromkeys(TOPS, PerTokenHeadCodec),
    "int4_per_token_head": Int4Codec,
    **dict.fromkeys(PRESETS, TurboQuantCodec),
    "ultraquant_4bit": UltraQuantCodec,
    "kivi": KiviCodec,
    "kvquant_cached": NonUniformCodec,
}


def codec_names() -> tuple[str, ...]:
    """Return every codec name."""
    return tuple(CODECS)


def codec(name: str, head_size: int, **options: Any) -> Codec:
    """Return the codec called ``name`` (or an engine's word for it) for ``head_size``.

    Raises:
        CodecError: unknown name or option; the message names the nearest ones.
        LayoutError: a head size that the format cannot take.
    """
    word = ALIASES.get(name.lower(), name.lower())
    if word not in CODECS:
        raise CodecError(f"no codec {name!r}; {nearest(word, CODECS)}")
    kind = CODECS[word]
    known = [f.name for f in dataclasses.fields(kind) if f.name not in ("name", "head_size")]
    for option in options:
        if option not in known:
            raise CodecError(
                f"codec {word} has no option {option!r}; {nearest(option, known) if known else 'it has none'}"
            )
    return kind(name=word, head_size=head_size, **options)


def slot_codec(name: str, head_size: int, **options: Any) -> SlotCodec:
    """Return :func:`codec` where every token and head must own its bytes.

    Raises:
        CodecError: the codec encodes whole sequences only.
    """
    found = codec(name, head_size, **options)
    if not isinstance(found, SlotCodec):
        raise CodecError(f"codec {name} encodes whole sequences and has no slots; take encode_sequence")
    return found
