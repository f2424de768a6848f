"""What lm-eval tasks become: the prompts that lm-eval would send, whole, the same in every process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kvverify.accuracy.lm_eval import source
from kvverify.accuracy.lm_eval.package import lm_eval_module
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.errors import EnvironmentProblem, UsageError
from kvverify.evals_data import shipped
from tests.accuracy.lm_eval.make_word_problems import NUMBER, lines
from tests.accuracy.lm_eval.own_task import ROWS, Letters, MakeTask, samples_of, write_rows

WORD_PROBLEMS = TaskSpec(source="lm-eval", name="word_problems")
SHUFFLES = """
import random
import numpy as np


def mixed(rows):
    order = list(range(len(rows)))
    random.shuffle(order)
    return rows.select(order).select(np.random.permutation(len(rows)))
"""


def own_requests(folder: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the prompts that lm-eval itself would send for a task, seeded as its command line does."""
    tasks, cwd = lm_eval_module("lm_eval.tasks"), Path.cwd()
    random.seed(0)
    np.random.seed(1234)  # noqa: NPY002
    try:
        os.chdir(folder)  # lm-eval looks for data files there
        task = tasks.TaskManager(include_path=folder, include_defaults=False).load([name])["tasks"][name]
    finally:
        os.chdir(cwd)
    task.set_fewshot_seed(1234)
    task.build_all_requests()
    return [instance.args for instance in task.instances]


def test_prompts_are_those_that_lm_eval_would_send(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task(description="Add. ", gen_prefix="The answer is")
    expected = own_requests(spec.options["include"], spec.name)
    made = samples_of(spec, context)
    assert [sample.prompt + sample.answer_prefix for sample in made] == [args[0] for args in expected]
    assert {sample.answer_prefix for sample in made} == {"The answer is"}
    assert len({sample.prompt.split("Q: ")[1] for sample in made}) > 5, "few-shot examples are drawn for each question"
    assert all(list(sample.stop) == args[1]["until"] for sample, args in zip(made, expected, strict=True))
    assert {sample.max_tokens for sample in made} == {12}


def test_a_task_may_be_iterated_twice_at_a_time(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task()
    once = samples_of(spec, context)
    pairs = list(zip(source.samples(spec, context), source.samples(spec, context), strict=True))
    assert [a.key for a, _ in pairs] == [b.key for _, b in pairs] == [sample.key for sample in once]


def test_fewer_samples_are_the_first_of_all(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task()
    few = TaskSpec(source="lm-eval", name=spec.name, samples=9, options=spec.options)
    assert [s.key for s in samples_of(few, context)] == [s.key for s in samples_of(spec, context)][:9]


def test_tasks_do_not_depend_on_which_others_were_loaded_before(make_task: MakeTask, context: SourceContext) -> None:
    """One global random stream over all tasks un-pairs arms with different task lists, as in lm-eval's RULER."""
    shuffled = {"process_docs": "!function own_code.mixed", "code": SHUFFLES}
    alone = samples_of(make_task(task="alone", **shuffled), context)
    state = random.getstate()
    samples_of(make_task(task="before", **shuffled), context)
    after = samples_of(make_task(task="alone", options={"fewshot_seed": 1234, "max_tokens": 12}, **shuffled), context)
    assert [s.prompt for s in after] == [s.prompt for s in alone]
    assert [s.details["doc"] for s in alone] != ROWS, "the task's own code did shuffle"
    assert random.getstate() == state, "the caller's own random numbers are not touched"


def test_keys_are_the_same_in_another_process(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task(process_docs="!function own_code.mixed", code=SHUFFLES)
    script = (
        "import sys; from kvverify.accuracy.source import SourceContext, TaskSpec; "
        "from tests.accuracy.lm_eval.own_task import Letters, samples_of; "
        "spec = TaskSpec(source='lm-eval', name='sums', options={'include': sys.argv[1]}); "
        "print(*(s.key for s in samples_of(spec, SourceContext(tokenizer=Letters(), seed=7, reserve=3))))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    answer = subprocess.run(
        [sys.executable, "-c", script, spec.options["include"]], capture_output=True, text=True, env=env, check=True
    )
    assert answer.stdout.split() == [s.key for s in samples_of(spec, context)]


def test_doubles_in_a_data_set_are_samples_of_their_own(make_task: MakeTask, context: SourceContext) -> None:
    made = samples_of(make_task(rows=[ROWS[0], ROWS[1], ROWS[0], ROWS[0]], num_fewshot=0), context)
    assert made[0].prompt == made[2].prompt
    assert len({sample.key for sample in made}) == 4


def test_prompts_longer_than_lm_evals_2048_tokens_are_whole_and_counted(
    make_task: MakeTask, context: SourceContext
) -> None:
    """lm-eval's API client cuts them from the left without a word: a 4,005-token prompt arrived as 1,919 tokens."""
    rows = [{**ROWS[0], "question": "needle " + "hay " * 1500 + "?"}]
    (sample,) = samples_of(make_task(rows=rows, num_fewshot=0, gen_prefix="It is"), context)
    assert sample.prompt.startswith("Q: needle hay")
    assert sample.tokens == len(sample.prompt + sample.answer_prefix) + context.reserve > 6000


def test_the_longest_answer_is_lm_evals_where_the_task_names_none(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task(generation_kwargs={"until": "\n"})
    (first, *_) = samples_of(spec, context)
    assert (first.max_tokens, first.stop) == (256, ("\n",))
    assert source.facts(spec, context)["max_tokens"] == "256 (lm-eval’s default: the task names none)"
    own = make_task(options={"max_tokens": 40}, generation_kwargs={"until": "\n"})
    assert samples_of(own, context)[0].max_tokens == 40
    assert source.facts(own, context)["max_tokens"] == "40"


def test_facts_identify_the_data_and_how_it_is_asked(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task()
    facts = source.facts(spec, context)
    assert facts["version"] == "0.4.13"
    assert facts["task version"] == "2.0"
    assert facts["shots"] == "2, seed 1234"
    assert facts["score"] == "exact_match,first"
    assert facts["documents"].startswith("40 sha256 ")
    reseeded = source.facts(make_task(options={"fewshot_seed": 5}), context)
    assert {name for name in facts if facts[name] != reseeded[name]} == {"settings", "shots"}
    other = source.facts(make_task(rows=ROWS[1:], options={"score": "exact_match,last"}), context)
    assert {name for name in facts if facts[name] != other[name]} == {"settings", "score", "documents", "test data"}


def test_documents_that_share_a_field_are_one_cluster(make_task: MakeTask, context: SourceContext) -> None:
    made = samples_of(make_task(options={"cluster": "topic"}), context)
    assert {sample.cluster for sample in made} == {'topic="t0"', 'topic="t1"', 'topic="t2"'}
    assert {sample.cluster for sample in samples_of(make_task(), context)} == {""}
    with pytest.raises(
        UsageError, match=r"option cluster: no field 'page' in its documents; valid: question, answer, topic"
    ):
        samples_of(make_task(options={"cluster": "page"}), context)


def test_local_copies_take_the_place_of_a_hubs_data(tmp_path: Path) -> None:
    """GSM8K as lm-eval has it, over the user's own files."""
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(8)]
    write_rows(tmp_path / "train.jsonl", rows)
    pa.parquet.write_table(pa.Table.from_pylist(rows[:3]), tmp_path / "test.parquet")
    options = {"data": {"train": "train.jsonl", "test": "test.parquet"}}
    context = SourceContext(tokenizer=Letters(), seed=0, corpora=tmp_path)
    made = samples_of(TaskSpec(source="lm-eval", name="gsm8k", options=options), context)
    assert [sample.details["doc"] for sample in made] == rows[:3]
    assert made[0].prompt.count("Question:") == 6
    assert made[0].stop == ("Question:", "</s>", "<|im_end|>")


def test_a_users_task_files_are_found_beside_the_corpora(
    make_task: MakeTask, context: SourceContext, tmp_path: Path
) -> None:
    spec = make_task()
    Path(spec.options["include"]).rename(tmp_path / "lm_eval")
    beside = SourceContext(tokenizer=Letters(), seed=0, corpora=tmp_path)
    assert len(samples_of(TaskSpec(source="lm-eval", name="sums"), beside)) == len(ROWS)


def test_the_shipped_word_problems_are_right_and_those_that_their_rule_makes() -> None:
    made = samples_of(WORD_PROBLEMS, SourceContext(tokenizer=Letters(), seed=0))
    file = shipped("lm_eval") / "word_problems" / "test.jsonl"
    assert file.read_text() == "".join(f"{line}\n" for line in lines())
    assert len(made) == NUMBER
    for sample in made:
        steps, _, answer = sample.details["doc"]["answer"].partition("\n#### ")
        for step in steps.removesuffix(".").split(". "):
            term, _, value = step.partition(" = ")
            left, sign, right = term.split()
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "x": a * b, "/": a / b}[sign] == int(value) >= 0
        assert value == answer


def test_nothing_is_fetched(tmp_path: Path) -> None:
    """A task with local data is made, and one without is refused at once, where no connection can be opened."""
    script = """
import socket
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.errors import EnvironmentProblem
from tests.accuracy.lm_eval.own_task import Letters, samples_of

def refuse(*_, **__):
    raise AssertionError("a connection was opened")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
context = SourceContext(tokenizer=Letters(), seed=0)
assert len(samples_of(TaskSpec(source="lm-eval", name="word_problems"), context)) == 400
try:
    samples_of(TaskSpec(source="lm-eval", name="gsm8k"), context)
except EnvironmentProblem as problem:
    print(problem)
"""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {"HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert answer.stdout.startswith("task gsm8k: its data or metrics are not on this machine (")
    assert "name files in the task's option `data`" in answer.stdout


REFUSED = [
    ({"generation_kwargs": {"until": [], "temperature": 0.2}}, "draws answers at random; kvverify asks each question once"),
    ({"generation_kwargs": {"until": [], "do_sample": True}}, "draws answers at random"),
    ({"repeats": 4}, "asks each question 4 times"),
    ({"unsafe_code": True}, "runs the code that the model writes"),
    ({"doc_to_image": "topic"}, "shows images or sound"),
    ({"output_type": "score"}, "output_type 'score'; valid: generate_until, multiple_choice"),
    ({"generation_kwargs": {"until": [], "num_beams": 4}}, "generation_kwargs: num_beams cannot be kept; known: do_sample"),
    ({"metric_list": [{"metric": "bleu"}]}, r"its metrics \(bleu\) are of the whole set or count errors; expected one that"),
    ({"process_docs": "!function nowhere.f"}, "a file in .* names it, but lm-eval cannot read that file as a task|lm-eval cannot make it"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_tasks_that_are_no_plain_questions_are_refused(
    make_task: MakeTask, context: SourceContext, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        samples_of(make_task(**changes), context)


def test_a_group_is_refused_with_its_members(context: SourceContext) -> None:
    with pytest.raises(
        UsageError, match="mmlu is a group of tasks; name them one by one, it has mmlu_stem, mmlu_other"
    ):
        samples_of(TaskSpec(source="lm-eval", name="mmlu"), context)


WRONG = [
    ({"options": {"shot": 3}}, "task sums: option shot: Extra inputs are not permitted; valid options: binary, cluster, data"),
    ({"options": {"shots": -1}}, "option shots: Input should be greater than or equal to 0"),
    ({"options": {"score": "exact_match,middle"}}, "option score: got 'exact_match,middle'; valid: exact_match,first; exact_match,last"),
    ({"options": {"data": {"test": "no.jsonl"}}}, "task sums: no file no.jsonl in .*; put it there: kvverify downloads nothing"),
    ({"options": {"sha256": {"test": "00"}}}, "test.jsonl has another checksum: expected 00, got [0-9a-f]{64}"),
    ({"options": {"sha256": {"dev": "00"}}}, "option sha256 names splits without a file: dev"),
    ({"options": {"include": "/nowhere"}}, "include: /nowhere is no folder; expected one that holds lm-eval task files"),
    ({"rows": []}, "test.jsonl holds no row"),
    ({"dataset_kwargs": {"data_files": "test.jsonl"}}, "data_files: expected one file for each split, got 'test.jsonl'"),
    ({"dataset_kwargs": {"data_files": {"test": "own_code.py"}}}, "own_code.py: expected a file named .jsonl, .json, .parquet, .csv"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_mistakes_are_named(make_task: MakeTask, context: SourceContext, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        samples_of(make_task(**changes), context)


def test_more_samples_than_there_are_is_refused(make_task: MakeTask, context: SourceContext) -> None:
    spec = make_task()
    with pytest.raises(UsageError, match="task sums: 41 samples asked for, its data hold 40"):
        samples_of(TaskSpec(source="lm-eval", name="sums", samples=41, options=spec.options), context)
    with pytest.raises(UsageError, match=r"lm-eval tasks have no size classes, got lengths \[4096\]"):
        samples_of(TaskSpec(source="lm-eval", name="sums", lengths=(4096,), options=spec.options), context)


def test_a_damaged_file_is_refused(make_task: MakeTask, context: SourceContext, tmp_path: Path) -> None:
    spec = make_task()
    (tmp_path / "cut.jsonl").write_text('{"question": "Wh')
    data = {"data": {"test": str(tmp_path / "cut.jsonl"), "train": str(Path(spec.options["include"]) / "train.jsonl")}}
    with pytest.raises(UsageError, match=r"cut.jsonl is damaged: Unterminated string"):
        samples_of(TaskSpec(source="lm-eval", name="sums", options={**spec.options, **data}), context)


def test_an_unknown_task_gets_the_nearest_names(make_task: MakeTask, context: SourceContext) -> None:
    include = make_task().options
    with pytest.raises(
        UsageError, match=r"no lm-eval task 'word_problem', .* nor in lm-eval itself; did you mean .*'word_problems'"
    ):
        samples_of(TaskSpec(source="lm-eval", name="word_problem", options=include), context)


def test_lm_eval_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.nowhere", None)
    with pytest.raises(
        EnvironmentProblem, match=r"lm-eval tasks need the package lm-eval \(.*\): pip install 'kvverify\[lm-eval\]'"
    ):
        lm_eval_module("lm_eval.nowhere")
