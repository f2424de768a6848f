"""Sessions: roundtrip (the main job), tests, live, ray, browser, lint, types, minimums, stacks, bench, docs.

    pip install nox
    nox -s roundtrip                                    verify real copy kernels; arguments after -- go to the campaign
    nox -s roundtrip -- --kernel torch --budget 60s
    nox -s tests                                        kvverify's own tests
    nox -s live                                         kvverify against real servers, vLLM and LMCache on the CPU
    nox -s ray                                          accuracy runs from the workers of a Ray cluster on this machine
    nox -s browser                                      the pages it writes in a real Chromium; --screenshots DIR keeps pictures
    nox -s docs                                         write docs/commands.md again, after a command or option has changed

Sessions that need torch, LMCache and vLLM share one environment, .nox/stacks, built once from requirements/. On a machine whose
interpreter already has a GPU build of torch, `roundtrip` uses that very interpreter instead, installs nothing into it, and verifies the
kernels that copy from and to the GPU: it adds --device cuda, which is a GPU under ROCm too. `bench` measures there what it promises of GPUs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import nox

HERE = Path(__file__).parent.resolve()
sys.path.insert(0, str(HERE))  # the parts of kvverify used here need only the standard library

from kvverify.events import Event, RunStarted  # noqa: E402
from kvverify.report.executed import executed_tests, nothing_done, skipped_tests  # noqa: E402
from kvverify.report.log import read_events  # noqa: E402
from kvverify.verdicts import verdict_of  # noqa: E402

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]

STACKS = HERE / ".nox" / "stacks"
SIDE = HERE / ".nox" / "side"
LIVE = HERE / ".nox" / "live"
REQUIREMENTS = HERE / "requirements"
QUIET = {
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
ALL_CPU_KERNELS = ["--kernel", "torch", "--kernel", "lmcache", "--kernel", "vllm-triton"]
IMPORT_ALL = "import torch, triton, lmcache, vllm; print('torch', torch.__version__, 'triton', triton.__version__)"
NEVER_TOUCHED = ("torch", "vllm", "lmcache", "triton", "pytorch-triton", "numpy")


@nox.session(venv_backend="none")
def roundtrip(session: nox.Session) -> None:
    """Verify real KV copy kernels byte by byte: the campaign, then the property tests of fuzz/."""
    gpu = gpu_build()
    session.log(
        f"torch for {gpu} with a visible GPU: running in {sys.executable}" if gpu else "no GPU build of torch here"
    )
    python, env = (sys.executable, side_folder(session)) if gpu else (stacks_python(session), QUIET)
    run, arguments = campaign(list(session.posargs), gpu=bool(gpu))
    session.run(python, "-m", "kvverify", "roundtrip", *arguments, env=env, external=True)
    log, junit = Path(run) / "events.ndjson", Path(run) / "fuzz.xml"
    events = read_events(log) if log.is_file() else []
    fuzz_env = {**env, "KVVERIFY_FUZZ_ARGUMENTS": json.dumps(fuzz_arguments(arguments, events))}
    session.run(python, "-m", "pytest", "fuzz", "-q", f"--junitxml={junit}", env=fuzz_env, external=True)
    tests = executed_tests(junit)
    if reasons := nothing_done(events, tests, gpu=bool(gpu)):
        session.error(f"not a pass: {'; '.join(reasons)}")
    session.log(f"{verdict_of(events)}, and {tests} property tests passed. Report: {Path(run) / 'report.html'}")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run kvverify's own tests, those on the real LMCache and vLLM kernels included: their absence fails here."""
    session.run(stacks_python(session), "-c", IMPORT_ALL, env=QUIET, external=True)
    env = {
        **QUIET,
        "OMP_NUM_THREADS": "1",
        "KVVERIFY_REQUIRE": "torch,lmcache,vllm,openai,httpx2,prometheus_client,scipy,jsonschema,statsmodels,lm_eval,tokenizers,wonderwords",
    }
    session.run(
        stacks_python(session),
        "-m",
        "pytest",
        *(session.posargs or ["-q", "-n", "2", "--timeout", "900"]),
        env=env,
        external=True,
    )


@nox.session(venv_backend="none")
def live(session: nox.Session) -> None:
    """Start real servers with a second KV tier, vLLM's CPU build and LMCache, and hold tier-diff and doctor against them."""
    python = live_python(session)
    runs = Path(f"runs/live-{time.strftime('%Y%m%dT%H%M%S')}").resolve()
    env = {**QUIET, "KVVERIFY_LIVE": str(runs), "KVVERIFY_LIVE_MODEL": str(LIVE / "smollm2")}
    junit = runs / "junit.xml"
    pytest = [python, "-m", "pytest", "tests/live/real", "-v", "--timeout", "1200", "--durations", "0"]
    session.run(*pytest, f"--junitxml={junit}", *session.posargs, env=env, external=True)
    if executed_tests(junit) == 0:
        session.error("no test executed")
    session.log(f"reports and the servers' logs: {runs}")


@nox.session
def ray(session: nox.Session) -> None:
    """Ask samples from the workers of a Ray cluster that is started here, in an environment of its own."""
    pins = ["-c", "requirements/stacks.txt", "-c", "requirements/ray.txt"]
    session.install(*pins, "-e", ".[live,accuracy,lm-eval,ray]", "pytest", "pytest-timeout")
    # not session.create_tmp(): it becomes TMPDIR, and a Ray whose session folder is there was seen to wait for ever when it starts
    junit = HERE / ".nox" / "ray" / "junit.xml"
    pytest = ["pytest", "tests/accuracy/test_on_ray.py", "-q", "--timeout", "300", f"--junitxml={junit}"]
    session.run(*pytest, *session.posargs, env={"KVVERIFY_REQUIRE": "ray,openai,httpx2,prometheus_client,lm_eval"})
    if executed_tests(junit) == 0 or skipped_tests(junit):
        session.error("no test executed, or one was skipped; here that is a failure")


@nox.session
def browser(session: nox.Session) -> None:
    """Open the pages that kvverify writes in Chromium: quiet, self-contained, readable by keyboard, phone, paper, screen reader."""
    chromium = os.environ.get("KVVERIFY_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        session.error(
            "no chromium on PATH; install it (Debian: apt-get install --no-install-recommends chromium fonts-dejavu-core), "
            "or name one in KVVERIFY_CHROMIUM"
        )
    session.install("-c", "requirements/tools.txt", "-e", ".", "pytest", "pytest-timeout")
    junit = Path(session.create_tmp()) / "junit.xml"
    pytest = ["pytest", "tests/browser", "-q", "--timeout", "300", f"--junitxml={junit}"]
    session.run(*pytest, *session.posargs, env={"KVVERIFY_CHROMIUM": str(chromium)})
    if executed_tests(junit) == 0 or skipped_tests(junit):
        session.error("no test executed, or one was skipped; here that is a failure")


@nox.session
def docs(session: nox.Session) -> None:
    """Write docs/commands.md, the command reference, from the commands' own help."""
    session.install("-e", ".")
    session.run("python", "docs/write_commands.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and the direction of dependencies."""
    session.install("-c", "requirements/tools.txt", "ruff", "import-linter")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types of source and tests; in the shared environment, since torch's own types take part."""
    session.run(stacks_python(session), "-m", "mypy", "--strict", ".", external=True)


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the tests that need no torch on the lowest versions that pyproject.toml allows."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    lowest = [requirement.replace(">=", "==") for requirement in project["dependencies"]]
    session.install(*lowest, "pytest", "pytest-timeout", "junitparser")
    session.install("--no-deps", ".")
    junit = Path(session.create_tmp()) / "junit.xml"
    session.run("pytest", "-q", "-m", "not slow", f"--junitxml={junit}", *session.posargs)
    if executed_tests(junit) == 0:
        session.error("no test executed")
    with session.chdir(session.create_tmp()):  # the installed wheel, far from the checkout, has its data with it
        session.run("kvverify", "layout", "minimax-m2.5", "--kv-cache-dtype", "turboquant_4bit_nc", "--json")


@nox.session(venv_backend="none")
def stacks(session: nox.Session) -> None:
    """Install LMCache, vLLM's CPU build, torch and Triton at exact versions, and check that they import."""
    session.run(stacks_python(session), "-c", IMPORT_ALL, env=QUIET, external=True)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure speed and memory against fio and memcmp, on a GPU against device copies; exit 1 where a bar is missed.

    Without arguments also how long RULER's samples at 32k take to make (one to two minutes; python -m bench.ruler has other lengths).
    """
    if gpu_build():
        session.run(sys.executable, "-m", "bench.gpu", *session.posargs, env=side_folder(session), external=True)
        return
    python, env = stacks_python(session), {**QUIET, "OMP_NUM_THREADS": "1"}
    session.run(python, "-m", "bench.run", *session.posargs, env=env, external=True)
    if not session.posargs:
        session.run(python, "-m", "bench.ruler", "--lengths", "32768", env=env, external=True)


def stacks_python(session: nox.Session) -> str:
    """Return the interpreter of the shared environment; build it, or the part of it whose files have changed."""
    python = str(STACKS / "bin" / "python")
    if _changed("stacks", "stacks.txt", "stacks-no-deps.txt"):
        session.run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(STACKS), external=True)
        for stage in (["-r", "requirements/stacks.txt"], ["--no-deps", "-r", "requirements/stacks-no-deps.txt"]):
            session.run(python, "-m", "pip", "install", "--quiet", *stage, env=QUIET, external=True)
        _done("stacks", "stacks.txt", "stacks-no-deps.txt")
    if _changed("kvverify", "../pyproject.toml", "stacks.txt", "tools.txt"):
        pins = ["-c", "requirements/stacks.txt", "-c", "requirements/tools.txt"]
        session.run(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            *pins,
            "-e",
            ".[dev,live,accuracy,lm-eval]",
            env=QUIET,
            external=True,
        )
        _done("kvverify", "../pyproject.toml", "stacks.txt", "tools.txt")
    return python


def live_python(session: nox.Session) -> str:
    """Return the interpreter of the environment of real servers; build it, and the model's checkpoint, where files changed."""
    python = str(LIVE / "bin" / "python")
    files = ("live.txt", "live-no-deps.txt", "../pyproject.toml", "../tests/live/real/checkpoint.py")
    if _changed("live", *files, folder=LIVE):
        session.run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(LIVE), external=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        session.run(*pip, "-r", "requirements/live.txt", env=QUIET, external=True)
        # of other torch versions than the one installed; vLLM takes them for its own and fails
        unwanted = ["torchvision", "torchaudio", "torchcodec"]
        session.run(python, "-m", "pip", "uninstall", "--quiet", "--yes", *unwanted, env=QUIET, external=True)
        session.run(*pip, "--no-deps", "-r", "requirements/live-no-deps.txt", env=QUIET, external=True)
        session.run(*pip, "-c", "requirements/live.txt", "-e", ".[accuracy]", env=QUIET, external=True)
        session.run(python, "tests/live/real/checkpoint.py", str(LIVE / "smollm2"), env=QUIET, external=True)
        _done("live", *files, folder=LIVE)
    return python


def campaign(arguments: list[str], *, gpu: bool) -> tuple[str, list[str]]:
    """Return the run folder and the campaign's arguments: the caller's, and defaults for what they leave open."""
    if resumed := _value(arguments, "--resume"):
        return resumed, arguments  # the run knows its own options
    run = _value(arguments, "--out") or f"runs/{time.strftime('%Y%m%dT%H%M%S')}-nox"
    defaults = {"--out": ["--out", run], "--profile": ["--profile", "ci"]}
    if gpu:  # such a host has what it has: all kernels are tried, and those that cannot run here are left out
        defaults["--device"] = ["--device", "cuda"]
    else:  # here all of them are installed, and a missing one is a failure
        defaults["--kernel"] = ALL_CPU_KERNELS
    missing = [words for option, words in defaults.items() if not _has(arguments, option)]
    return run, [*itertools.chain(*missing), *arguments]


def fuzz_arguments(arguments: list[str], events: list[Event]) -> list[str]:
    """Return what the property tests of fuzz/ are told: the campaign's arguments, of a resumed run those that its log holds."""
    start = next((e for e in events if isinstance(e, RunStarted)), None)
    if start is None or not _has(arguments, "--resume"):
        return arguments
    named = start.options.get("kernels", []) if start.options.get("named") else []
    kernels = [word for kernel in named for word in ("--kernel", kernel)]
    return ["--device", start.options.get("device", "cpu"), *kernels]


def gpu_build() -> str:
    """Return which GPUs the torch of the calling interpreter is built for, if it sees one; else nothing."""
    probe = (
        "import torch; hip, cuda = getattr(torch.version, 'hip', None), torch.version.cuda; "
        "print((f'ROCm {hip}' if hip else f'CUDA {cuda}') if (hip or cuda) and torch.cuda.is_available() else '')"
    )
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    lines = answer.stdout.split("\n") if answer.returncode == 0 else []
    return next((line for line in reversed(lines) if line), "")


def side_folder(session: nox.Session) -> dict[str, str]:
    """Put kvverify and the packages that this interpreter lacks into a folder beside it; return the environment to use it."""
    report = SIDE.with_suffix(".json")
    shutil.rmtree(SIDE, ignore_errors=True)
    SIDE.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    # pip resolves against what is installed; what it would add, and nothing else, goes into the side folder
    session.run(*pip, "--dry-run", "--report", str(report), ".", "pytest>=8.2", env=QUIET, external=True)
    found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    wanted = {item["name"].lower().replace("_", "-"): item["version"] for item in found}
    wanted.pop("kvverify")
    if untouchable := [name for name in NEVER_TOUCHED if name in wanted and (name != "numpy" or _installed("numpy"))]:
        session.error(
            f"kvverify needs another {', '.join(untouchable)} than {sys.executable} has, and never replaces it"
        )
    session.log(f"into {SIDE.relative_to(HERE)}: kvverify {' '.join(f'{n}=={v}' for n, v in wanted.items())}")
    session.run(
        *pip,
        "--no-deps",
        "--target",
        str(SIDE),
        ".",
        *(f"{n}=={v}" for n, v in wanted.items()),
        env=QUIET,
        external=True,
    )
    return {**QUIET, "PYTHONPATH": os.pathsep.join(p for p in (str(SIDE), os.environ.get("PYTHONPATH")) if p)}


def _state(*names: str) -> str:
    files = b"".join((REQUIREMENTS / name).read_bytes() for name in names)
    return hashlib.sha256(files + sys.version.encode()).hexdigest()


def _changed(part: str, *names: str, folder: Path = STACKS) -> bool:
    stamp = folder / f"{part}.state"
    return not stamp.is_file() or stamp.read_text() != _state(*names)


def _done(part: str, *names: str, folder: Path = STACKS) -> None:
    (folder / f"{part}.state").write_text(_state(*names))


def _installed(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def _has(arguments: list[str], option: str) -> bool:
    return any(a == option or a.startswith(f"{option}=") for a in arguments)


def _value(arguments: list[str], option: str) -> str | None:
    """Return the value of ``--option VALUE`` or ``--option=VALUE``; the last one counts."""
    pairs = [*itertools.pairwise(arguments), *(a.split("=", 1) for a in arguments if "=" in a)]
    return next((value for name, value in reversed(pairs) if name == option), None)
