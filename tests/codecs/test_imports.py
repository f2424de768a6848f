"""The package itself is light: numpy comes with the first codec, torch never."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = "import sys, kvverify.codecs; print('numpy' in sys.modules, 'torch' in sys.modules)"
USED = "import sys, kvverify.codecs as c; c.codec('turboquant_4bit_nc', 64); print('numpy' in sys.modules, 'torch' in sys.modules)"


@pytest.mark.parametrize(("code", "loaded"), [(LIGHT, "False False"), (USED, "True False")])
def test_what_is_imported(code: str, loaded: str) -> None:
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == loaded


def test_the_function_survives_its_package_being_filled() -> None:
    """A submodule called ``codec`` would replace the function of that name once it is imported."""
    import kvverify.codecs
    import kvverify.codecs.quality
    import kvverify.codecs.registry

    assert callable(kvverify.codecs.codec)
    assert kvverify.codecs.codec("bf16", 64).name == "bf16"
    assert kvverify.codecs.codec_names() == kvverify.codecs.registry.codec_names()
