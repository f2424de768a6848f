"""``kvverify lab``: the reference server, for trying kvverify and for testing it. No serving engine."""

from __future__ import annotations

import asyncio

import click

from kvverify.errors import EnvironmentProblem


@click.command("lab")
@click.option("--model", metavar="M", help="A preset or a folder with a Llama checkpoint; else a tiny model made here.")
@click.option(
    "--kv-cache-dtype",
    default="turboquant_4bit_nc",
    show_default=True,
    metavar="D",
    help="How K and V are kept: auto (bf16), fp8, turboquant_4bit_nc, ...",
)
@click.option(
    "--hbm-blocks",
    type=click.IntRange(min=2),
    default=256,
    show_default=True,
    metavar="N",
    help="Blocks of the HBM pool.",
)
@click.option(
    "--dram-gib",
    type=click.FloatRange(min=0, min_open=True),
    default=0.25,
    show_default=True,
    metavar="G",
    help="Size of the DRAM tier.",
)
@click.option("--plant", metavar="FAULT", help="Serve with this fault; `list` shows them.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    metavar="P",
    help="Port; 0 takes a free one.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of the tiny model."
)
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", help="The codecs run on the CPU.")
def command(
    *,
    model: str | None,
    kv_cache_dtype: str,
    hbm_blocks: int,
    dram_gib: float,
    plant: str | None,
    host: str,
    port: int,
    seed: int,
    device: str,
) -> int:
    """Serve a small model from a KV cache in two tiers, to try kvverify on and to test it.

    This is no serving engine: it computes one request at a time with reference codecs. It speaks enough of vLLM's interface for
    tier-diff, isolation and doctor, and --plant gives it one of the faults that real servers have had.
    """
    if plant == "list":
        _print_plants()
        return 0
    try:
        from kvverify.lab.serving import Options, assemble
    except ImportError as error:
        raise EnvironmentProblem(
            f"the lab needs torch: {error}; install torch in the build your machine needs"
        ) from error

    served = assemble(Options(model, kv_cache_dtype, hbm_blocks, dram_gib, plant, seed))
    return asyncio.run(_serve(served, host, port))


async def _serve(served: object, host: str, port: int) -> int:
    from kvverify.lab.api import Served
    from kvverify.lab.serving import serve

    assert isinstance(served, Served)
    server = await serve(served, host, port)
    config, fault = served.cache_config, served.plant
    planted = f", with the fault {fault.id} {fault.name}: {fault.breaks}" if fault.id != "none" else ""
    click.echo(
        f"kvverify lab, a reference server for trying kvverify, no serving engine: {server.url} serves {served.name}, "
        f"{config['cache_dtype']}, {config['num_gpu_blocks']} HBM blocks of {config['block_size']} tokens, "
        f"{served.engine.cache.slots} in DRAM{planted}"
    )
    await asyncio.Event().wait()
    return 0


def _print_plants() -> None:
    from kvverify.lab.plants import PLANTS

    for plant in PLANTS:
        seen = f"{plant.verdict} by {', '.join(plant.seen_by)}" if plant.seen_by else f"not to be seen: {plant.missing}"
        click.echo(f"{plant.id:<16}{plant.name:<20}{plant.breaks} ({seen})")
