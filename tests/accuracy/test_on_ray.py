"""Samples asked from the workers of a Ray cluster of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("openai")
pytest.importorskip("httpx2")
pytest.importorskip("prometheus_client")

import ray

from kvverify.cli.main import run
from kvverify.report.log import read_events
from kvverify.verdicts import reasons
from tests.accuracy.asked import accuracy_run, answers, stub_server, suite

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own start


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of three workers at most, started by somebody else than the run."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}}
    )
    yield context.address_info["address"]
    ray.shutdown()


def test_workers_ask_every_sample_once(cluster: str, tmp_path: Path) -> None:
    with stub_server() as one, stub_server() as two:
        code, events = accuracy_run(
            tmp_path / "run", [one.url, two.url], suite(tmp_path, samples=40), "--ray", cluster, "--concurrency", "4"
        )
    assert (code, reasons(events)) == (0, [])
    found = answers(events)
    assert sorted(e.index for e in found) == list(range(40))
    assert {e.score for e in found} == {1.0}
    assert {e.endpoint for e in found} == {0, 1}
    assert all(e.ttft > 0 for e in found)
    assert one.most_active <= 4 >= two.most_active


def test_what_only_the_driver_can_score_is_scored_there(cluster: str, tmp_path: Path) -> None:
    """A worker has not loaded lm-eval's task."""
    pytest.importorskip("datasets")
    with stub_server() as server:
        words = ["--ray", cluster, "--samples", "8", "--concurrency", "2"]
        code, events = accuracy_run(tmp_path / "run", [server.url], "word-problems", *words)
    assert (code, reasons(events)) == (0, [])
    assert sorted(e.index for e in answers(events)) == list(range(8))
    assert all("exact_match,strict-match" in e.aspects for e in answers(events))


def test_a_worker_that_is_killed_loses_no_sample(cluster: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with stub_server(mode="pause") as server, stub_server(mode="pause") as other:
        killed = threading.Timer(3.0, kill_a_worker)
        killed.start()
        code, events = accuracy_run(
            out, [server.url, other.url], suite(tmp_path, samples=300), "--ray", cluster, "--concurrency", "2"
        )
        if code != 0:
            assert run(["accuracy", "run", "--resume", str(out)]) == 0
        killed.join()
    events = read_events(out)
    keys = [e.key for e in answers(events) if not e.error]
    assert len(keys) == len(set(keys)) == 300


def kill_a_worker() -> None:
    """Kill one process that runs a worker of ours."""
    from ray.util.state import list_actors

    alive = [actor.pid for actor in list_actors(filters=[("state", "=", "ALIVE")])]
    os.kill(alive[0], signal.SIGKILL)


@pytest.mark.parametrize(("address", "words"), [("127.0.0.1:9", "is the cluster up"), ("here", "expected HOST:PORT")])
def test_a_cluster_that_is_not_there_is_an_error(
    tmp_path: Path, address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with stub_server() as server:
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path), "--ray", address)
    assert code == 2
    assert any(words in reason.text for reason in reasons(events))
