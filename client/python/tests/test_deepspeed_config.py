# SPDX-License-Identifier: Apache-2.0
"""ds_config.json: every row of the table, batches, worlds, and what is refused."""

import base64
import json

import pytest

from shardd.deepspeed import config as C
from shardd.deepspeed.config import CLIENT, KEYS, MAPPED, NOTHING, REFUSED, Config, ConfigError
from shardd.deepspeed.standin import OffloadDeviceEnum

ONE = {"train_micro_batch_size_per_gpu": 1}
HF_AUTO = {  # As guides of Transformers fill them.
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
             "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                 "warmup_num_steps": "auto"}},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1, "wall_clock_breakdown": False}
ZERO = [
    {"stage": 0}, {"stage": 1}, True, False,
    {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": "5e8", "overlap_comm": True,
     "reduce_scatter": True, "reduce_bucket_size": 5e8, "contiguous_gradients": True,
     "offload_optimizer": {"device": "cpu", "pin_memory": True}, "round_robin_gradients": True},
    {"stage": 3, "overlap_comm": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
     "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
     "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
     "stage3_gather_16bit_weights_on_model_save": True,
     "offload_optimizer": {"device": "none", "pin_memory": True, "ratio": 0.3},
     "offload_param": {"device": "cpu", "pin_memory": True, "buffer_count": 5,
                       "buffer_size": 1e8, "max_in_cpu": 1e9}},
    {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": False,
     "zero_quantized_gradients": False, "mics_shard_size": -1},
]


@pytest.mark.parametrize("zero", ZERO, ids=str)
def test_example_configs(zero):
    """What guides and model libraries show is followed, with nothing refused."""
    c = Config({**HF_AUTO, "zero_optimization": zero})
    assert c.stage == (zero["stage"] if isinstance(zero, dict) else int(zero))
    assert (c.clip, c.dtype, c.optimizer()) == (1.0, None, ("adamw", {}))


def test_rows_say_what_they_do():
    assert {r.does for r in KEYS.values()} == {MAPPED, NOTHING, CLIENT, REFUSED}
    for path, row in KEYS.items():
        assert row.text, path
        parent = path.rpartition(".")[0]
        assert not parent or KEYS[parent].inside, path


@pytest.mark.parametrize("path", [p for p, r in KEYS.items() if r.does == REFUSED])
def test_refused_keys_name_themselves(path):
    """Each R row ends in its own sentence, and each harmless value passes."""
    def at(value):
        block: dict = dict(ONE)
        inner = block
        *folders, last = path.split(".")
        for f in folders:
            inner = inner.setdefault(f, {})
        inner[last] = value
        return block

    row = KEYS[path]
    bad = {bool: True, int: 7, str: "nvme", None: {"enabled": True}}[row.type]
    with pytest.raises(ConfigError, match=path.replace(".", r"\.")) as e:
        Config(at(bad))
    assert row.text in str(e.value)
    for value in row.harmless:
        Config(at(value))
    if row.type is None:
        Config(at({"enabled": False}))


@pytest.mark.parametrize("given, guess", [
    ({"gradient_cliping": 1}, "gradient_clipping"),
    ({"zero_optimisation": {}}, "zero_optimization"),
    ({"fp16": {"enabled": True, "los_scale": 0}}, "loss_scale"),
    ({"zero_optimization": {"stag": 2}}, "stage"), ({"shardd": {"nam": "x"}}, "name"),
    ({"optimizer": {"type": "Adam", "params": {"weight_decy": 0}}}, "weight_decay")])
def test_unknown_keys_are_refused_with_a_guess(given, guess):
    with pytest.raises(ConfigError, match=f"'{guess}'"):
        Config({**ONE, **given}).optimizer()


# Micro batch, accumulation, train batch, ranks -> all three, or None for an error.
BATCHES = [
    ((None, None, 32, 1), (32, 1, 32)), ((None, 33, 33, 1), (1, 33, 33)),
    ((None, 4, 32, 2), (4, 4, 32)), ((4, None, 32, 2), (4, 4, 32)), ((4, 2, None, 2), (4, 2, 16)),
    ((4, None, None, 2), (4, 1, 8)), ((4, 4, 32, 2), (4, 4, 32)),
    ((None, None, 32, 2), (16, 1, 32)),
    ((4, 4, 31, 2), None), ((None, 4, None, 2), None), ((None, None, None, 1), None),
    ((None, None, 1, 2), None), ((0, 1, None, 1), None), ((4, 0, None, 1), None),
    (("4", "2", None, 1), (4, 2, 8))]


@pytest.mark.parametrize("given, want", BATCHES, ids=str)
def test_two_of_three_batch_sizes(given, want):
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    block = {k: v for k, v in zip(names, given) if v is not None}
    if want is None:
        with pytest.raises(ConfigError):
            Config(block, given[3])
        return
    c = Config(block, given[3])
    assert tuple(getattr(c, k) for k in names) == want


def test_batch_sizes_are_those_of_deepspeed():
    real = pytest.importorskip("deepspeed.runtime.config")
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    for given, want in BATCHES[:-1]:
        block = {k: v for k, v in zip(names, given) if v is not None}
        d = object.__new__(real.DeepSpeedConfig)
        d.world_size = given[3]
        for k, v in zip(names, given):
            setattr(d, k, v)
        try:
            d._configure_train_batch_size()
            got = tuple(getattr(d, k) for k in names)
        except (AssertionError, ZeroDivisionError):
            got = None
        assert got == want, block


def test_numbers_may_be_text_and_auto_is_absent():
    c = Config({**ONE, "gradient_clipping": "0.5", "fp16": {"enabled": "true", "loss_scale": "0",
                "initial_scale_power": "8"}, "zero_optimization": {"stage": "2"},
                "steps_per_print": "auto"})
    assert (c.clip, c.stage, c.dtype, c.get("steps_per_print")) == (0.5, 2, "float16", None)
    assert c.settings()["initial_scale_power"] == 8
    for bad in ({"gradient_clipping": "much"}, {"fp16": {"enabled": 3}}, {"fp16": True},
                {"zero_optimization": {"stage": 4}}, {"gradient_accumulation_steps": 1.5}):
        with pytest.raises(ConfigError):
            Config({**ONE, **bad}).stage


def test_values_may_be_of_an_enum():
    def given(device):
        return {"train_batch_size": 1, "zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": device}}}

    for device in (OffloadDeviceEnum.cpu, OffloadDeviceEnum.none):
        assert Config(given(device)).values == Config(given(device.value)).values
    with pytest.raises(ConfigError, match="device='nvme'"):
        Config(given(OffloadDeviceEnum.nvme))


def test_settings_of_the_loss_scale():
    assert Config({**ONE, "fp16": {"enabled": True}}).settings()["hysteresis"] == 1
    assert Config({**ONE, "fp16": {"enabled": True},
                   "zero_optimization": {"stage": 2}}).settings() == {
        "loss_scale": "dynamic", "initial_scale_power": 16, "loss_scale_window": 1000,
        "hysteresis": 2, "consecutive_hysteresis": False, "min_loss_scale": 1.0, "max_skips": 0}
    assert Config({**ONE, "fp16": {"enabled": True, "loss_scale": 128}}).settings() == {
        "loss_scale": 128.0}
    for words, divides in (({"stage": 1}, True), ({"stage": 3}, True), ({"stage": 0}, False),
                           ({"stage": 2, "reduce_scatter": False}, False)):
        c = Config({**ONE, "fp16": {"enabled": True}, "zero_optimization": words,
                    "shardd": {"world": [1, 4]}})
        assert c.settings().get("predivide") == (4.0 if divides else None), words
    with pytest.raises(ConfigError, match="both"):
        Config({**ONE, "fp16": {"enabled": True}, "bf16": {"enabled": True}}).dtype


@pytest.mark.parametrize("name, params, want", [
    ("Adam", {}, "adamw"), ("Adam", {"adam_w_mode": False}, "adam"), ("AdamW", {}, "adamw"),
    ("SGD", {"momentum": "0.9"}, "sgd"), ("Adagrad", {}, "adagrad"), ("Lion", {}, "lion"),
    ("Lamb", {}, None), ("OneBitAdam", {}, None), ("MuAdam", {}, None), ("RMSprop", {}, None),
    ("Adam", {"bias_correction": False}, None), ("Adam", {"amsgrad": True}, None),
    ("Adam", {"adam_w_mode": "false"}, "adam"), ("Adam", {"adam_w_mode": 1}, "adamw"),
    ("AdamW", {"adam_w_mode": False}, "adamw"), ("Adam", {"adamw_mode": False}, None),
    ("Adam", {"adam_w_mode": False, "adamw_mode": False}, "adam"),
    ("Adam", {"decoupled_weight_decay": True}, "adamw"),
    ("Adam", {"adam_w_mode": False, "decoupled_weight_decay": True}, None),
    ("AdamW", {"decoupled_weight_decay": False}, None), ("SGD", {"adam_w_mode": True}, None),
    ("Lion", {"adamw_mode": True}, None), ("Adam", {"max_grad_norm": 1.0}, None)])
def test_optimizers(name, params, want):
    c = Config({**ONE, "optimizer": {"type": name, "params": {"lr": "1e-3", **params}}})
    if want is None:
        with pytest.raises(ConfigError, match="optimizer"):
            c.optimizer()
        return
    kind, words = c.optimizer()
    assert (kind, words["lr"]) == (want, 1e-3)


@pytest.mark.parametrize("path, bad", [
    ("buffer_dtype", "int8"), ("param_dtype", "fp8"), ("keep_in_fp32", "norm"),
    ("keep_in_fp32", ["norm", 1])])
def test_dtypes(path, bad):
    key = "keep_in_fp32_modules" if path == "keep_in_fp32" else path
    assert getattr(Config({**ONE, "data_types": {key: "auto"}}), path) is None
    with pytest.raises(ConfigError, match=f"data_types.{key} is"):
        getattr(Config({**ONE, "data_types": {key: bad}}), path)


def test_auto_is_a_value_of_resume():
    assert Config({**ONE, "shardd": {"resume": "auto"}}).get("shardd.resume") == "auto"
    assert Config({**ONE, "gradient_clipping": "auto"}).get("gradient_clipping") is None


def test_elasticity_is_a_world():
    c = Config({"elasticity": {"enabled": True, "max_train_batch_size": 48,
                               "micro_batch_sizes": [2, 4, 6], "min_gpus": 1, "max_gpus": 8}}, 4)
    assert (c.world, c.train_batch_size) == ((1, 8), 48)
    assert c.train_micro_batch_size_per_gpu == 6 and c.gradient_accumulation_steps == 2
    assert Config({**ONE, "shardd": {"world": [2, 4]}}, 2).world == (2, 4)
    assert Config(ONE, 3).world == (3, 3)
    with pytest.raises(ConfigError, match="multiple"):
        Config({"elasticity": {"enabled": True, "max_train_batch_size": 10,
                               "micro_batch_sizes": [4], "max_gpus": 4}}, 3)


def test_where_a_config_may_come_from(tmp_path):
    text = json.dumps(ONE)
    path = tmp_path / "ds.json"
    path.write_text(text)
    for source in (ONE, str(path), path, text, base64.urlsafe_b64encode(text.encode()).decode()):
        assert C.load(source) == ONE
    path.write_text('{"a": 1, "a": 2}')
    for source in (str(path), "nowhere.json", "[1]", 5, '{"a":'):
        with pytest.raises(ConfigError):
            C.load(source)


def test_a_note_for_each_key_without_effect(caplog):
    c = Config({**ONE, "zero_optimization": {"stage": 2, "overlap_comm": True,
                                             "zero_quantized_weights": True}})
    assert [n.split()[0] for n in c.notes] == ["zero_optimization.overlap_comm",
                                               "zero_optimization.zero_quantized_weights"]
    assert "image_codec" in caplog.text
