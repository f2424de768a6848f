from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvverify.errors import ContractError, EnvironmentProblem, KvverifyError, UsageError
from kvverify.kernels import registry
from kvverify.kernels.registry import check_kernel, names, resolve, supports_reason

PLUGIN = """
class Mine:
    name = "mine"
    def supports(self, layout): return True
    def prepare(self, arena): ...
    def store(self, block_ids, host_slots): ...
    def load(self, host_slots, block_ids): ...
    def wait(self): ...
    def close(self): ...

class NoWait:
    name = "no-wait"
    def supports(self, layout): return True
    def prepare(self, arena): ...
    def store(self, block_ids, host_slots): ...
    def load(self, host_slots, block_ids): ...
    def close(self): ...

class NeedsSize(Mine):
    def __init__(self, size): ...

class NeedsLibrary(Mine):
    def __init__(self):
        import kvverify_no_such_library

class Nameless(Mine):
    name = ""

def make():
    return Mine()

class Outer:
    Inner = Mine

number = 3
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    return path


@pytest.mark.parametrize("attribute", ["Mine", "make", "Outer.Inner"])
def test_a_class_or_factory_in_a_file(plugin: Path, attribute: str) -> None:
    source = resolve(f"plugin.py:{attribute}")
    assert source.spec == f"{plugin}:{attribute}"
    assert source.name == f"plugin.py:{attribute}"
    first, second = source.create(), source.create()
    assert first.name == "mine"
    assert first is not second


def test_a_spec_means_the_same_in_another_folder(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = resolve("plugin.py:Mine").spec
    monkeypatch.chdir("/")
    assert resolve(spec).create().name == "mine"


def test_a_file_may_import_its_neighbours(plugin: Path) -> None:
    (plugin.parent / "kvverify_neighbour.py").write_text("NAME = 'from next door'\n")
    plugin.write_text("from kvverify_neighbour import NAME\n" + PLUGIN.replace('"mine"', "NAME", 1))
    assert resolve("plugin.py:Mine").create().name == "from next door"


def test_resolving_runs_no_code_of_the_file(plugin: Path) -> None:
    plugin.write_text("raise SystemExit('imported')")
    assert resolve("plugin.py:Mine").target.endswith("plugin.py:Mine")


def test_a_module_path(plugin: Path) -> None:
    assert resolve("kvverify.kernels.torch_reference:TorchReference").name.endswith("TorchReference")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            "torhc",
            "unknown kernel 'torhc': did you mean 'torch'? valid: lmcache, lmcache-block, torch, vllm-triton; or ",
        ),
        ("plugin.py", "or pkg.mod:Attr, file.py:Attr; for a file write plugin.py:ClassName"),
        ("none.py:Mine", "kernel 'none.py:Mine': no file 'none.py' (looked in "),
        ("plugin.py:", "kernel 'plugin.py:': expected pkg.mod:Attr or file.py:Attr with a name after the colon"),
        (":Mine", "kernel ':Mine': expected pkg.mod:Attr or file.py:Attr"),
        ("a b:Mine", "kernel 'a b:Mine': 'a b' is neither a module name nor a .py file"),
        ("./plugin:Mine", "kernel './plugin:Mine': no file 'plugin'"),
    ],
)
def test_what_cannot_be_resolved_is_one_line(plugin: Path, spec: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(spec)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "error", "line"),
    [
        ("plugin.py:Min", UsageError, "has no attribute 'Min'; did you mean 'Mine'? valid: Mine, "),
        (
            "plugin.py:number",
            ContractError,
            "got a value of type int, expected a class or a function without arguments",
        ),
        (
            "plugin.py:NeedsSize",
            ContractError,
            "expected a class or function without required arguments: missing a required",
        ),
        (
            "plugin.py:NoWait",
            ContractError,
            "NoWait has no wait; a copy kernel has name, supports, prepare, store, load, wait",
        ),
        ("plugin.py:Nameless", ContractError, "Nameless has no name (a non-empty string)"),
        ("plugin.py:NeedsLibrary", EnvironmentProblem, "cannot run here: No module named 'kvverify_no_such_library'"),
        ("kvverify_none.mod:A", UsageError, "no module named 'kvverify_none'; is it installed here?"),
    ],
)
def test_what_cannot_be_made_is_one_line(plugin: Path, spec: str, error: type[KvverifyError], line: str) -> None:
    with pytest.raises(error) as caught:
        resolve(spec).create()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_installed_plug_ins_are_found_and_cannot_hide_a_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        SimpleNamespace(name="theirs", value="pkg.mod:Kernel"),
        SimpleNamespace(name="torch", value="pkg.mod:Fake"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == "kvverify.kernels" else [])
    assert names() == ["torch", "lmcache", "lmcache-block", "vllm-triton", "theirs"]
    assert resolve("theirs").target == "pkg.mod:Kernel"
    assert resolve("torch").target == "kvverify.kernels.torch_reference:TorchReference"


def test_a_child_is_told_what_it_needs_before_it_imports() -> None:
    assert resolve("vllm-triton").environment["TRITON_INTERPRET"] == "1"
    assert resolve("lmcache").environment["LMCACHE_TRACK_USAGE"] == "false"
    assert not resolve("torch").environment


def test_resolving_imports_nothing_heavy() -> None:
    code = (
        "import sys; from kvverify.kernels.registry import names, resolve; [resolve(n) for n in names()]; "
        "print(sorted({'torch', 'numpy', 'vllm', 'lmcache', 'triton'} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def kernel(**changes: Any) -> SimpleNamespace:
    methods = dict.fromkeys(("prepare", "store", "load", "wait", "close"), lambda: None)
    return SimpleNamespace(**{"name": "k", "supports": lambda _layout: True, **methods, **changes})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"blocks_per_slot": 0}, "x: blocks_per_slot is 0, expected an integer of 1 or more"),
        ({"blocks_per_slot": True}, "x: blocks_per_slot is True"),
        ({"groups": 1}, "x: groups is 1, expected True or False"),
        ({"caller_syncs": {"stores"}}, "x: caller_syncs is {'stores'}, expected a set of 'store' and 'load'"),
        ({"wait": 3}, "x: SimpleNamespace has no wait;"),
    ],
)
def test_optional_attributes_must_mean_something(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ContractError) as caught:
        check_kernel(kernel(**changes), "x")
    assert str(caught.value).startswith(line)


def test_a_full_kernel_passes_the_check() -> None:
    check_kernel(kernel(blocks_per_slot=4, groups=True, caller_syncs={"store", "load"}, slow=True), "x")


def layout() -> Any:
    return SimpleNamespace(name="a layout")


def test_supports_is_true_or_a_reason() -> None:
    assert supports_reason(kernel(), layout()) is None
    assert supports_reason(kernel(supports=lambda _layout: "too small"), layout()) == "too small"


@pytest.mark.parametrize("answer", [1, False, None, "", "  "])
def test_any_other_answer_breaks_the_contract(answer: object) -> None:
    with pytest.raises(
        ContractError, match=r"^k: supports\('a layout'\) returned .*, expected True or a non-empty reason"
    ):
        supports_reason(kernel(supports=lambda _layout: answer), layout())


def test_every_built_in_names_a_module_of_ours() -> None:
    for device in registry.DEVICES:
        for name in names(device):
            module, _, attribute = resolve(name, device).target.partition(":")
            assert module.startswith("kvverify.kernels."), name
            source = Path(registry.__file__).with_name(f"{module.rpartition('.')[2]}.py").read_text()
            assert f"class {attribute}" in source, name
