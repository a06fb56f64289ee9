import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, T5Config

from specdec_core.costs.gpu.counting import ModelWork, PassWork, count_operators
from specdec_core.costs.gpu.device import (
    Launches,
    counted_launches,
    devices,
    find_device,
    find_shape,
    host_costs,
    shapes,
)
from specdec_core.costs.gpu.forecast import Setting, forecast_costs, gpu_forecast
from specdec_core.interface import ConfigError
from specdec_core.theory import walltime_improvement
from tests.docs.pages import ROOT, load

gpu_tables = load(ROOT / "docs" / "gpu_tables.py")

LLAMA = LlamaConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
)
IN_LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128  # query and output, key and value, the MLP
HEAD = 64 * 1000


def weights(work: PassWork) -> int:
    return sum(one.weights * count for one, count in work.operators.items())


def test_a_pass_reads_every_weight_but_the_embedding_once() -> None:
    model = ModelWork(LLAMA, torch.bfloat16)
    norms = 64 * (2 * 5 + 1)
    assert model.parameters == 5 * IN_LAYER + 2 * HEAD + norms
    for positions, batch in ((1, 1), (5, 3)):
        assert weights(model.count(positions, batch, 7)) == 2 * (5 * IN_LAYER + HEAD + norms)


def test_flops_are_two_for_each_weight_and_position_and_four_for_each_pair_in_attention() -> None:
    work = ModelWork(LLAMA).count(4, batch=3, context=9)
    assert work.flops == 3 * 4 * (2 * (5 * IN_LAYER + HEAD) + 5 * 4 * 64 * (9 + 4))


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        Qwen3Config(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=4, head_dim=16),
        T5Config(vocab_size=50, d_model=32, d_ff=64, num_layers=4, num_heads=2),
    ],
    ids=lambda config: config.model_type,
)
def test_repeating_a_layer_gives_the_count_of_the_whole_model(config, monkeypatch) -> None:
    repeated = ModelWork(config)
    monkeypatch.setattr(ModelWork, "_make", lambda self, _, make=ModelWork._make: make(self, self.layers))
    whole = ModelWork(config)
    assert repeated.parameters == whole.parameters
    assert repeated.count(3, 2, 5).operators == whole.count(3, 2, 5).operators


def test_layers_that_differ_are_counted_one_by_one() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=kinds,
    )
    assert ModelWork(config).count(1, context=4).launches > ModelWork(LLAMA).count(1, context=4).launches / 2


def test_a_cache_is_read_once_and_copied_for_query_heads_only_where_several_tokens_are_read() -> None:
    model = ModelWork(LLAMA)
    cached = model.cached_bytes(1000) - model.cached_bytes(0)
    assert cached == 1000 * 5 * 2 * 2 * 16 * 2
    one = model.count(1, context=2000).bytes - model.count(1, context=1000).bytes
    assert one == pytest.approx(cached, rel=0.05)
    several = model.count(2, context=2000).bytes - model.count(2, context=1000).bytes
    assert several > 3 * cached
    # Fused, attention shares what a group of query heads reads.
    unique = [
        sum(o.unique * n for o, n in model.count(2, context=c).operators.items() if o.flops) for c in (1000, 2000)
    ]
    assert unique[1] - unique[0] == pytest.approx(cached, rel=0.05)


def test_execution_quantization_and_more_gpus_cost_as_they_should() -> None:
    device, work = find_device("a100"), ModelWork(find_shape("llama-2-7b")).count(1, context=100)
    fused, graph, eager = (device.seconds(work, execution=how) for how in ("fused", "graph", "eager"))
    assert fused < graph <= eager
    assert device.seconds(work, weights="int4") < device.seconds(work, weights="int8") < graph
    assert device.seconds(work, count=2) < graph
    assert replace(device, launch_us=1000).seconds(work, execution="eager") == pytest.approx(work.launches * 1e-3)


def test_without_cost_of_drafting_and_overhead_the_forecast_is_theorem_3_8() -> None:
    setting = Setting(find_device("h100"), execution="fused", launches=Launches(0, 0))
    target = ModelWork(find_shape("llama-3-8b"))
    found = gpu_forecast(target, 0.1, setting, 0.8, gamma=4)
    assert found.costs.c == pytest.approx(0.1)
    # T(4) is little more than T(0), and nothing else differs.
    assert found.improvement == pytest.approx(walltime_improvement(0.8, 4, 0.1), rel=0.01)
    assert gpu_forecast(target, 0.9, setting, 0.3, max_gamma=4).gamma == 0
    costs = forecast_costs(target, 0.1, setting, 4)
    assert list(costs.verify) == sorted(costs.verify)
    assert found.memory_gb == pytest.approx(16.1, abs=0.3)
    assert found.fits
    assert not gpu_forecast(target, 0.1, replace(setting, batch=64, context=32768), 0.8, gamma=4).fits


def test_launches_outside_of_the_models_are_those_that_were_counted() -> None:
    counts = host_costs()
    for sampled, setting in enumerate(counts):
        eager = counted_launches("ngram", sampled=bool(sampled), execution="eager")
        assert eager.plain == counts[setting]["no drafter"]["launches"]
        assert eager.drafted == counts[setting]["ngram"]["launches"]
        assert counted_launches(sampled=bool(sampled)) == Launches(4, 5)
    alone = counted_launches("dflash", execution="fused")  # counted with eager models only
    assert alone == Launches(4, counted_launches("dflash", execution="eager").drafted)
    for name in ("no drafter", "dflas"):
        with pytest.raises(ConfigError, match=r"choose one of random, ngram.*translated\.$"):
            counted_launches(name)


def test_launches_cost_time_in_every_step_and_those_of_a_draft_in_steps_with_one() -> None:
    setting = Setting(find_device("h100"), launches=Launches(10, 30))
    target, launch = ModelWork(LLAMA), setting.device.launch_us * 1e-6
    with_launches, without = (
        forecast_costs(target, 0.0, one, 2).step for one in (setting, replace(setting, launches=Launches(0, 0)))
    )
    more = [one - other for one, other in zip(with_launches, without, strict=True)]
    assert more == pytest.approx([10 * launch, 30 * launch, 30 * launch])


def test_acceptance_lengths_take_the_place_of_a_rate() -> None:
    setting = Setting(find_device("h100"), execution="fused")
    target = ModelWork(find_shape("llama-3-8b"))
    lengths = {k: sum(0.8**n for n in range(k + 1)) for k in (2, 4, 5, 40)}
    by_rate, by_length = (gpu_forecast(target, 0.1, setting, alpha, gamma=4) for alpha in (0.8, lengths))
    assert by_length.improvement == pytest.approx(by_rate.improvement)
    assert by_length.alpha is None
    best = gpu_forecast(target, 0.1, setting, lengths, max_gamma=8)
    each = {k: gpu_forecast(target, 0.1, setting, 0.8, gamma=k).improvement for k in (2, 4, 5)}
    assert best.gamma == max(each, key=each.__getitem__)
    assert gpu_forecast(target, 2.0, setting, {2: 1.1}).gamma == 0
    with pytest.raises(ValueError, match=r"gamma 3 was asked for.*\[0, 2\]"):
        gpu_forecast(target, 0.1, setting, lengths, gamma=3)


def test_forecasts_are_within_a_quarter_of_what_gpt_fast_publishes() -> None:
    off = {row[:3]: row[4] / row[3] - 1 for row in gpu_tables.gpt_fast()}
    shown = gpu_tables.gpt_fast_text()
    alone = [row for row in gpu_tables.gpt_fast() if row[1:3] == ("bfloat16", 1)]
    assert [f"{row[4]:.1f}/{row[3]:.1f} (" in shown for row in alone] == [True, True]
    assert "21 of 22 " in shown
    assert "llama-3-70b in bfloat16 on 2 GPUs" in shown
    assert len(off) == 22
    missed = {key for key, value in off.items() if abs(value) > 0.25}
    assert missed == {("llama-3-70b", "bfloat16", 2)}


def test_forecasts_are_within_a_quarter_of_table_2_where_its_own_theory_is() -> None:
    rows = list(gpu_tables.paper())
    missed = {row[:4] for row in rows if abs(row[6] / row[5] - 1) > 0.25}
    assert missed == {("EnDe", "T5-large", 0, 7), ("EnDe", "T5-large", 1, 3), ("CNNDM", "T5-small", 0, 5)}
    shown = gpu_tables.paper_text()
    assert [f"{row[6]:.1f}×/{row[5]:.1f}×" in shown for row in rows] == [row[:4] in missed for row in rows]
    assert shown.startswith("9 of 12 ")
    assert all(abs(row[4] - paper.c) < 0.03 for row, paper in zip(rows, gpu_tables.TABLE_4, strict=True))


def test_devices_and_shapes_are_complete(tmp_path) -> None:
    for device in devices().values():
        assert device.source
        assert {"bfloat16", "float16", "float32"} <= device.tflops.keys()
        assert device.bandwidth_gbs > 0
    for name in shapes():
        assert find_shape(name).model_type
    (tmp_path / "config.json").write_text(json.dumps(LLAMA.to_dict()))
    assert find_shape(str(tmp_path)).num_hidden_layers == 5
    with pytest.raises(ConfigError, match="h100"):
        find_device("h1000")
    with pytest.raises(ConfigError, match=r"config\.json.*llama-3-8b"):
        find_shape("llama-9")


def test_a_model_with_values_counts_as_one_without() -> None:
    model = LlamaForCausalLM(LLAMA).eval()
    counted = ModelWork(LLAMA, torch.float32).count(3, batch=2, context=5).operators
    assert Counter(count_operators(model, 3, batch=2, context=5)) == counted
