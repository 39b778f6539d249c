# SPDX-License-Identifier: Apache-2.0
"""ds_config.json, key by key: what each key becomes in shardd, or why it is refused.

KEYS is the whole mapping, as data: one row for each key that DeepSpeed 0.19 knows, with what
happens to it. Config reads a file or a dict along these rows, parses numbers that were written as
text, takes "auto" that is left over as absent, and refuses what shardd cannot honour with a
sentence. Engine asks the result for settings of shardd and never looks into the file itself.
Nothing here needs torch.
"""

from __future__ import annotations

import base64
import copy
import difflib
import enum
import json
import logging
import os
from typing import Any, NamedTuple

log = logging.getLogger("shardd")

MAPPED, NOTHING, CLIENT, REFUSED = "M", "N", "C", "R"


class ConfigError(ValueError):
    """A ds_config that shardd cannot follow. The text names the key and says what to do."""


class Key(NamedTuple):
    """One key of ds_config.json.

    does   MAPPED: a setting of shardd. CLIENT: done in this process. NOTHING: accepted, and has no
           effect. REFUSED: an error, unless the value is one of `harmless` or says enabled: false
    text   what it becomes, why it has no effect, or what to do instead
    type   float, int, bool or str: what a value is converted to, or None
    inside of a block: whether its keys are in this table, so that an unknown one is an error
    """

    does: str
    text: str
    type: type | None = None
    inside: bool = False
    harmless: tuple = ()
    warn: bool = False


def _m(text, type=None, **more):
    return Key(MAPPED, text, type, **more)


def _n(text, type=None, **more):
    return Key(NOTHING, text, type, **more)


def _c(text, type=None, **more):
    return Key(CLIENT, text, type, **more)


def _r(text, type=None, **more):
    return Key(REFUSED, text, type, **more)


_BUCKET = "gradients leave when they are complete: there are no buckets"
_HOST = "the optimizer state is in host memory of the daemons anyway"
_LIVE = "each rank fetches parameters by itself from the node's image, one module at a time"
_NVME = "say \"cpu\" here, tier = nvme in [model] of shardd.conf, and nvme_dir in [daemon]"
_NO_NVME = "parameters are in host memory: say \"cpu\""
_CODEC = "say image_codec = int8 or int4 in [model] of shardd.conf: it codes what has changed"
_GRAD_CODEC = "say grad_codec = int8 or int4 in [model] of shardd.conf: it keeps what codes lose"

# Settings of stage 3 in ds_config, and what they are in shardd.stage3.
STAGE3 = {"prefetch_bucket_size": "prefetch", "max_live_parameters": "live",
          "max_reuse_distance": "reuse", "param_persistence_threshold": "keep",
          "model_persistence_threshold": "kept"}

# Modules that stage 3 fetches as a whole if the ds_config says nothing: by class, name, suffix.
LEAF_MODULES: dict[str, list[str]] = {
    "classes": [f"transformers.models.{k}.modeling_{k}.{c}SparseMoeBlock" for k, c in (
        ("mixtral", "Mixtral"), ("qwen2_moe", "Qwen2Moe"), ("qwen3_moe", "Qwen3Moe"))],
    "names": [], "name_suffixes": []}

KEYS: dict[str, Key] = {
    "train_batch_size": _m("micro batch x accumulation x trainers", int),
    "train_micro_batch_size_per_gpu": _m("of each trainer", int),
    "gradient_accumulation_steps": _m("backward passes in each step", int),
    "managed_gradient_accumulation": _m("false: each step() commits", bool),
    "gradient_clipping": _m("clip", float),
    "steps_per_print": _c("a line in the log; Accelerate says inf", float),
    "wall_clock_breakdown": _c("times of forward, backward and step in the log", bool),
    "dataloader_drop_last": _c("of the DataLoader that initialize() makes", bool),
    "dump_state": _c("the effective settings are printed", bool),
    "log_level": _c("of the logger shardd", str),
    "disable_python_gc": _c("gc.disable()", bool),
    "memory_breakdown": _n("`shardctl status` shows memory", bool),

    "optimizer": _m("the optimizer of the model", inside=True),
    "optimizer.type": _m("adam, adamw, sgd, adagrad or lion", str),
    "optimizer.params": _m("lr, betas, eps, weight_decay, momentum, nesterov"),
    "optimizer.legacy_fusion": _n("there is one kernel", bool),
    "scheduler": _c("an object of the same name on param_groups", inside=True),
    "scheduler.type": _c("one of DeepSpeed's five, or of torch.optim.lr_scheduler", str),
    "scheduler.params": _c("as there"),

    "bf16": _m("image and gradients are bf16", inside=True),
    "bf16.enabled": _m("image and gradients are bf16", bool),
    "bf16.check_grad_overflow": _m("a step with Inf or NaN is skipped", bool),
    "bf16.immediate_grad_update": _n("gradients leave when they are complete", bool),
    "bf16.bf16_master_weights_and_grads": _r("master weights are fp32", bool, harmless=(False,)),
    "bf16.bf16_optimizer_states": _r("optimizer state is fp32", bool, harmless=(False,)),
    "bfloat16": _m("older name of bf16", inside=True),
    "bfloat16.enabled": _m("as bf16.enabled", bool),
    "fp16": _m("image and gradients are fp16", inside=True),
    "fp16.enabled": _m("image and gradients are fp16", bool),
    "fp16.auto_cast": _c("floating inputs of forward are cast", bool),
    "fp16.loss_scale": _m("loss_scale; 0 is a dynamic one", float),
    "fp16.initial_scale_power": _m("initial_scale_power", int),
    "fp16.loss_scale_window": _m("loss_scale_window", int),
    "fp16.hysteresis": _m("hysteresis", int),
    "fp16.consecutive_hysteresis": _m("consecutive_hysteresis", bool),
    "fp16.min_loss_scale": _m("min_loss_scale", float),
    "fp16.fp16_master_weights_and_grads": _r("master weights are fp32", bool, harmless=(False,)),
    "torch_autocast": _c("torch.autocast around forward; the image stays fp32", inside=True),
    "torch_autocast.enabled": _c("torch.autocast around forward", bool),
    "torch_autocast.dtype": _c("of torch.autocast", str),
    "torch_autocast.lower_precision_safe_modules": _n("torch.autocast decides per operator"),
    "data_types": _m("dtypes beside that of the weights", inside=True),
    "data_types.grad_accum_dtype": _m("micro-batches are summed in fp32", str),
    "data_types.param_dtype": _c("the model is cast to it", str),
    "data_types.buffer_dtype": _c("buffers are cast to it; without it they stay as they are", str),
    "data_types.keep_in_fp32_modules": _c("buffers of these names stay fp32; parameters have the "
                                          "dtype of the model, as in DeepSpeed"),
    "communication_data_type": _m("the dtype of gradients on their way", str),
    "seq_parallel_communication_data_type": _n("there is no sequence parallelism here", str),
    "prescale_gradients": _m("predivide", bool),
    "gradient_predivide_factor": _m("predivide", float),
    "gradient_allreduce_op": _m("mean or sum over trainers", str),
    "sparse_gradients": _n("sparse gradients are sent as dense ones", bool),

    "zero_optimization": _m("shardd shards optimizer state in each stage", inside=True),
    "zero_optimization.stage": _m("0 to 3. In each, .grad is not kept: see safe_get_full_grad()",
                                  int),
    "zero_optimization.offload_optimizer": _n(_HOST, inside=True),
    "zero_optimization.offload_optimizer.device": _r(_NVME, str, harmless=("cpu", "none")),
    "zero_optimization.offload_optimizer.ratio": _n("all of it is in the daemons", float),
    "zero_optimization.offload_optimizer.super_offload": _n("all of it is in the daemons", bool),
    **{f"zero_optimization.offload_optimizer.{k}": _n(_HOST) for k in (
        "nvme_path", "buffer_count", "pin_memory", "pipeline", "pipeline_read", "pipeline_write",
        "fast_init", "cpuadam_cores_perc")},
    "zero_optimization.offload_param": _n("the image is host memory anyway", inside=True),
    "zero_optimization.offload_param.device": _r(_NO_NVME, str, harmless=("cpu", "none")),
    **{f"zero_optimization.offload_param.{k}": _n("the image is host memory anyway") for k in (
        "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory")},
    **{f"zero_optimization.{k}": _n(_BUCKET) for k in (
        "contiguous_gradients", "reduce_scatter", "reduce_bucket_size",
        "use_multi_rank_bucket_allreduce", "allgather_partitions", "allgather_bucket_size",
        "overlap_comm", "round_robin_gradients", "legacy_stage1", "parameter_alignment",
        "sub_group_size")},
    **{f"zero_optimization.{p}{k}": _m(f"{word} of stage3=, where parameters are fetched", float)
       for k, word in STAGE3.items() for p in ("stage3_", "")},
    **{f"zero_optimization.{k}": _n(_LIVE) for k in (
        "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
        "use_all_reduce_for_fetch_params", "allgather_sequential",
        "override_module_apply", "memory_efficient_linear", "log_trace_cache_warnings",
        "enable_sanity_checks", "pipeline_loading_checkpoint")},
    "zero_optimization.leaf_module": _m("modules that are fetched as a whole", inside=True),
    **{f"zero_optimization.leaf_module.{k}": _m("modules that are fetched as a whole") for k in (
        "classes", "names", "name_suffixes")},
    **{f"zero_optimization.{p}module_granularity_threshold": _m(
        "finer modules are fetched as a whole", float) for p in ("stage3_", "")},
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": _m("always: it is free", bool),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": _m("always: it is free", bool),
    "zero_optimization.gather_16bit_weights_on_model_save": _m("always: it is free", bool),
    "zero_optimization.load_from_fp32_weights": _n("masters are restored as they were saved", bool),
    "zero_optimization.ignore_unused_parameters": _m("false: a missing gradient is an error", bool),
    "zero_optimization.compute_grad_norm": _n("the norm costs nothing more", bool),
    "zero_optimization.zero_hpz_partition_size": _n("the node's image is the second copy", int),
    "zero_optimization.zero_quantized_weights": _n(_CODEC, bool, warn=True),
    "zero_optimization.zero_quantized_gradients": _n(_GRAD_CODEC, bool, warn=True),
    "zero_optimization.zero_quantized_nontrainable_weights": _n(_CODEC, bool, warn=True),
    "zero_optimization.zeropp_loco_param": _r("LoCo is not kept; DeepSpeed 0.19.8 removed it, too"),
    "zero_optimization.mics_shard_size": _r("MiCS is not kept: leave it out", int, harmless=(-1,)),
    "zero_optimization.mics_hierarchical_params_gather": _r("MiCS is not kept: leave it out", bool,
                                                            harmless=(False,)),
    "zero_optimization.zenflow": _r('ZenFlow is not kept. "shardd": {"max_staleness": 1} is the '
                                    "nearest thing: a step is computed while the one before is "
                                    "decided"),
    **{f"zero_optimization.{k}": _n("DeepSpeed deprecated it") for k in (
        "elastic_checkpoint", "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory",
        "save_muon_momentum_buffer_in_memory")},
    "zero_allow_untested_optimizer": _n("an optimizer is kept or refused", bool),
    "zero_force_ds_cpu_optimizer": _n("the daemons compute the step", bool),
    "disable_allgather": _n(_BUCKET, bool),
    "use_data_before_expert_parallelism": _n("there is no expert parallelism here", bool),

    "tensorboard": _c("scalars of training, by rank 0", inside=True),
    "csv_monitor": _c("scalars of training, by rank 0", inside=True),
    **{f"{m}.{k}": _c("of the monitor", t) for m in ("tensorboard", "csv_monitor")
       for k, t in (("enabled", bool), ("output_path", str), ("job_name", str))},
    "wandb": _c("scalars of training, by rank 0"),
    "comet": _c("scalars of training, by rank 0"),
    "flops_profiler": _c("torch.utils.flop_counter at profile_step", inside=True),
    "flops_profiler.enabled": _c("counts one forward pass", bool),
    "flops_profiler.profile_step": _c("the step that is counted", int),
    "flops_profiler.output_file": _c("where the table goes", str),
    **{f"flops_profiler.{k}": _n("the table has all modules") for k in (
        "module_depth", "top_modules", "detailed", "recompute_fwd_factor")},
    "comms_logger": _n("`shardctl metrics` shows bytes"),
    "timers": _n("the result of a step has its times"),
    "autotuning": _r("there is nothing to tune: leave it out"),
    "compile": _n("call engine.compile()", inside=True),
    "compile.deepcompile": _r("DeepCompile is not kept: call engine.compile()", bool,
                              harmless=(False,)),
    **{f"compile.{k}": _n("call engine.compile()") for k in (
        "enabled", "backend", "kwargs", "free_activation", "offload_activation",
        "offload_opt_states", "double_buffer", "symmetric_memory", "debug_log", "passes",
        "offload_parameters", "sync_before_reduce", "sync_after_reduce", "sync_before_allgather",
        "sync_after_allgather", "keep_int_input_tensors", "keep_all_input_tensors",
        "deepcompile_moe")},
    "activation_checkpointing": _c("deepspeed.checkpointing", inside=True),
    "activation_checkpointing.partition_activations": _c(
        "checkpoint() keeps a part on each rank of the group of configure(mpu)", bool),
    "activation_checkpointing.cpu_checkpointing": _c("checkpoint() keeps them in host memory",
                                                     bool),
    "activation_checkpointing.synchronize_checkpoint_boundary": _c(
        "torch.cuda.synchronize() before and after checkpoint()", bool),
    "activation_checkpointing.profile": _c("checkpoint() logs the time of forward", bool),
    **{f"activation_checkpointing.{k}": _n("torch's allocator does not fragment by it") for k in (
        "contiguous_memory_optimization", "number_checkpoints")},
    "checkpoint": _m("save_checkpoint()", inside=True),
    "checkpoint.tag_validation": _m("Ignore, Warn or Fail", str),
    "checkpoint.load_universal": _n("each checkpoint of shardd fits each number of trainers", bool),
    "checkpoint.use_node_local_storage": _r("checkpoints are in a folder that all nodes share",
                                            bool, harmless=(False,)),
    **{f"checkpoint.{k}": _n("the daemons write, all at once") for k in (
        "parallel_write", "checkpoint_serialization", "writer")},
    "nebula": _r("DeepSpeed 0.19.8 removed it, too: leave it out"),
    "datastates_ckpt": _n("the daemons write while training goes on"),
    "aio": _n("the daemons have their own"),

    "elasticity": _m("how many trainers there may be", inside=True),
    "elasticity.enabled": _m("world = (min_gpus, max_gpus)", bool),
    "elasticity.max_train_batch_size": _m("the largest global batch", int),
    "elasticity.micro_batch_sizes": _m("of which one is chosen for each world"),
    "elasticity.min_gpus": _m("the fewest trainers", int),
    "elasticity.max_gpus": _m("the most trainers", int),
    "elasticity.model_parallel_size": _r("a model per part", int, harmless=(1,)),
    "elasticity.num_gpus_per_node": _n("trainers are counted, not nodes", int),
    **{f"elasticity.{k}": _n("a world changes at any step") for k in (
        "min_time", "version", "prefer_larger_batch", "ignore_non_elastic_batch_info")},

    **{k: _r(f"{what} is not kept: leave it out or disable it") for k, what in (
        ("data_efficiency", "the data efficiency library"),
        ("curriculum_learning", "curriculum learning"),
        ("progressive_layer_drop", "progressive layer drop"), ("random_ltd", "random-LTD"),
        ("compression_training", "compression"), ("quantize_training", "quantization in training"),
        ("weight_quantization", "weight quantization"), ("eigenvalue", "the eigenvalue"),
        ("sparse_attention", "sparse attention"), ("amp", "Apex AMP"),
        ("hybrid_engine", "the hybrid engine"), ("expert_parallel", "expert parallelism"))},
    "graph_harvesting": _r("graph harvesting is not kept: leave it out", bool, harmless=(False,)),
    "vocabulary_size": _n("nothing is padded", int),
    "pipeline": _r("pipeline parallelism is a model of shardd per stage: leave it out",
                   harmless=({},)),
    "tensor_parallel": _r('tensor parallelism is a model of shardd per part, as "gpt.tp0": leave '
                          "it out", harmless=({},)),
    "sequence_parallel_size": _r("sequence parallelism is not kept", int, harmless=(1,)),

    "shardd": _m("what only shardd knows", inside=True),
    "shardd.name": _m("of the model; default $SHARDD_MODEL, else the script's", str),
    "shardd.address": _m("of the daemon; default $SHARD_ADDRESS or the node's", str),
    "shardd.secret": _m("over TCP, the file of the key; default $SHARD_SECRET", str),
    "shardd.tls": _m("over TCP: off, psk or a folder with certificates; default $SHARD_TLS", str),
    "shardd.world": _m("how many trainers, or [fewest, most]"),
    "shardd.max_staleness": _m("1: a step is computed while the one before is decided", int),
    "shardd.staleness_after": _m("the steps before max_staleness counts", int),
    "shardd.checkpoint_dir": _m("where the daemons save by themselves", str),
    "shardd.checkpoint_every": _m("the steps between such checkpoints", int),
    "shardd.resume": _m('"never": a model that has made steps is an error. "auto": go on with it',
                        str),
    "shardd.params": _m('"image": read-only views. "copy": own memory', str),
    "shardd.overlap": _m("gradients leave in backward; one backward pass ends each step", bool),
    "shardd.timeout": _m("seconds that a call waits for others", float),
    "shardd.settings": _m("other keys of [model] in shardd.conf"),
}

# Names of optimizers in ds_config, and what they are here.
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "adagrad": "adagrad", "lion": "lion",
              "fusedadam": "adamw", "cpuadam": "adamw"}
# What a key of optimizer.params becomes. None: nothing. A tuple: the only values that it may have.
OPTIMIZER_PARAMS: dict[str, Any] = {
    "lr": "lr", "betas": "betas", "eps": "eps", "weight_decay": "weight_decay",
    "momentum": "momentum", "nesterov": "nesterov", "adam_w_mode": (True, False),
    "bias_correction": (True,), "amsgrad": (False,), "dampening": (0,), "maximize": (False,),
    "lr_decay": (0,), "initial_accumulator_value": (0,), "torch_adam": None,
    "legacy_fusion": None, "fp32_optimizer_states": None, "foreach": None, "fused": None,
    "capturable": None, "differentiable": None, "set_grad_none": None, "adamw_mode": None,
    "decoupled_weight_decay": None, "fp32_optimizer_state": None,
}
# Other words for adam_w_mode. DeepSpeed refuses them, or they are for torch's Adam alone.
DECOUPLED = ("adamw_mode", "decoupled_weight_decay")
DTYPE_NAMES = {"fp32": "float32", "float32": "float32", "float": "float32", "fp16": "float16",
               "float16": "float16", "half": "float16", "bf16": "bfloat16",
               "bfloat16": "bfloat16", "torch.float32": "float32", "torch.float16": "float16",
               "torch.bfloat16": "bfloat16"}


def load(source: Any) -> dict:
    """A ds_config as a dict of its own: of a dict, a path, JSON, or JSON as base64."""
    if isinstance(source, dict):
        return copy.deepcopy(source)
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"shardd: a ds_config is a dict or a path, and this is {type(source)}")
    if os.path.exists(source):
        with open(source, encoding="utf-8") as f:
            text = f.read()
    else:
        text = str(source)
        if not text.lstrip().startswith("{"):
            try:
                text = base64.urlsafe_b64decode(text).decode()
            except ValueError:
                raise ConfigError(f"shardd: there is no ds_config {source!r}") from None
    try:
        got = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as e:
        raise ConfigError(f"shardd: ds_config {str(source)[:80]!r}: {e}") from None
    if not isinstance(got, dict):
        raise ConfigError("shardd: a ds_config is one JSON object")
    return got


def _once(pairs):
    """An object of JSON whose keys are there once each."""
    found = {}
    for k, v in pairs:
        if k in found:
            raise ConfigError(f"shardd: ds_config: key {k!r} is there twice")
        found[k] = v
    return found


def _without_auto(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _without_auto(v) for k, v in x.items() if v != "auto" and v is not None}
    return x.value if isinstance(x, enum.Enum) else x  # As OffloadDeviceEnum.cpu.


def number(path: str, value: Any, kind: type | None) -> Any:
    """A value in the type of its row. Numbers may be text, and integers may be 5e8."""
    if kind is None or value is None:
        return value
    try:
        if kind is bool:
            if isinstance(value, str):
                return {"true": True, "false": False}[value.lower()]
            if value not in (True, False, 0, 1):
                raise ValueError
            return bool(value)
        if kind is str:
            return str(value)
        if isinstance(value, bool):
            raise ValueError
        got = float(value)
        if kind is int:
            if got != int(got):
                raise ValueError
            return int(value) if isinstance(value, int) else int(got)
        return got
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"shardd: ds_config: {path} is {value!r}, and should be a "
                          f"{kind.__name__}") from None


class Config:
    """A ds_config as shardd follows it.

    source: dict, path or JSON. world_size: the trainers of this run.
    raw      what the user gave, without change
    values   the same without "auto", with numbers as numbers
    notes    one sentence for each key that has no effect
    Raises ConfigError with one sentence: which key, why, what to do.
    """

    def __init__(self, source: Any, world_size: int = 1, mpu: Any = None):
        self.raw = load(source)
        self.notes: list[str] = []
        self.world_size = world_size
        own = {k: v for k, v in self.raw.items() if k == "shardd"}  # There "auto" is a value.
        self.values = self._read("", {**_without_auto(self.raw), **own})
        self._batch()
        mode = str(self.get("checkpoint.tag_validation", "Warn"))
        if mode.lower() not in ("ignore", "warn", "fail"):
            raise ConfigError(f"shardd: ds_config: checkpoint.tag_validation is {mode!r}, and can "
                              "be Ignore, Warn or Fail")

    # --- reading ---

    def _read(self, path: str, block: dict) -> dict:
        out = {}
        for k, v in block.items():
            at = f"{path}.{k}" if path else k
            row = KEYS.get(at)
            if row is None:
                self._unknown(path, k)
            elif row.does == REFUSED:
                v = number(at, v, row.type)
                if not self._is_off(row, v):
                    raise ConfigError(f"shardd: ds_config: {at}={_short(v)}: {row.text}")
            elif row.inside and isinstance(v, dict):
                v = self._read(at, v)
            elif row.inside and not (at == "zero_optimization" and isinstance(v, bool)):
                raise ConfigError(f"shardd: ds_config: {at} is {_short(v)}, and should be an "
                                  "object")
            else:
                v = number(at, v, row.type)
            if row.does == NOTHING and not (isinstance(v, dict) and row.inside):
                self._note(row, at, v)
            out[k] = v
        return out

    def _note(self, row: Key, at: str, value: Any) -> None:
        self.notes.append(f"{at} has no effect: {row.text}")
        if row.warn and value:
            log.warning("shardd: ds_config: %s=%s has no effect: %s", at, value, row.text)

    @staticmethod
    def _is_off(row: Key, value: Any) -> bool:
        if isinstance(value, dict):
            on = value.get("enabled", None)
            size = value.get("autotp_size", None)
            return value == {} or on is False or on is None and size in (0, 1)
        return value is False or value in row.harmless

    def _unknown(self, path: str, key: str) -> None:
        near = [k.rpartition(".")[2] for k in KEYS if k.rpartition(".")[0] == path]
        guess = difflib.get_close_matches(key, near, 1)
        where = f" in {path}" if path else ""
        meant = f" Is {guess[0]!r} meant?" if guess else ""
        raise ConfigError(f"shardd: ds_config: there is no key {key!r}{where}.{meant} DeepSpeed "
                          "would ignore it or refuse it: take it out")

    def get(self, path: str, otherwise: Any = None) -> Any:
        """The value at a path as "fp16.loss_scale", or `otherwise`."""
        at: Any = self.values
        for word in path.split("."):
            if not isinstance(at, dict) or word not in at:
                return otherwise
            at = at[word]
        return at

    # --- batches and worlds ---

    def _batch(self) -> None:
        """Of train batch, micro batch and accumulation two give the third, as in DeepSpeed."""
        n = self.world_size
        train, micro = self.get("train_batch_size"), self.get("train_micro_batch_size_per_gpu")
        steps = self.get("gradient_accumulation_steps")
        if self.get("elasticity.enabled"):
            train, micro, steps = self._elastic_batch(train, micro, steps)
        if train is None and micro is None:
            raise ConfigError("shardd: ds_config: either train_batch_size or "
                              "train_micro_batch_size_per_gpu needs to be given")
        if train is None:
            steps = 1 if steps is None else steps
            train = micro * steps * n
        elif micro is None:
            steps = 1 if steps is None else steps
            micro = train // n // max(1, steps)
        elif steps is None:
            steps = train // micro // n if micro > 0 else 0
        for name, value in (("train_batch_size", train), ("gradient_accumulation_steps", steps),
                            ("train_micro_batch_size_per_gpu", micro)):
            if value <= 0:
                raise ConfigError(f"shardd: ds_config: {name} is {value} for {n} trainers, and has "
                                  "to be greater than 0")
        if train != micro * steps * n:
            raise ConfigError(
                f"shardd: ds_config: train_batch_size is {train}, and "
                f"train_micro_batch_size_per_gpu x gradient_accumulation_steps x trainers is "
                f"{micro} x {steps} x {n} = {micro * steps * n}")
        self.train_batch_size, self.train_micro_batch_size_per_gpu = train, micro
        self.gradient_accumulation_steps = steps

    def _elastic_batch(self, train, micro, steps):
        """The largest micro batch that fits, so that the global batch is the same in each world."""
        most = self.get("elasticity.max_train_batch_size", train)
        if most is None:
            raise ConfigError("shardd: ds_config: elasticity needs max_train_batch_size")
        sizes = sorted((int(x) for x in self.get("elasticity.micro_batch_sizes") or
                        ([micro] if micro else [])), reverse=True)
        want = train or most
        for size in sizes:
            if size > 0 and want % (size * self.world_size) == 0:
                return want, size, want // (size * self.world_size)
        if not sizes:
            return want, micro, steps
        raise ConfigError(f"shardd: ds_config: elasticity: a global batch of {want} is no multiple "
                          f"of {self.world_size} trainers with any micro batch of {sizes}")

    @property
    def world(self) -> tuple[int, int]:
        """The fewest and the most trainers."""
        own = self.get("shardd.world")
        if own is not None:
            low, high = (own, own) if isinstance(own, int) else (int(x) for x in own)
            return low, high
        if self.get("elasticity.enabled"):
            return (self.get("elasticity.min_gpus", 1),
                    self.get("elasticity.max_gpus", self.world_size))
        return self.world_size, self.world_size

    # --- what an optimizer of shardd is told ---

    @property
    def stage(self) -> int:
        """The stage of ZeRO."""
        z = self.values.get("zero_optimization", {})
        stage = int(z) if isinstance(z, bool) else z.get("stage", 0)
        if stage not in (0, 1, 2, 3):
            raise ConfigError(f"shardd: ds_config: zero_optimization.stage is {stage}, and can be "
                              "0 to 3")
        return stage

    @property
    def stage3(self) -> dict[str, float] | None:
        """Settings of shardd.stage3.Scheduler, or None in another stage."""
        if self.stage != 3:
            return None
        found = {}
        for key, word in STAGE3.items():
            for name in (key, "stage3_" + key):
                value = self.get(f"zero_optimization.{name}")
                if value is not None:
                    found[word] = value
        return found

    @property
    def leaf_modules(self) -> dict[str, list[str]]:
        """Which modules stage 3 fetches as a whole: lists of classes, names and name_suffixes."""
        found = {}
        for key, unsaid in LEAF_MODULES.items():
            value = self.get(f"zero_optimization.leaf_module.{key}", unsaid)
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise ConfigError(f"shardd: ds_config: zero_optimization.leaf_module.{key} is "
                                  f"{_short(value)}, and should be a list of names")
            found[key] = list(dict.fromkeys(value))
        return found

    @property
    def leaf_granularity(self) -> float:
        """Modules that are as fine are fetched as a whole, too (module_granularity_threshold)."""
        return max(self.get(f"zero_optimization.{p}module_granularity_threshold") or 0
                   for p in ("stage3_", ""))

    @property
    def dtype(self) -> str | None:
        """The name of the dtype that the model is cast to; None: as it is, fp32."""
        bf16 = self.get("bf16.enabled") or self.get("bfloat16.enabled")
        fp16 = self.get("fp16.enabled")
        if bf16 and fp16:
            raise ConfigError("shardd: ds_config: bf16 and fp16 are both enabled")
        if bf16 and self.get("bf16.check_grad_overflow") is False:
            raise ConfigError("shardd: ds_config: bf16.check_grad_overflow=false: a gradient with "
                              "Inf or NaN never reaches the masters here. Take it out")
        return "bfloat16" if bf16 else "float16" if fp16 else None

    @property
    def param_dtype(self) -> str | None:
        """The name of the dtype that data_types asks for, where neither bf16 nor fp16 is on."""
        return self._dtype_at("data_types.param_dtype")

    @property
    def buffer_dtype(self) -> str | None:
        """The name of the dtype that buffers are cast to; None: they stay as they are."""
        return self._dtype_at("data_types.buffer_dtype")

    def _dtype_at(self, path: str) -> str | None:
        word = self.get(path)
        if word is not None and word not in DTYPE_NAMES:
            raise ConfigError(f"shardd: ds_config: {path} is {word!r}, and can be fp32, fp16 or "
                              "bf16")
        return DTYPE_NAMES.get(word)

    @property
    def keep_in_fp32(self) -> list[str] | None:
        """Patterns of names of buffers that stay fp32; None: those that the model's modules say."""
        told = self.get("data_types.keep_in_fp32_modules")
        if told is not None and not (isinstance(told, list) and
                                     all(isinstance(w, str) for w in told)):
            raise ConfigError("shardd: ds_config: data_types.keep_in_fp32_modules is "
                              f"{_short(told)}, and should be a list of names, or \"auto\"")
        return told

    @property
    def grad_dtype(self) -> str | None:
        """The name of the dtype of gradients on their way; None: as the model."""
        word = self.get("communication_data_type")
        if word is None:
            return None
        if word not in DTYPE_NAMES:
            raise ConfigError(f"shardd: ds_config: communication_data_type is {word!r}, and can be "
                              "fp32, fp16 or bfp16".replace("bfp16", "bf16"))
        return DTYPE_NAMES[word]

    @property
    def clip(self) -> float:
        """The largest norm of the gradient. DeepSpeed 0.19 clips at 1.0 if nobody says a number."""
        value = self.get("gradient_clipping", 1.0)
        if value < 0:
            raise ConfigError(f"shardd: ds_config: gradient_clipping is {value}, and is 0 or more")
        return value

    def settings(self) -> dict:
        """Settings of [model] in shardd.conf."""
        words: dict[str, Any] = {}
        if self.get("fp16.enabled"):
            scale = self.get("fp16.loss_scale", 0.0)
            words["loss_scale"] = scale or "dynamic"
            if not scale:
                # Without ZeRO DeepSpeed lowers the scale at each overflow.
                patience = self.get("fp16.hysteresis", 2) if self.stage else 1
                words.update(
                    initial_scale_power=self.get("fp16.initial_scale_power", 16),
                    loss_scale_window=self.get("fp16.loss_scale_window", 1000),
                    hysteresis=patience,
                    consecutive_hysteresis=self.get("fp16.consecutive_hysteresis", False),
                    min_loss_scale=self.get("fp16.min_loss_scale", 1.0),
                    max_skips=0)
        if self.get("prescale_gradients") and self.get("gradient_predivide_factor", 1.0) != 1.0:
            words["predivide"] = self.get("gradient_predivide_factor")
        elif self._divides_first() and self.world[1] > 1:
            words["predivide"] = float(self.world[1])
        if self.get("shardd.max_staleness"):
            words["max_staleness"] = self.get("shardd.max_staleness")
            words["staleness_after"] = self.get("shardd.staleness_after", 0)
        return {**words, **self.get("shardd.settings", {})}

    def _divides_first(self) -> bool:
        """Whether DeepSpeed takes the mean over trainers by dividing each gradient, and then sums.
        In fp16 the sum could overflow otherwise, which is then another loss scale."""
        return bool(self.get("fp16.enabled")) and not self.sums and (
            self.stage == 3 or self.stage > 0 and
            bool(self.get("zero_optimization.reduce_scatter", True)))

    @property
    def sums(self) -> bool:
        """Whether gradients are summed over trainers, and not averaged."""
        op = self.get("gradient_allreduce_op", "mean")
        if op not in ("mean", "sum"):
            raise ConfigError(f"shardd: ds_config: gradient_allreduce_op is {op!r}, and can be "
                              "mean or sum")
        return op == "sum"

    def optimizer(self) -> tuple[str, dict] | None:
        """The kind of optimizer and its parameters, or None if the file has none."""
        name = self.get("optimizer.type")
        if name is None:
            return None
        kind = OPTIMIZERS.get(name.lower())
        if kind is None:
            raise ConfigError(f"shardd: ds_config: optimizer.type is {name!r}, and can be Adam, "
                              "AdamW, SGD, Adagrad or Lion"
                              + (". For a learning rate per group give groups with their own lr"
                                 if name.lower().startswith("mu") else ""))
        given, words = self.get("optimizer.params", {}) or {}, {}
        for k, v in given.items():
            if k == "max_grad_norm":
                raise ConfigError("shardd: ds_config: optimizer.params.max_grad_norm: say "
                                  "gradient_clipping beside optimizer, as in DeepSpeed")
            if k not in OPTIMIZER_PARAMS:
                near = difflib.get_close_matches(k, OPTIMIZER_PARAMS, 1)
                raise ConfigError(f"shardd: ds_config: optimizer.params has no key {k!r}."
                                  + (f" Is {near[0]!r} meant?" if near else ""))
            becomes = OPTIMIZER_PARAMS[k]
            if isinstance(becomes, tuple) and k != "adam_w_mode" and v not in becomes:
                raise ConfigError(f"shardd: ds_config: optimizer.params.{k}={v!r}: {name} here is "
                                  "without it")
            if isinstance(becomes, str):
                if k == "betas":
                    v = tuple(number("optimizer.params.betas", b, float) for b in v)
                elif k != "nesterov":
                    v = number(f"optimizer.params.{k}", v, float)
                words[becomes] = v
        kind = self._decay(name, kind, given)
        if kind == "adamw" and number("optimizer.params.torch_adam", given.get("torch_adam"), bool):
            words.setdefault("weight_decay", 0.01)  # That of torch's AdamW. DeepSpeed's have 0.
        return kind, words

    @staticmethod
    def _decay(name: str, kind: str, given: dict) -> str:
        """Adam decays weights as AdamW does unless adam_w_mode is false; AdamW does so always."""
        mode = number("optimizer.params.adam_w_mode", given.get("adam_w_mode", True), bool)
        if kind != "adamw":
            for k in ("adam_w_mode", *DECOUPLED):
                if k in given:
                    raise ConfigError(f"shardd: ds_config: optimizer.params.{k} is a word of Adam, "
                                      f"and optimizer.type is {name!r}: take it out")
            return kind
        decoupled = mode or name.lower() == "adamw"
        for k in DECOUPLED:
            if k in given and number(f"optimizer.params.{k}", given[k], bool) != decoupled:
                raise ConfigError(
                    f"shardd: ds_config: optimizer.params.{k}={given[k]!r}: {name} here is "
                    f"{'AdamW' if decoupled else 'Adam with L2'}. DeepSpeed has type Adam and "
                    "adam_w_mode, false for L2, and true, its default, for AdamW")
        return "adamw" if decoupled else "adam"


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 60 else text[:57] + "..."
