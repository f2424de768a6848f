"""What ``kvverify demo`` shows: each act is a command as a user types it, and how it must end, said in advance."""

from __future__ import annotations

from dataclasses import dataclass

from kvverify.events import Verdict

HBM_BLOCKS = 64  # of the lab: small, so that filling HBM with other requests takes a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One command. ``plant`` is the fault of the lab that it meets, None where it meets no server.

    ``shows`` is a regular expression that one of the run's findings must match: a verdict alone could have another cause. It is
    empty where PASS is announced. ``tables`` are the titles of those that are shown, the first on the console, too.
    """

    name: str
    title: str
    explains: str
    words: tuple[str, ...]
    announced: Verdict
    shows: str = ""
    plant: str | None = None
    tables: tuple[str, ...] = ()

    @property
    def lab(self) -> tuple[str, ...]:
        """The words that start the lab of this act; none where it needs no server."""
        if self.plant is None:
            return ()
        return ("lab", "--hbm-blocks", str(HBM_BLOCKS), *(("--plant", self.plant) if self.plant else ()))


_TORCH = ("--kernel", "torch")
_QUICK = ("--settle", "0.05")  # the lab counts at once; servers that serve take longer
_ONE_BY_ONE = ("--requests", "2", "--long-requests", "0", "--concurrency", "1", *_QUICK)
ACTS = (
    Act(
        name="kernel",
        title="A copy kernel",
        explains="Random stores and loads on layouts of real engines; then every byte of the allocation is compared.",
        words=("roundtrip", *_TORCH, "--examples", "128"),
        announced=Verdict.PASS,
        tables=("Layouts",),
    ),
    Act(
        name="kernel-fault",
        title="The same kernel, without the scales",
        explains="Fault F04 cuts the scales off each 4-bit cell. Nothing crashes; the bytes tell which field it was.",
        words=("roundtrip", *_TORCH, "--kv-cache-dtype", "turboquant_4bit_nc", "--examples", "16", "--plant", "F04"),
        announced=Verdict.FAIL,
        shows=r"wrong bytes: .*v_scale.*cell were cut off",
    ),
    Act(
        name="tiers",
        title="A server with a DRAM tier",
        explains="The same requests from HBM and, once that is overwritten, from DRAM: which tier served is proved.",
        words=("tier-diff", "--requests", "4", *_QUICK),
        announced=Verdict.PASS,
        plant="",
        tables=("Differences", "Proof of the tier"),
    ),
    Act(
        name="tiers-fault",
        title="A server that loses the scales on the way back from DRAM",
        explains="Fault F05: nothing crashes and counters report full hits. The first token that changed is shown.",
        words=("tier-diff", *_ONE_BY_ONE),
        announced=Verdict.FAIL,
        shows=r"dram differs from hbm in the answers.*(token \d+ became|logprob at position)",
        plant="F05",
        tables=("Differences",),
    ),
    Act(
        name="flush-lies",
        title="A server whose flush does nothing and reports success",
        explains="All answers are equal, since DRAM was never read. Who believes the flush passes this; the gate does not.",
        words=("tier-diff", *_ONE_BY_ONE),
        announced=Verdict.INCONCLUSIVE,
        shows=r"dram: tier not proved.*HBM hit \d+ tokens, expected 0",
        plant="flush-lies",
        tables=("Arms", "Proof of the tier"),
    ),
    Act(
        name="isolation",
        title="Sessions with a secret each",
        explains="All are forced out to DRAM and reloaded at once; each must give its own secret and none another's.",
        words=("isolation", "--sessions", "6", "--rounds", "2"),
        announced=Verdict.PASS,
        plant="",
        tables=("Isolation",),
    ),
    Act(
        name="isolation-fault",
        title="A server that forgets the tenant",
        explains="Fault F17: block keys omit salt and adapter, so a tenant is served another's content. Whose, is named.",
        words=("isolation", "--sessions", "4", "--rounds", "1"),
        announced=Verdict.FAIL,
        shows=r"foreign content, first salt \w+ that of salt \w+",
        plant="F17",
        tables=("Isolation", "Sessions"),
    ),
    Act(
        name="doctor",
        title="The server's configuration",
        explains="Settings that make a cache useless or a test meaningless; what no endpoint tells is tried.",
        words=("doctor",),
        announced=Verdict.PASS,
        plant="",
        tables=("Configuration",),
    ),
)
