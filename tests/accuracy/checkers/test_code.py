from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from kvverify.accuracy.checkers import code as rule
from kvverify.accuracy.checkers import system_calls
from kvverify.accuracy.scoring import Score, score
from kvverify.errors import EnvironmentProblem, UsageError
from tests.accuracy.checkers.asked import asked

pytestmark = pytest.mark.skipif(
    bool(system_calls.supported()) and "KVVERIFY_REQUIRE" not in os.environ,
    reason=system_calls.supported() or "supported",
)

HEAD = "def double(x):\n"
CASES = [{"args": [n], "expected": 2 * n} for n in (0, 1, -3)]
DETAILS: dict[str, Any] = {"function": "double", "code_prefix": HEAD, "cases": CASES, "allow_code": True}


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rule.ALLOW_VARIABLE, "1")


def scored(text: str, **details: Any) -> Score:
    return score(asked("code", details={**DETAILS, **details}), text)


@pytest.mark.parametrize(
    "answer",
    [
        "    return 2 * x\n",
        "    if x:\n        return x + x\n    return 0\n",
        "```python\ndef double(x):\n    return 2 * x\n```",
        "Here it is:\n```python\nimport math\n\ndef double(x):\n    return math.floor(x * 2)\n```\nIt doubles.",
        "    return 2.0 * x",
    ],
)
def test_a_right_function_scores_1(answer: str) -> None:
    found = scored(answer)
    assert (found.value, found.format_error, found.aspects) == (1.0, "", {"cases": 1.0})


def test_wrong_results_cost_their_cases() -> None:
    assert scored("    return abs(2 * x)\n").aspects == {"cases": 2 / 3}
    assert scored("    return abs(2 * x)\n").value == 0.0
    assert scored("    return str(2 * x)\n").aspects == {"cases": 0.0}
    assert scored("    raise ValueError\n").format_error == ""


def test_what_is_not_python_is_a_format_error() -> None:
    assert scored("    return 2 *\n").format_error == "not Python: SyntaxError: invalid syntax (answer, line 2)"
    assert scored("I would multiply it by two.").format_error.startswith("not Python: IndentationError")
    assert scored("    return '\0'").format_error.startswith("not Python: ")
    assert scored("    return '\ud800'").value == 0.0
    assert scored("    return " + "(" * 5000).format_error.startswith("not Python: ")


def test_tests_as_text_count_as_one_case() -> None:
    assert scored("    return 2 * x\n", cases=[], tests="assert double(4) == 8").value == 1.0
    assert scored("    return 2 * x\n", tests="assert double(4) == 9").aspects == {"cases": 3 / 4}


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "import time; time.sleep(3600)",
        "return 10 ** 10 ** 9",
        "return len(' ' * 10 ** 10)",
        "return [0] * 10 ** 9",
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "return double(x)",
        "import ctypes; return ctypes.string_at(0)",
        "return 'x' * (1 << 22)",
    ],
)
def test_code_that_hangs_dies_or_eats_memory_is_stopped(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "CPU_SECONDS", 1)
    monkeypatch.setattr(rule, "WALL_SECONDS", 4.0)
    start = time.monotonic()
    found = scored(f"    {body}\n")
    assert time.monotonic() - start < 20
    assert found.value == 0.0
    assert found.aspects["cases"] == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "import os; return os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['true'])",
        "import threading; t = threading.Thread(target=print); t.start()",
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "open('FILE', 'w').write('x')",
        "import os; os.mkdir('FILE')",
        "import os; os.unlink('VICTIM')",
        "import os; os.rename('VICTIM', 'FILE')",
        "import os; os.chmod('VICTIM', 0)",
        "import os; os.truncate('VICTIM', 0)",
        "import os, signal; os.kill(PARENT, signal.SIGTERM)",
        "import os; os.setuid(0)",
    ],
)
def test_code_that_reaches_out_is_refused_by_the_kernel(body: str, tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "made"
    victim.write_text("kept")
    filled = body.replace("FILE", str(file)).replace("VICTIM", str(victim)).replace("PARENT", str(os.getpid()))
    program = f"def double(x):\n    try:\n        {filled}\n    except (OSError, RuntimeError) as problem:\n        return type(problem).__name__\n"
    request = {"program": program, "function": "double", "cases": [{"args": [1]}], "tests": ""}
    [result] = rule.run_confined(request)["results"]
    assert result["value"] in ("PermissionError", "RuntimeError")  # RuntimeError: no thread
    assert victim.read_text() == "kept"
    assert not file.exists()


def test_nothing_of_the_environment_reaches_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVVERIFY_API_KEY", "secret")
    request = {
        "program": "import os\ndef f(): return dict(os.environ)",
        "function": "f",
        "cases": [{"args": []}],
        "tests": "",
    }
    [result] = rule.run_confined(request)["results"]
    assert "secret" not in json.dumps(result)


def test_printing_does_not_reach_the_report() -> None:
    assert scored("    print('{}' * 100)\n    return 2 * x\n").value == 1.0


def test_it_needs_two_consents(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"^task t runs code that the model writes: set options\.allow_code = true in the suite"
    ):
        scored("    return 2 * x\n", allow_code=False)
    monkeypatch.delenv(rule.ALLOW_VARIABLE)
    with pytest.raises(
        UsageError, match=r"^task t runs code that the model writes: set KVVERIFY_ALLOW_CODE=1 in the environment"
    ):
        scored("    return 2 * x\n")


def test_where_it_cannot_be_confined_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(
        EnvironmentProblem, match="cannot be confined here: Linux on riscv64, expected Linux on x86_64 or aarch64"
    ):
        scored("    return 2 * x\n")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_stays_inside_it(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    code = system_calls.program()
    lines = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert len(code) % 8 == 0
    assert len(lines) <= 4096  # the kernel's limit
    assert all(
        at + 1 + max(line[2], line[3]) < len(lines) for at, line in enumerate(lines) if line[0] in (0x15, 0x35, 0x45)
    )
    assert lines[-1][0] == 0x06
