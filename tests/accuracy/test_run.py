"""Arms asked of servers that answer in no time, and of servers that lie, die or are another one's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx2")
pytest.importorskip("prometheus_client")

from kvverify.cli.main import run
from kvverify.events import EngineDescribed, ProblemMet, Verdict
from kvverify.events_accuracy import ArmStarted, CacheReadStated, SampleLeftOut
from kvverify.report.log import read_events
from kvverify.verdicts import reasons, verdict_of
from tests.accuracy.asked import MODEL, accuracy_run, answers, dies_after, stub_server, suite


def problem(out: Path) -> str:
    return next(e.problem for e in read_events(out) if isinstance(e, ProblemMet))


def test_every_sample_is_asked_once_and_scored(tmp_path: Path) -> None:
    with stub_server() as server:
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path, samples=20))
    assert (code, reasons(events)) == (0, [])
    found = answers(events)
    assert sorted(e.index for e in found) == list(range(20))
    assert {e.score for e in found} == {1.0}
    assert all(e.prompt_tokens == e.sent_tokens > 0 and e.output_tokens == 4 and e.finish == "length" for e in found)
    assert all(e.ttft > 0 and e.seconds >= e.ttft for e in found)
    arm = next(e for e in events if isinstance(e, ArmStarted))
    assert (arm.label, arm.suite, arm.kind, arm.planned) == ("tried", "tried", "retrieval", {"task/64": 20})
    assert {"model": MODEL, "tokenizer": "bytes", "tier": "none", "control": "none"}.items() <= arm.identity.items()
    stated = next(e for e in events if isinstance(e, CacheReadStated))
    assert (stated.samples, stated.decode_steps, stated.hit_tokens, stated.continued_tokens) == (20, 60, 0, -1)
    assert stated.raw_tokens == sum(e.prompt_tokens for e in found)
    # each sample has a cache of its own
    salts = [body["cache_salt"] for body in server.bodies if "cache_salt" in body]
    assert len(set(salts)) == len(salts) == 20


def test_two_arms_are_asked_the_very_same_samples(tmp_path: Path) -> None:
    with stub_server() as server:
        arms = [
            accuracy_run(tmp_path / name, [server.url], suite(tmp_path), "--seed", seed)[1]
            for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
        ]
    keys = [sorted(e.key for e in answers(events)) for events in arms]
    hashes = [e.samples_hash for events in arms for e in events if isinstance(e, ArmStarted)]
    assert keys[0] == keys[1] != keys[2]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_truncating_server_is_refused_at_the_first_answer(tmp_path: Path) -> None:
    with stub_server(context=8192) as server:
        server.count = lambda prompt: min(len(prompt), 200)
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path, samples=40, options="long = 0"))
    assert code == 2
    assert "the server read 200 prompt tokens" in problem(tmp_path / "run")
    assert "cuts prompts short" in problem(tmp_path / "run")
    cut = next(e for e in answers(events) if e.index == 0)
    assert cut.error
    assert cut.score == 0.0


def test_another_tokenizer_is_refused_before_a_sample_is_sent(tmp_path: Path) -> None:
    with stub_server() as server:
        server.count = lambda prompt: len(prompt) + 1
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path))
    assert code == 2
    assert "a start token is missing or doubled" in problem(tmp_path / "run")
    assert not answers(events)


@pytest.mark.parametrize(
    ("mode", "words"), [("no-logprobs", "completions with logprobs are needed"), ("404-model", "does not exist")]
)
def test_a_server_that_cannot_do_it_is_refused(tmp_path: Path, mode: str, words: str) -> None:
    with stub_server(mode=mode) as server:
        server.pages["/v1/models"] = server.pages["/v1/models"]
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path))
    assert code == 2
    assert words in problem(tmp_path / "run")
    assert not answers(events)


def test_a_model_that_is_not_served_is_refused(tmp_path: Path) -> None:
    with stub_server() as server:
        code, _ = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path), "--served-model", "other")
    assert code == 2
    assert "model 'other' is not served there; it serves m" in problem(tmp_path / "run")


def test_a_context_smaller_than_the_size_class_is_refused(tmp_path: Path) -> None:
    with stub_server(context=512) as server:
        code, _ = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path, lengths="[1024]"))
    assert code == 2
    assert "its context of 512 tokens is smaller than samples of 1024" in problem(tmp_path / "run")


def test_a_sample_beyond_the_context_is_left_out_and_counted(tmp_path: Path) -> None:
    with stub_server(context=512) as server:
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path, options="long = 2"))
    assert code == 3
    left = [e for e in events if isinstance(e, SampleLeftOut)]
    assert [e.index for e in left] == [2]
    assert "4 to generate, the context is 512" in left[0].reason
    assert len(answers(events)) == 5
    assert any("1 of 6 samples are missing: 1 left out" in r.text for r in reasons(events))
    assert all(len(body.get("prompt", "")) < 512 for body in server.bodies)


def test_endpoints_share_the_samples(tmp_path: Path) -> None:
    with stub_server(mode="pause") as one, stub_server(mode="pause") as two:
        code, events = accuracy_run(
            tmp_path / "run", [one.url, two.url], suite(tmp_path, samples=24), "--concurrency", "2"
        )
    assert code == 0
    assert {e.endpoint for e in answers(events)} == {0, 1}
    assert len(answers(events)) == 24
    assert max(one.most_active, two.most_active) <= 2


def test_endpoints_that_differ_are_refused(tmp_path: Path) -> None:
    with stub_server() as one, stub_server() as two:
        two.pages["/version"] = '{"version": "0.27.0"}'
        code, events = accuracy_run(tmp_path / "run", [one.url, two.url], suite(tmp_path))
    assert code == 2
    assert "build is vllm 0.27.0, and was vllm 0.26.0; endpoints of one run must be alike" in problem(tmp_path / "run")
    assert not answers(events)


def test_what_a_dying_endpoint_held_goes_to_the_others(tmp_path: Path) -> None:
    with stub_server() as one, stub_server() as two:
        dies_after(two, 15)
        code, events = accuracy_run(
            tmp_path / "run", [one.url, two.url], suite(tmp_path, samples=120), "--concurrency", "3"
        )
    assert (code, reasons(events)) == (0, [])
    assert sorted(e.index for e in answers(events)) == list(range(120))
    notes = [note for e in events if isinstance(e, EngineDescribed) for note in e.notes]
    assert any("is lost, its samples go to the others" in note for note in notes)
    assert "tokenizer bytes" in notes  # and no gap of the report
    assert next(e for e in events if isinstance(e, ArmStarted)).notes == []


def test_with_no_endpoint_left_the_run_is_an_error_and_goes_on_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with stub_server() as one:
        dies_after(one, 40)
        code, events = accuracy_run(out, [one.url], suite(tmp_path, samples=120), "--concurrency", "3")
    assert code == 2
    assert "no endpoint is left" in problem(out)
    before = {e.key for e in answers(events) if not e.error}
    assert 0 < len(before) < 120
    with stub_server() as other:
        assert run(["accuracy", "run", "--resume", str(out), "--url", other.url]) == 0
    events = read_events(out)
    keys = [e.key for e in answers(events) if not e.error]
    assert len(keys) == len(set(keys)) == 120
    assert verdict_of(events) is Verdict.PASS


def test_a_resumed_run_refuses_another_server(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with stub_server() as server:
        accuracy_run(out, [server.url], suite(tmp_path))
        log = out / "events.ndjson"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:-4]))
        server.pages["/version"] = '{"version": "0.32.0"}'
        code = run(["accuracy", "run", "--resume", str(out)])
    assert code == 2
    assert "the run to resume was another arm: build is vllm 0.32.0, and was vllm 0.26.0" in problem(out)


def test_failed_requests_are_missing_and_never_scored(tmp_path: Path) -> None:
    with stub_server() as server:
        whole = server.count
        assert whole is not None

        def sometimes(prompt: str) -> int:
            server.mode = "500" if " 3 " in prompt else ""
            return whole(prompt)

        server.count = sometimes
        code, events = accuracy_run(tmp_path / "run", [server.url], suite(tmp_path), "--concurrency", "1")
    failed = [e for e in answers(events) if e.error]
    assert code == 3
    assert failed
    assert {e.score for e in answers(events) if not e.error} == {1.0}
    stated = next(e for e in events if isinstance(e, CacheReadStated))
    assert stated.samples == len([e for e in answers(events) if not e.error])
    assert any("samples are missing" in r.text and "failed" in r.text for r in reasons(events))


def test_wrong_words_are_refused_before_a_run_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, out = ["--url", "http://127.0.0.1:9"], ["--out", str(tmp_path / "run")]
    good = ["--label", "a", "--suite", str(suite(tmp_path))]
    for words, message in [
        ([*url, "--label", "a"], "--suite is missing"),
        ([*url, "--suite", "smoke"], "--label is missing"),
        (good, "--url is missing"),
        ([*url, *url, *good], "the same server stands there twice"),
        ([*url, *good, "--control", "scramble", "--tier", "dram"], "would load over it"),
        ([*url, *good, "--replay", "--tier", "hbm"], "leave it out"),
        ([*url, "--url", "http://127.0.0.1:8", *good, "--tier", "hbm"], "give one --url"),
        ([*url, "--label", "a", "--suite", "smok"], "did you mean 'smoke'"),
        ([*url, *good, "--task", "other"], "no task 'other'; it has task"),
        ([*url, *good, "--declare", "gpu"], "expected KEY=VALUE"),
        ([*url, *good, "--ray", "--tier", "hbm"], "--ray"),
    ]:
        assert run(["accuracy", "run", *words, *out]) == 2, words
        assert message in capsys.readouterr().err, words
    assert not (tmp_path / "run").exists()


def test_no_server_is_an_error(tmp_path: Path) -> None:
    code, events = accuracy_run(tmp_path / "run", ["http://127.0.0.1:9"], suite(tmp_path))
    assert code == 2
    assert "is the server up" in problem(tmp_path / "run")
    assert verdict_of(events) is Verdict.ERROR


def test_replay_is_proved_by_the_cached_tokens(tmp_path: Path) -> None:
    cached = {"block_size": "4"}
    page = (
        "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{"
        + ",".join(f'{k}="{v}"' for k, v in cached.items())
        + "} 1\n"
    )
    with stub_server(cached=0) as server:
        server.pages["/metrics"] = page
        code, events = accuracy_run(tmp_path / "cold", [server.url], suite(tmp_path), "--replay")
        assert code == 3
        assert all(e.error.startswith("replay hit 0 tokens, expected") for e in answers(events))
        server.cached = 4096
        code, events = accuracy_run(tmp_path / "hit", [server.url], suite(tmp_path), "--replay")
    assert code == 0
    sent = [body for body in server.bodies if "cache_salt" in body]
    assert [body["max_tokens"] for body in sent].count(1) == len(sent) // 2


def test_json_output_names_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server() as server:
        accuracy_run(tmp_path / "run", [server.url], suite(tmp_path), "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"] == "PASS"
