"""The map of one page of a layout as the sign-off draws it: only the command line knows both layouts and reports."""

from __future__ import annotations

from typing import Any

from kvverify.report.signoff.bytemap import PageField, PageMap


def page_map(recipe: dict[str, Any], layer_name: str) -> PageMap | None:
    """Return the page of a layer of ``recipe`` (JSON), of its most packed one where no name is given.

    None where an old recipe is not understood any more, or the layer holds a state, which has no cells.
    """
    from kvverify.errors import LayoutError
    from kvverify.layout.document import from_document
    from kvverify.layout.place import place
    from kvverify.layout.placement import Role

    try:
        layout = place(from_document(recipe, "recipe"))
    except LayoutError:
        return None
    named = [layer for layer in layout.layers if layer_name in ("", layer.name)]
    if not named:
        return None
    layer = max(named, key=lambda one: len(one.fields))
    own = [f for f in layer.fields if f.role is not Role.PADDING]
    cells = {(f.heads, f.tokens) for f in own}
    if len(cells) != 1:  # a state, or a record that heads share in part
        return None
    heads, tokens = cells.pop()
    fields, at = [], 0
    for f in own:
        fields.append(PageField(f.name, str(f.role), at, f.length, f.offset, f.head_stride, f.token_stride))
        at += f.length
    extent = max(f.offset + (heads - 1) * f.head_stride + (tokens - 1) * f.token_stride + f.length for f in own)
    return PageMap(layout.name, layer.name, layer.kv_format, layout.order, heads, tokens, extent, fields)
