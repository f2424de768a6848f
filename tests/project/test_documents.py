"""Every command in README, CONTRIBUTING and docs/ is run here, or is marked as needing more than a test machine and is parsed."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from docs.write_commands import reference
from tests.live.real.servers import free_port
from tests.project.documents import (
    PAGES,
    ROOT,
    WRITTEN,
    Block,
    blocks,
    inline,
    known_options,
    parse,
    parse_nox,
    parse_other,
)

EVIDENCE = [*PAGES, *sorted((ROOT / "results").rglob("*.md"))]
ALL = [block for page in PAGES for block in blocks(page)]
COMMANDS = [(block, words) for block in ALL for words in block.commands]
# the same command with less to do: values of options it has, and options it lacks
SHORTER_VALUES = {"--sessions": "2", "--rounds": "1"}
SHORTER_OPTIONS = {
    "kernels": ["--kernel", "torch"],
    "roundtrip": ["--examples", "208"],  # of slow kernels an eighth; the policies ask for 200
    "selftest": ["--kernel", "torch", "--fault", "F04"],
    "codecs verify": ["--library", "vllm", "--preset", "turboquant_4bit_nc", "--head-size", "64"],
    "codecs bench": ["--tokens", "64"],
    "lab": ["--hbm-blocks", "96"],  # HBM is overwritten faster
    "tier-diff": ["--requests", "1", "--concurrency", "1", "--long-requests", "0", "--max-tokens", "4"],
    "accuracy run": ["--samples", "2"],
}
RUN_ELSEWHERE = {"demo": "test_demo.py"}  # two minutes of its own
LIMIT_S = 300
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
# by name alone, since the commands import them and this process need not; the nox session refuses to begin without them
NEEDED = ("torch", "lmcache", "vllm", "openai", "httpx2", "prometheus_client", "scipy", "tokenizers", "wonderwords")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def spelled(command: tuple[Block, list[str]]) -> str:
    block, words = command
    return f"{block.page.name}:{block.line} {shlex.join(words)}"


def runnable(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.language in ("sh", "python", "toml", "yaml") and not b.parsed_only]


@pytest.mark.parametrize("command", COMMANDS, ids=[spelled(c) for c in COMMANDS])
def test_every_command_is_understood(command: tuple[Block, list[str]]) -> None:
    _, (program, *rest) = command
    if program == "kvverify":
        parse(rest)
    elif program == "nox":
        parse_nox(rest)
    else:
        parse_other(command[1])


@pytest.mark.parametrize("name", [page.name for page in PAGES if page != WRITTEN])
def test_commands_stand_in_fences_that_say_what_they_are(name: str) -> None:
    page = next(page for page in PAGES if page.name == name)
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    indented = [line for line in prose.splitlines() if re.match(r" {4,}(kvverify|nox|python|pip|vllm|lmcache) ", line)]
    assert indented == []
    known = {"gpu", "rocm", "server", "lab", "exits"}
    words = {mark for block in blocks(page) if block.language == "sh" for mark in block.marks if not mark.isdigit()}
    assert words <= known
    assert all(block.language for block in blocks(page))


@pytest.mark.parametrize(("page", "words"), inline("kvverify", EVIDENCE), ids=lambda v: str(v)[:60])
def test_every_command_in_prose_has_the_options_it_is_shown_with(page: str, words: list[str]) -> None:
    assert known_options(words[1:]) == set()


@pytest.mark.parametrize(("page", "words"), inline("nox", PAGES), ids=lambda v: str(v)[:60])
def test_every_session_in_prose_exists(page: str, words: list[str]) -> None:
    parse_nox(words[1:])


@pytest.mark.parametrize(
    "words", [["roundtripp"], ["roundtrip", "--kernle", "torch"], ["roundtrip", "--ranks", "x"], ["replay"]]
)
def test_a_wrong_command_is_not_understood(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(words)


@pytest.mark.parametrize("words", [["-s", "roundtripp"], ["-s", "types", "--", "--x"]])
def test_a_wrong_session_is_not_understood(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        parse_nox(words)


def test_the_command_reference_is_up_to_date() -> None:
    assert WRITTEN.read_text() == reference(), "write it again: nox -s docs"


def test_an_option_can_be_set_by_the_variable_that_the_reference_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvverify.cli import main

    monkeypatch.setenv("KVVERIFY_ROUNDTRIP_RANKS", "none")
    assert main.run(["roundtrip"]) == 2
    monkeypatch.setenv("KVVERIFY_ACCURACY_PLAN_MARGIN", "none")
    assert main.run(["accuracy", "plan"]) == 2


LINKS = [(p.name, t) for p in PAGES for t in re.findall(r"\]\(([^)\s]+)\)", p.read_text()) if not t.startswith("http")]


@pytest.mark.parametrize(("page", "target"), LINKS, ids=[f"{p} {t}" for p, t in LINKS])
def test_every_link_leads_somewhere(page: str, target: str) -> None:
    own = next(p for p in PAGES if p.name == page)
    path, _, anchor = target.partition("#")
    linked = (own.parent / path) if path else own
    assert linked.exists()
    if anchor and linked.suffix == ".md":
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_page_can_be_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []


@pytest.mark.parametrize("words", list(RUN_ELSEWHERE))
def test_what_is_run_elsewhere_is(words: str) -> None:
    assert f'"{words}"' in (ROOT / "tests" / "project" / RUN_ELSEWHERE[words]).read_text()


def test_figures_of_the_comparison_that_follow_from_formulas() -> None:
    def at_most_one_apart(loss: float, gain: float, n: int = 50) -> float:
        terms = [
            math.comb(n, a) * loss**a * (1 - loss) ** (n - a) * math.comb(n, b) * gain**b * (1 - gain) ** (n - b)
            for a in range(n + 1)
            for b in range(max(0, a - 1), min(n, a + 1) + 1)
        ]
        return math.fsum(terms)

    text = (ROOT / "docs" / "compared-with-other-tools.md").read_text()
    clean, losing = 1 - at_most_one_apart(0.02, 0.02), at_most_one_apart(0.07, 0.02)
    assert f"fails {clean:.0%} of clean runs".replace("%", " %") in text
    assert f"passes {losing:.0%} of runs".replace("%", " %") in text
    assert f"{math.ceil(math.log(0.05) / math.log(0.99))} requests" in text


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.commands for b in runnable(p))], ids=lambda p: p.stem)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("report.html", "*.svg"))
    ports: dict[str, str] = {}
    with labs(tmp_path) as start:
        for block in runnable(page):
            if block.language != "sh" and block.marks:
                (tmp_path / block.marks[0]).write_text(block.text)  # ```python my_kernel.py
            for words in block.commands:
                here = shorter([with_port(word, ports) for word in words])
                if "lab" in block.marks:
                    start(here)
                elif here[0] == "kvverify" and here[1] not in RUN_ELSEWHERE:
                    run_kvverify(here[1:], tmp_path, block.exit_code if words == block.commands[-1] else 0)
                elif (here[0] == "python" and (here[1] == "-c" or here[1].endswith(".py"))) or (
                    here[0] == "ssh-keygen" and shutil.which("ssh-keygen")
                ):
                    tool = [sys.executable if here[0] == "python" else here[0], *here[1:]]
                    subprocess.run(tool, cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=60)
                elif here[0] == "ssh-keygen":
                    break  # the rest needs its files; test_detached_signature.py runs the command with another tool


def shorter(words: list[str]) -> list[str]:
    """Return the same command with less to do."""
    if words[0] != "kvverify" or "--resume" in words:
        return words
    if "--budget" in words:  # seconds of a busy machine are no measure
        at = words.index("--budget")
        words = words[:at] + words[at + 2 :]
    words = [SHORTER_VALUES.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    for name, options in SHORTER_OPTIONS.items():
        if words[1 : 1 + len(name.split())] == name.split():
            pairs = [options[at : at + 2] for at in range(0, len(options), 2)]
            words = words + [word for pair in pairs if pair[0] not in words for word in pair]
    return words


def with_port(word: str, ports: dict[str, str]) -> str:
    """Return a word with the ports of the page replaced by free ones; 8123 and the like may be taken."""
    for port in re.findall(r"\b81\d\d\b", word):
        if port not in ports:
            ports[port] = str(free_port())
        word = word.replace(port, ports[port])
    return word


def run_kvverify(words: list[str], folder: Path, exit_code: int) -> None:
    words = [name for word in words for name in ([str(p) for p in folder.glob(word)] if "*" in word else [word])]
    ended = subprocess.run(
        [sys.executable, "-m", "kvverify", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KVVERIFY_ACCURACY_RUN_CACHE": str(folder / "samples")},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert ended.returncode == exit_code, f"{shlex.join(words)}\n{ended.stdout}\n{ended.stderr}"


@contextmanager
def labs(folder: Path) -> Iterator[Callable[[list[str]], None]]:
    """Yield a function that starts a server and waits until it answers; all are ended on leaving."""
    started: list[subprocess.Popen[bytes]] = []

    def start(words: list[str]) -> None:
        port = words[words.index("--port") + 1]
        log = folder / f"lab-{port}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=out,
            )
        started.append(process)
        until = time.monotonic() + 60
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)

    try:
        yield start
    finally:
        for process in started:
            process.terminate()  # a shell in the background may have its children ignore an interrupt
        for process in started:
            process.wait(30)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - a server of ours
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
