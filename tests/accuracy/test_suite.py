"""Suites: those that are shipped, and what is wrong with a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvverify.accuracy.sources import SOURCES, source_named
from kvverify.accuracy.suite import load_suite
from kvverify.errors import ContractError, EnvironmentProblem, UsageError
from kvverify.evals_data import shipped

NAMES = sorted(path.stem for path in shipped("suites").glob("*.toml"))
RULER = {
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
}
ESSAYS = {"niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"}
HEAD = 'name = "x"\nkind = "retrieval"\n'
TASK = '[[tasks]]\nsource = "recall"\nname = "code"\n'


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_suite_can_be_read_and_has_its_files_name(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    assert suite.title
    assert all(task.source in SOURCES for task in suite.tasks)


@pytest.mark.parametrize("length", [2, 4, 8, 16, 32, 64, 128])
def test_rulers_suites_have_all_thirteen_tasks(length: int) -> None:
    suite = load_suite(f"ruler-{length}k")
    assert {task.name for task in suite.tasks} == RULER
    assert {(task.lengths, task.samples) for task in suite.tasks} == {((1024 * length,), 500)}


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("ruler-", "niah-"))])
def test_no_shipped_suite_asks_all_of_one_haystack(name: str) -> None:
    # upstream does: all samples of a task share one cluster, and no interval of a paired difference can be said
    suite = load_suite(name)
    essays = {task.name: task.options for task in suite.tasks if task.name in ESSAYS}
    assert essays
    assert all(options == {"offsets": "random"} for options in essays.values())
    assert suite.title.endswith("essays from random places")


def test_numbers_lengths_and_tasks_can_be_changed() -> None:
    suite = load_suite("ruler-4k").reduced(samples=550, lengths=(1024, 2048), tasks=("vt",), template="chatml")
    assert [(t.name, t.samples, t.lengths) for t in suite.tasks] == [("vt", 550, (1024, 2048))]
    assert suite.template == "chatml"
    with pytest.raises(UsageError, match=r"suite ruler-4k: no task 'vtt'; it has cwe, fwe"):
        load_suite("ruler-4k").reduced(samples=None, tasks=("vtt",))


def test_lengths_are_refused_where_tasks_have_none(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(HEAD + TASK)
    with pytest.raises(UsageError, match="--lengths: suite x has no tasks with size classes"):
        load_suite(str(file)).reduced(samples=None, lengths=(64,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, "tasks: Field required"),
        ('name = "x"\nkind = "long"\n' + TASK, "kind: Input should be"),
        (HEAD + TASK + "sample = 3\n", "tasks.0.sample: Extra inputs are not permitted, got 3"),
        (HEAD + TASK + "samples = -1\n", "tasks.0.samples: Input should be greater than or equal to 0"),
        (HEAD + TASK + TASK, "a task stands there twice"),
        ("name = ", "s.toml: "),
    ],
)
def test_what_is_wrong_with_a_suite_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_suite(str(file))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sources_are_found_by_name_or_attribute() -> None:
    assert callable(source_named("recall").samples)
    assert callable(source_named("tests.accuracy.asked:Counting").facts)
    with pytest.raises(UsageError, match=r"unknown source 'rular'; did you mean 'ruler'\?"):
        source_named("rular")
    with pytest.raises(EnvironmentProblem, match=r"source 'nowhere:X' cannot be imported"):
        source_named("nowhere:X")
    with pytest.raises(ContractError, match="has no samples and no facts"):
        source_named("pathlib:Path")
