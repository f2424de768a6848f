"""``kvverify layout``: print a model's layer groups, slot sizes and pages, or the recipe that other commands take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.options import json_option

if TYPE_CHECKING:
    from kvverify.layout.summary import Summary


@click.command("layout")
@click.argument("model")
@click.option(
    "--kv-cache-dtype",
    default="auto",
    show_default=True,
    metavar="D",
    help="Engine's word, such as auto, fp8 or turboquant_4bit_nc.",
)
@click.option(
    "--tp", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Tensor-parallel size."
)
@click.option(
    "--block-size", type=click.IntRange(min=1), metavar="N", help="Tokens per block; the engine may raise it."
)
@click.option(
    "--engine", default="vllm", show_default=True, metavar="E", help="Whose rules apply: vllm or vllm-gfx950."
)
@click.option(
    "--num-blocks", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="Blocks in the buffer."
)
@click.option(
    "--order", metavar="O", help="Memory order of layer, block, token and head: LBNHC (NHD), LBHNC (HND), ..."
)
@click.option(
    "--skip-layer",
    "skip_layers",
    multiple=True,
    metavar="L",
    help="Keep layer L, or all sliding_window ones, in the model's dtype. Repeatable.",
)
@json_option
def command(
    *,
    model: str,
    kv_cache_dtype: str,
    tp: int,
    block_size: int | None,
    engine: str,
    num_blocks: int,
    order: str | None,
    skip_layers: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show which byte of a model's KV cache is what.

    MODEL is a folder with a config.json, a config.json, a preset name or a hub id. The JSON document is what
    `kvverify roundtrip --layout FILE` takes.
    """
    from kvverify.layout.models import load_model
    from kvverify.layout.rules import recipe_for
    from kvverify.layout.summary import summarise

    loaded = load_model(model)
    recipe = recipe_for(
        loaded,
        kv_cache_dtype,
        tp=tp,
        block_size=block_size,
        engine=engine,
        num_blocks=num_blocks,
        order=order,
        skip_layers=skip_layers,
    )
    summary = summarise(recipe)
    if as_json:
        from kvverify.layout.document import to_document

        head = {"model": loaded.name, "kv_cache_dtype": kv_cache_dtype, "tp": tp, "engine": engine}
        click.echo(json.dumps({**head, **summary.to_json(), "recipe": to_document(recipe)}))
        return 0
    _print(f"{loaded.name}, {kv_cache_dtype}, tp {tp}, {engine}", summary, wish=block_size)
    return 0


def _print(title: str, summary: Summary, wish: int | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(title, style="bold", markup=False)
    console.print()
    console.print(_format_table(summary))
    console.print()
    if len(summary.groups) > 1:
        console.print(_group_table(summary))
        console.print()
    for name, value in _facts(summary, wish):
        console.print(f"{name:<22}{value}", markup=False, soft_wrap=True)


def _format_table(summary: Summary) -> Any:
    padded = any(fmt.padding_bytes for fmt in summary.formats)
    table = _table("format", "layers", "heads", "head size", "B/token/head", "B/page", *(["padding"] if padded else []))
    for fmt in summary.formats:
        per_head = f"{fmt.bytes_per_token_head:,}" if fmt.bytes_per_token_head else "-"
        cells = [fmt.kv_format, str(fmt.layers), str(fmt.heads), str(fmt.head_size), per_head, f"{fmt.page_bytes:,}"]
        table.add_row(*cells, *([f"{fmt.padding_bytes:,}"] if padded else []))
    return table


def _group_table(summary: Summary) -> Any:
    table = _table("group", "layers", "tokens/block", "B/block")
    for group in summary.groups:
        numbers = str(len(group.layers)), f"{group.block_tokens:,}", f"{group.block_bytes:,}"
        table.add_row(f"{group.index} {group.kind}", *numbers)
    return table


def _table(first: str, *numbers: str) -> Any:
    """Return a table of 80 columns at most: one column of words, the rest of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _facts(summary: Summary, wish: int | None) -> list[tuple[str, str]]:
    raised = wish is not None and wish != summary.block_tokens
    asked = f" (asked for {wish}, raised by the engine's alignment)" if raised else ""
    ratio = "n/a" if summary.ratio_to_bf16 is None else f"{summary.ratio_to_bf16:.2f}"
    per_gib = "n/a" if summary.tokens_per_gib is None else f"{summary.tokens_per_gib:,}"
    return [
        ("tokens per block", f"{summary.block_tokens}{asked}"),
        ("bytes per token", f"{summary.bytes_per_token:,} (all bf16: {summary.bf16_bytes_per_token:,})"),
        ("ratio to all bf16", ratio),
        ("tokens per GiB", per_gib),
        ("order", summary.order),
        ("buffer", f"{summary.size_bytes:,} bytes"),
        ("layout", summary.name),
    ]
