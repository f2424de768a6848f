"""The manifest of a sign-off: whatever byte changes, and whatever file comes or goes, `kvverify verify-report` finds it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvverify.cli.main import run as kvverify
from kvverify.errors import UsageError
from kvverify.events import Verdict
from kvverify.report.manifest import block_of, without_block, write_manifest
from kvverify.report.manifest_check import check_manifest

PAGE = "<!doctype html>\n<html>\n<body>\n<p>PASS – é</p>\n</body>\n</html>\n"


def signed_off(root: Path, page: str = PAGE) -> Path:
    """Make two runs and a sign-off beside them; return its folder."""
    for name in ("one", "two"):
        run = root / "runs" / name
        (run / "failures").mkdir(parents=True)
        (run / "events.ndjson").write_text(f'{{"event": "RunStarted", "run": "{name}"}}\n')
        (run / "run.json").write_text("{}\n")
        (run / "report.html").write_text("made again at any time")
    (root / "runs" / "two" / "failures" / "k.json").write_text('{"step": 3}\n')
    folder = root / "signoff"
    folder.mkdir()
    (folder / "signoff.html").write_text(page)
    (folder / "signoff.md").write_text("# PASS\n")
    artefacts = [folder / "signoff.html", folder / "signoff.md"]
    assert write_manifest(folder, artefacts, [root / "runs" / "one", root / "runs" / "two"]) == folder / "manifest.json"
    return folder


def covered(folder: Path) -> list[Path]:
    """Return every file that a change must be found in."""
    return sorted(p for p in folder.parent.rglob("*") if p.is_file() and p.name != "report.html")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signed_off(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return signed_off(tmp_path)


@pytest.mark.parametrize("name", ["", "signoff.html", "manifest.json"])
def test_what_was_not_changed_passes(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kvverify(["verify-report", str(folder / name)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS: 7 files, ")
    assert "as signed off" in out
    assert "no signature was verified: digests show changes, not who made them" in out


def test_the_manifest_names_files_relative_to_itself_with_their_digests(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [run["name"] for run in manifest["runs"]] == ["../runs/one", "../runs/two"]
    assert [f["name"] for f in manifest["runs"][1]["files"]] == ["events.ndjson", "failures/k.json", "run.json"]
    log = (folder.parent / "runs" / "one" / "events.ndjson").read_bytes()
    assert manifest["runs"][0]["files"][0]["sha256"] == hashlib.sha256(log).hexdigest()
    assert manifest["runs"][0]["files"][0]["bytes"] == len(log)
    assert manifest["page"]["sha256"] == hashlib.sha256(PAGE.encode()).hexdigest()


def test_the_page_carries_the_manifest_and_is_otherwise_as_it_was(folder: Path) -> None:
    page = (folder / "signoff.html").read_bytes()
    assert block_of(page) == (folder / "manifest.json").read_bytes()
    assert without_block(page) == PAGE.encode()
    assert page.endswith(b"</script>\n</body>\n</html>\n")


@pytest.mark.parametrize("target", ["", "signoff.html", "manifest.json"])
@given(data=st.data())
def test_any_changed_byte_is_found_and_its_file_named(shared: Path, target: str, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(covered(shared)), label="file")
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), label="byte")
    change = data.draw(st.integers(1, 255), label="xor")
    assert found_after(shared / target, file, content[:at] + bytes([content[at] ^ change]) + content[at + 1 :])


@given(data=st.data())
def test_any_byte_put_in_or_taken_out_is_found(shared: Path, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(covered(shared)), label="file")
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), label="byte")
    new = data.draw(st.binary(max_size=2), label="in its place")
    if new != content[at : at + 1]:
        assert found_after(shared, file, content[:at] + new + content[at + 1 :])


@pytest.mark.parametrize("target", ["signoff.html", "manifest.json"])
def test_each_byte_of_the_manifest_and_of_the_page_counts(shared: Path, target: str) -> None:
    for file in (shared / "signoff.html", shared / "manifest.json"):
        content = file.read_bytes()
        missed = [
            at
            for at in range(len(content))
            if not found_after(shared / target, file, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        ]
        assert missed == []


def found_after(target: Path, file: Path, changed: bytes) -> bool:
    """Say whether a change to ``file`` is a FAIL that names it, or an error that does; ``file`` is as before afterwards."""
    before = file.read_bytes()
    file.write_bytes(changed)
    try:
        findings = check_manifest(target).findings
    except UsageError as error:
        return file.name in str(error)
    finally:
        file.write_bytes(before)
    # one of the two copies of the manifest was changed: they differ, and which of them is right only its own digest says
    copies = {"signoff.html", "manifest.json"}
    blamed = {Path(f.file).name for f in findings if f.verdict == Verdict.FAIL}
    return bool(blamed) and (file.name in blamed or (file.name in copies and blamed <= copies))


def resized(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        (
            lambda root: resized(root / "runs/one/events.ndjson"),
            1,
            "FAIL: ../runs/one/events.ndjson: changed: 39 bytes, expected 38",
        ),
        (lambda root: resized(root / "signoff/signoff.md"), 1, "FAIL: signoff.md: changed: 8 bytes, expected 7"),
        (lambda root: resized(root / "signoff/signoff.html"), 1, "FAIL: signoff.html: changed"),
        (lambda root: resized(root / "signoff/manifest.json"), 1, "FAIL: manifest.json: changed"),
        (
            lambda root: (root / "runs/one/failures/new.json").write_text("{}"),
            1,
            "FAIL: ../runs/one/failures/new.json: added: the manifest does not name it",
        ),
        (
            lambda root: (root / "runs/two/events.ndjson").unlink(),
            3,
            "INCONCLUSIVE: ../runs/two/events.ndjson: not there",
        ),
        (lambda root: shutil.rmtree(root / "runs/two"), 3, "INCONCLUSIVE: ../runs/two/run.json: not there"),
        (lambda root: (root / "signoff/signoff.html").unlink(), 3, "INCONCLUSIVE: signoff.html: not there"),
        (lambda root: (root / "signoff/manifest.json").unlink(), 3, "INCONCLUSIVE: manifest.json: not there"),
    ],
    ids=["event log", "artefact", "page", "manifest", "added", "log gone", "run gone", "page gone", "manifest gone"],
)
def test_each_kind_of_change_has_its_line_and_exit_code(
    folder: Path, change: Callable[[Path], object], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder.parent)
    assert kvverify(["verify-report", str(folder)]) == code
    assert line in capsys.readouterr().out


def test_a_run_may_be_reported_again_and_all_may_be_moved_together(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "runs" / "one" / "report.html").write_text("another page")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("runs", "signoff"):
        (tmp_path / name).rename(moved / name)
    assert kvverify(["verify-report", str(moved / "signoff")]) == 0


def test_a_renamed_copy_of_the_page_is_checked_itself(folder: Path) -> None:
    copy = folder / "for-my-boss.html"
    shutil.copy(folder / "signoff.html", copy)
    assert kvverify(["verify-report", str(copy)]) == 0
    copy.write_text(copy.read_text().replace("PASS", "FAIL", 1))
    assert kvverify(["verify-report", str(copy)]) == 1


@pytest.mark.parametrize("inside", ["runs/one", "runs/one/signoff"])
def test_a_sign_off_may_lie_in_the_folder_of_its_run(folder: Path, inside: str, tmp_path: Path) -> None:
    run, home = tmp_path / "runs" / "one", tmp_path / inside
    home.mkdir(exist_ok=True)
    (home / "signoff.html").write_text(PAGE)
    for _ in range(2):  # the second time over the first one's page, with its manifest
        write_manifest(home, [home / "signoff.html"], [run])
        (home / "manifest.json.sig").write_text("signed")
        assert kvverify(["verify-report", str(home)]) == 0
    resized(run / "events.ndjson")
    assert kvverify(["verify-report", str(home)]) == 1


@given(
    name=st.text("<>&\"'é/ \u2028", min_size=1, max_size=8).filter(lambda n: n.strip("/ .") and not n.startswith("/"))
)
@example(name="</script><b>")
def test_a_name_cannot_end_the_block(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    root = tmp_path_factory.mktemp("names")
    run = root / "run" / name
    run.mkdir(parents=True)
    (run / "events.ndjson").write_text("{}\n")
    page = root / "signoff.html"
    page.write_text(PAGE)
    write_manifest(root, [page], [run])
    assert page.read_bytes().count(b"</script>") == 1
    assert check_manifest(page).findings == []


def test_a_manifest_needs_a_run_with_an_event_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="manifest: no run; expected at least one run folder"):
        write_manifest(tmp_path, [], [])
    with pytest.raises(UsageError, match=r"holds no events\.ndjson; expected the folder that an earlier run printed"):
        write_manifest(tmp_path, [], [tmp_path])


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x.html", "<p>no block</p>", "holds no manifest, or the element that carries it was changed"),
        ("manifest.json", "{}", "no manifest of kvverify, version 1, or damaged (kvverify: Field required)"),
        ("manifest.json", '{"version": 2}', "no manifest of kvverify, version 1, or damaged (version: "),
        ("manifest.json", "\xff", "no manifest of kvverify, version 1, or damaged (Invalid JSON"),
        (
            "manifest.json",
            '{"kvverify": "0", "runs": [{"name": "/etc", "files": []}]}',
            "expected a path relative to the manifest's folder",
        ),
    ],
)
def test_what_is_no_manifest_is_a_usage_error(
    tmp_path: Path, name: str, text: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    assert kvverify(["verify-report", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_a_folder_without_a_sign_off_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kvverify(["verify-report", str(tmp_path)]) == 2
    assert "holds neither manifest.json nor signoff.html; expected the folder of a sign-off" in capsys.readouterr().err


def test_json_says_what_was_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resized(folder / "signoff.md")
    assert kvverify(["verify-report", "--json", str(folder)]) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["verdict"], document["exit_code"], document["files"]) == ("FAIL", 1, 7)
    assert [f["file"] for f in document["findings"]] == ["signoff.md"]
    assert document["manifest_sha256"] == json.loads((folder / "manifest.json").read_text())["sha256"]


def test_one_byte_of_the_h200_logs_changed_after_the_sign_off_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Path(__file__).parents[2] / "results" / "h200"
    runs = [tmp_path / name for name in ("roundtrip", "selftest")]
    for run in runs:
        shutil.copytree(results / run.name, run)
    home = tmp_path / "signoff"
    assert kvverify(["report", *map(str, runs), "--policy", "release", "--out", str(home)]) == 1  # it holds findings
    assert kvverify(["verify-report", str(home / "signoff.html")]) == 0
    log = runs[0] / "events.ndjson"
    content = bytearray(log.read_bytes())
    at = content.index(b'"compared_bytes": ') + len(b'"compared_bytes": ')
    content[at] ^= 1  # another digit: the log stays valid
    log.write_bytes(content)
    capsys.readouterr()
    assert kvverify(["verify-report", str(home / "signoff.html")]) == 1
    out = capsys.readouterr().out
    assert "FAIL: ../roundtrip/events.ndjson: changed: " in out
    assert out.count("FAIL: ") == 2  # the file and the verdict
