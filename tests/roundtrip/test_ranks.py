"""Several ranks on the CPU: what only one of them does wrong is found, named, and ends on all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.arena.arena import Arena
from kvverify.arena.expectation import rank_seed
from kvverify.arena.memory import Mapping
from kvverify.arena.oracle import Oracle
from kvverify.cli.main import run
from kvverify.errors import ContractError, UsageError
from kvverify.kernels.registry import resolve
from kvverify.layout.document import from_document, to_document
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe
from kvverify.roundtrip import ranks as ranks_module
from kvverify.roundtrip.failure import read_failure
from kvverify.roundtrip.meeting import STOPPED
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Check, Fill, Load, Program, Store
from kvverify.roundtrip.ranks import Ranks, check_ranks, combined

KERNELS = Path(__file__).with_name("rank_kernels.py")
RECIPE = to_document(
    Recipe(layers=(LayerRecipe("bf16", 2, 64), LayerRecipe("turboquant_4bit_nc", 2, 128, 2)), num_blocks=6)
)
ONE_BLOCK = Program(7, (Fill((0,)), Store((0,), (0,)), Load((0,), (1,))), 3)
TWO_BLOCKS = Program(7, (Fill((0, 1)), Store((0, 1), (0, 1)), Check(), Load((0, 1), (4, 5)), Fill((2,))), 3)

MakeRanks = Callable[..., Ranks]


@pytest.fixture
def ranks_of(torch: ModuleType) -> Iterator[MakeRanks]:
    started: list[Ranks] = []

    def make(spec: str, ranks: int = 2, time_limit: float = 30.0) -> Ranks:
        started.append(Ranks(resolve(spec), ranks, time_limit=time_limit))
        return started[-1]

    yield make
    for one in started:
        one.close()


def kernel(name: str) -> str:
    return f"{KERNELS}:{name}"


@pytest.mark.parametrize(("spec", "ranks"), [("torch", 3), (kernel("shared_host"), 2), (kernel("shared_host"), 3)])
def test_a_right_kernel_passes_on_every_rank(ranks_of: MakeRanks, spec: str, ranks: int) -> None:
    alone = ranks_of("torch", 1).run(RECIPE, TWO_BLOCKS)
    child = ranks_of(spec, ranks)
    for program in (TWO_BLOCKS, ONE_BLOCK, TWO_BLOCKS):
        assert not child.run(RECIPE, program, explain=True).failed
    together = child.run(RECIPE, TWO_BLOCKS)
    assert together.moved_bytes == ranks * alone.moved_bytes > 0
    if spec == "torch":
        assert together.compared_bytes == ranks * alone.compared_bytes > 0


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("rank_zero_loads", 1, "never written"),
        ("rank_zero_stores", 1, "which no store wrote there"),
        ("next_slice", 0, "they hold rank 1's (expected: rank 0's)"),
    ],
)
def test_a_wrong_kernel_is_found_and_the_rank_named(ranks_of: MakeRanks, name: str, rank: int, words: str) -> None:
    child = ranks_of(kernel(name))
    for _ in range(2):  # a failure leaves ranks that go on together
        outcome = child.run(RECIPE, TWO_BLOCKS, explain=True)
        assert (outcome.kind, outcome.step, outcome.first["rank"]) == ("wrong-bytes", 3, rank)
        assert outcome.headline.startswith(f"rank {rank}: ")
        assert words in outcome.headline


def test_one_slice_for_all_is_found(ranks_of: MakeRanks) -> None:
    # whoever stored last has its bytes there: at least one of two ranks loads the other's
    outcome = ranks_of(kernel("first_slice")).run(RECIPE, TWO_BLOCKS, explain=True)
    assert outcome.kind == "wrong-bytes"
    rank = outcome.first["rank"]
    assert f"they hold rank {1 - rank}'s (expected: rank {rank}'s)" in outcome.headline


@pytest.mark.parametrize(
    ("name", "kind", "words", "time_limit"),
    [
        ("LastRankDies", "crashed", "the process was ended by exit code 3 in store", 30.0),
        ("LastRankHangs", "hung", "no answer within 3 s in store", 3.0),
        ("LastRankRaises", "raised", "store([0, 1], [0, 1]) raised RuntimeError: not on this rank", 30.0),
    ],
)
def test_a_rank_that_goes_away_is_named_and_the_next_program_runs(
    ranks_of: MakeRanks, name: str, kind: str, words: str, time_limit: float
) -> None:
    child = ranks_of(kernel(name), 3)
    assert not child.run(RECIPE, ONE_BLOCK).failed
    child.time_limit = time_limit
    outcome = child.run(RECIPE, TWO_BLOCKS)
    assert (outcome.kind, outcome.step) == (kind, 1)
    assert outcome.headline == f"rank 2: {words}"
    child.time_limit = 30.0
    assert not child.run(RECIPE, ONE_BLOCK).failed


def test_a_layout_is_refused_where_one_rank_refuses_it(ranks_of: MakeRanks) -> None:
    child = ranks_of(kernel("LastRankRefuses"))
    assert child.describe(RECIPE)["reason"] == "rank 1: only the first ranks serve it"
    outcome = child.run(RECIPE, ONE_BLOCK)
    assert outcome.kind == "refused"
    assert child.describe(RECIPE)["ranks"] == 2


def test_the_first_rank_that_fails_decides_and_a_lost_process_before_it() -> None:
    fine, wrong = Outcome(compared_bytes=5), Outcome("wrong-bytes", 3, "bad", ["why"], compared_bytes=2)
    stopped, crashed = Outcome(STOPPED, -1, "another rank stopped"), Outcome("crashed", 1, "gone")
    assert combined([fine, fine]).compared_bytes == 10
    both = combined([stopped, wrong, wrong])
    assert (both.kind, both.headline, both.compared_bytes) == ("wrong-bytes", "rank 1: bad", 4)
    assert both.details == ["why", "rank 2 too: bad"]
    assert combined([wrong, crashed]).headline == "rank 1: gone"
    assert combined([stopped, fine]).kind == "hung"


def test_more_ranks_than_gpus_is_one_line(torch: ModuleType) -> None:
    count = torch.cuda.device_count()
    with pytest.raises(UsageError, match=f"--ranks {count + 2}: torch sees .* and each rank takes one"):
        check_ranks(count + 2, "cuda")
    check_ranks(count + 2, "cpu")


def test_a_campaign_stores_the_ranks_and_replay_uses_them(
    torch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--ranks", "2", "--examples", "4", "--seed", "3", "--out", str(out)]
    assert run(["roundtrip", "--kernel", kernel("rank_zero_loads"), *options]) == 1
    found = sorted((out / "failures").glob("*.json"))
    assert found
    assert read_failure(found[0]).ranks == 2
    assert json.loads((out / "run.json").read_text())["options"]["ranks"] == 2
    assert run(["replay", str(found[0])]) == 1
    assert "rank 1: " in capsys.readouterr().out
    assert run(["replay", str(found[0]), "--kernel", kernel("shared_host")]) == 0


def test_with_a_model_each_rank_has_its_heads(torch: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["--kernel", "torch", "--ranks", "2", "--model", "minimax-m2.5", "--examples", "0", "--out", str(out)]
    run(["roundtrip", *arguments])
    (recipe,) = json.loads((out / "run.json").read_text())["options"]["recipes"]
    assert {layer["heads"] for layer in recipe["layers"]} == {4}  # 8 in all


@pytest.mark.parametrize(("width", "stride"), [(4096, 6000), (4000, 8192)])
def test_parts_of_two_ranks_in_one_page_break_the_contract(torch: ModuleType, width: int, stride: int) -> None:
    layout = place(from_document(RECIPE, "here"))
    rows = torch.zeros(4 * stride, dtype=torch.uint8).as_strided((3, width), (stride, 1))
    with pytest.raises(ContractError, match="a multiple of 4096 bytes"):
        Arena(layout, 3, rank=1, world_size=2).adopt_host(rows)
    Arena(layout, 3).adopt_host(rows)  # on one rank nobody else owns what lies between


def test_the_oracle_leaves_the_parts_of_other_ranks_alone(torch: ModuleType) -> None:
    layout = place(from_document(RECIPE, "here"))
    tier = torch.from_numpy(Mapping(3 * 2 * 8192, ((0, 3 * 2 * 8192),)).array).view(3, 2, 8192)
    tier.fill_(77)
    arena = Arena(layout, 3, rank=1, world_size=2)
    arena.adopt_host(tier[:, 1])
    oracle = Oracle(arena)
    oracle.reset(5)
    oracle.forget([2])
    assert (tier[:, 0] == 77).all()
    assert (tier[:, 1] != 77).float().mean() > 0.9
    tier[:, 0] = 78
    assert oracle.check() is None
    tier[1, 1, 8191] ^= 1
    found = oracle.check()
    assert found is not None
    assert (found.region, found.total) == ("host", 1)


def test_every_rank_writes_other_bytes_and_knows_the_keys_of_the_others(torch: ModuleType) -> None:
    layout = place(from_document(RECIPE, "here"))
    oracles = [Oracle(Arena(layout, 3, rank=rank, world_size=2)) for rank in range(2)]
    for oracle in oracles:
        oracle.reset(5)
        oracle.fill([0, 1], 0, "fill (step 0)")
        oracle.forget([1])
    first, second = oracles
    device, host = first.foreign_keys(1)
    assert set(device) == set(second.keys)
    assert set(host) == set(second.host_keys)
    assert {own: first.keys[own] for own in device.values()} == first.keys
    assert set(first.keys).isdisjoint(second.keys)
    assert rank_seed(5, 0) == 5


def test_every_rank_has_a_log(torch: ModuleType, tmp_path: Path) -> None:
    with Ranks(resolve("torch"), 2, log=tmp_path / "torch.log") as child:
        child.start()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["torch-rank0.log", "torch-rank1.log"]
    assert ranks_module.variables(1, 4, 5000)["LOCAL_RANK"] == "1"
