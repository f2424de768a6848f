"""Questions over documents: SQuAD v2 and HotpotQA as their JSON files, or as folders that ``datasets`` saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvverify.accuracy.corpora import HOTPOTQA, SQUAD, Wanted, labelled, wanted_file
from kvverify.errors import EnvironmentProblem, UsageError

SPLIT = "validation"


@dataclass(frozen=True, slots=True)
class Item:
    """A question, its answers in all spellings, the documents that hold it, others of the same article. ``cluster`` is the article."""

    query: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    related: tuple[int, ...]
    cluster: str


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions in the order of the file, and all documents, sorted, once each."""

    label: str
    sha256: str
    documents: list[str]
    items: list[Item]


def squad(folder: Path | None, dataset: str = "") -> Questions:
    """Return the answerable questions of the user's SQuAD v2 development set, in ``folder`` or as ``dataset``.

    A dataset is a folder that the package ``datasets`` saved, or an id that it loads from the hub.

    Raises:
        UsageError: it is missing, has another checksum, or is something else.
        EnvironmentProblem: the package is missing.
    """
    return _of_rows(SQUAD, dataset, _squad_of_rows) if dataset else _of_file(SQUAD, folder, _squad_of_json)


def hotpotqa(folder: Path | None, dataset: str = "") -> Questions:
    """Return the questions of the user's HotpotQA development set, distractor setting, as :func:`squad` does."""
    return _of_rows(HOTPOTQA, dataset, _hotpotqa_of_rows) if dataset else _of_file(HOTPOTQA, folder, _hotpotqa_of_json)


_Parsed = tuple[list[str], list[Item]]  # documents, and questions on them
_read: dict[tuple[str, str, int, int], Questions] = {}  # by label, file, size and time: parsing takes seconds


def _of_file(wanted: Wanted, folder: Path | None, parse: Callable[[Any], _Parsed]) -> Questions:
    path = wanted_file(wanted, folder)
    stat = path.stat()
    key = (wanted.label, str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in _read:
        content = path.read_bytes()
        _read.clear()  # one set at a time: HotpotQA takes 200 MB
        _read[key] = _parsed(wanted, str(path), labelled(wanted, path, content), lambda: parse(json.loads(content)))
    return _read[key]


def _of_rows(wanted: Wanted, dataset: str, parse: Callable[[Any], _Parsed]) -> Questions:
    key = (wanted.label, dataset, 0, 0)
    if key not in _read:
        rows = _rows(dataset, "distractor" if wanted is HOTPOTQA else None)
        digest = hashlib.sha256("\n".join(json.dumps(row, sort_keys=True) for row in rows).encode()).hexdigest()
        _read.clear()
        _read[key] = _parsed(wanted, dataset, (f"datasets:{dataset}", digest), lambda: parse(rows))
    return _read[key]


def _parsed(wanted: Wanted, where: str, identity: tuple[str, str], parse: Callable[[], _Parsed]) -> Questions:
    try:
        documents, items = parse()
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{where}: not of {wanted.label}'s form ({error!r}); get it from {wanted.origin}") from error
    if not items:
        raise UsageError(f"{where}: no answerable question in it")
    return Questions(*identity, documents, items)


def _rows(dataset: str, configuration: str | None) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise EnvironmentProblem(f"loading {dataset!r} needs the package datasets: pip install datasets") from error
    try:
        if Path(dataset).is_dir():
            loaded = datasets.load_from_disk(dataset)
            rows = loaded[SPLIT] if isinstance(loaded, Mapping) else loaded
        else:
            rows = datasets.load_dataset(dataset, configuration, split=SPLIT)
    except (OSError, ValueError, KeyError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(
            f"datasets cannot load {SPLIT} of {dataset!r}: {first[:160]}; give a folder that it saved"
        ) from error
    return [dict(row) for row in rows]


def _squad_of_json(data: Any) -> _Parsed:
    articles = [(a["title"], [(p["context"], p["qas"]) for p in a["paragraphs"]]) for a in data["data"]]
    return _squad_of_articles(articles)


def _squad_of_rows(rows: Iterable[Mapping[str, Any]]) -> _Parsed:
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        answers = [{"text": text} for text in row["answers"]["text"]]
        asked = {"question": row["question"], "answers": answers, "is_impossible": not answers}
        articles.setdefault(row["title"], {}).setdefault(row["context"], []).append(asked)
    return _squad_of_articles([(title, list(paragraphs.items())) for title, paragraphs in articles.items()])


def _squad_of_articles(articles: list[tuple[str, list[tuple[str, Any]]]]) -> _Parsed:
    documents = sorted({context for _, paragraphs in articles for context, _ in paragraphs})
    number = {document: n for n, document in enumerate(documents)}
    items = []
    for title, paragraphs in articles:
        of_article = list(dict.fromkeys(number[context] for context, _ in paragraphs))
        for context, asked in paragraphs:
            gold = number[context]
            related = tuple(n for n in of_article if n != gold)
            for question in asked:
                if question["is_impossible"]:
                    continue
                answers = tuple(answer["text"] for answer in question["answers"])
                items.append(Item(question["question"], answers, (gold,), related, title))
    return documents, items


def _hotpotqa_of_json(data: Any) -> _Parsed:
    return _hotpotqa_of_questions(
        (q["question"], q["answer"], [(title, sentences) for title, sentences in q["context"]], q["supporting_facts"])
        for q in data
    )


def _hotpotqa_of_rows(rows: Iterable[Mapping[str, Any]]) -> _Parsed:
    return _hotpotqa_of_questions(
        (
            row["question"],
            row["answer"],
            list(zip(row["context"]["title"], row["context"]["sentences"], strict=True)),
            list(zip(row["supporting_facts"]["title"], row["supporting_facts"]["sent_id"], strict=True)),
        )
        for row in rows
    )


def _hotpotqa_of_questions(questions: Iterable[tuple[str, str, list[tuple[str, list[str]]], list[Any]]]) -> _Parsed:
    asked = [
        (query, answer, [f"{title}\n{''.join(sentences)}" for title, sentences in context], min(f[0] for f in facts))
        for query, answer, context, facts in questions
    ]
    documents = sorted({document for _, _, context, _ in asked for document in context})
    number = {document: n for n, document in enumerate(documents)}
    items = [
        Item(query, (answer,), tuple(dict.fromkeys(number[d] for d in context)), (), article)
        for query, answer, context, article in asked
    ]
    return documents, items
