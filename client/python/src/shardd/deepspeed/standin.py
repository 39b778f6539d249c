# SPDX-License-Identifier: Apache-2.0
"""The module tree of deepspeed: which name is where, and how scripts get it unchanged.

MODULES is the tree, as data. It is made below shardd.deepspeed when that is imported, so that
`import shardd.deepspeed as deepspeed` gives deepspeed.ops.adam. install() puts a finder first in
sys.meta_path that answers for `deepspeed` and its modules with the same objects, and for its
distribution, because Accelerate asks importlib.metadata for it before it imports anything.
"""

from __future__ import annotations

import argparse
import collections
import enum
import importlib.abc
import importlib.machinery
import importlib.metadata
import itertools
import os
import sys
import types
from typing import Any

import torch

from . import (checkpointing, comm, config, engine, monitor, optimizer, saving, schedules, zero,
               zero_to_fp32)

VERSION = "0.19.8+shardd"
REAL, OURS = "deepspeed", "shardd.deepspeed"


class _Adam(torch.optim.AdamW):
    """Carries parameters and hyper-parameters to initialize(). The daemons compute the step."""

    def __init__(self, model_params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8,
                 weight_decay=0.0, amsgrad=False, adamw_mode=True, adam_w_mode=True,
                 fp32_optimizer_states=True, set_grad_none=True):
        if not bias_correction:
            raise config.ConfigError("shardd: bias_correction=False is not kept")
        super().__init__(model_params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                         amsgrad=amsgrad)
        self.adam_w_mode = adamw_mode and adam_w_mode


class DeepSpeedCPUAdam(_Adam):
    __doc__ = _Adam.__doc__


class FusedAdam(_Adam):
    __doc__ = _Adam.__doc__


class DeepSpeedCPUAdagrad(torch.optim.Adagrad):
    """Carries parameters and hyper-parameters to initialize(). The daemons compute the step."""

    def __init__(self, model_params, lr=1e-2, eps=1e-10, weight_decay=0, amsgrad=False,
                 fp32_optimizer_states=True):
        super().__init__(model_params, lr=lr, eps=eps, weight_decay=weight_decay)


class _Lion(torch.optim.Optimizer):
    """Carries parameters and hyper-parameters to initialize(). The daemons compute the step."""

    def __init__(self, model_params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0,
                 fp32_optimizer_states=True, set_grad_none=True):
        super().__init__(model_params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    def step(self, closure=None):
        raise RuntimeError("shardd: give this optimizer to deepspeed.initialize()")


class DeepSpeedCPULion(_Lion):
    __doc__ = _Lion.__doc__


class FusedLion(_Lion):
    __doc__ = _Lion.__doc__


class Accelerator:
    """The device that torch has, under the names of DeepSpeed's accelerator."""

    def __init__(self):
        self._name = "cuda" if torch.cuda.is_available() and \
            os.environ.get("DS_ACCELERATOR", "cuda") == "cuda" else "cpu"

    def device_name(self, device_index=None) -> str:
        """ "cuda" or "cpu", with the index if one is given."""
        return self._name if device_index is None or self._name == "cpu" \
            else f"{self._name}:{device_index}"

    def is_available(self) -> bool:
        """True."""
        return True

    def device_count(self) -> int:
        """GPUs, or on a machine without one the ranks that may run here."""
        if self._name == "cuda":
            return torch.cuda.device_count()
        return int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or
                   os.cpu_count() or 1)

    def current_device(self) -> int:
        """The index of the device."""
        return torch.cuda.current_device() if self._name == "cuda" else \
            int(os.environ.get("LOCAL_RANK") or 0)

    def current_device_name(self) -> str:
        """As torch.device takes it."""
        return self.device_name(self.current_device())

    def set_device(self, device_index) -> None:
        """The device of this process."""
        if self._name == "cuda":
            torch.cuda.set_device(device_index)

    def device(self, device_index=None) -> torch.device:
        """A torch.device."""
        return torch.device(self.device_name(device_index))

    def communication_backend_name(self) -> str:
        """nccl or gloo."""
        return "nccl" if self._name == "cuda" else "gloo"

    def is_bf16_supported(self) -> bool:
        """Whether a model may be bf16."""
        return self._name == "cpu" or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        """Whether a model may be fp16."""
        return True

    def supported_dtypes(self) -> list:
        """What a model may be."""
        return [torch.float32, torch.float16, torch.bfloat16]

    def is_synchronized_device(self) -> bool:
        """Whether there are no streams."""
        return self._name == "cpu"

    def use_host_timers(self) -> bool:
        """Whether time is measured on the host."""
        return self._name == "cpu"

    def manual_seed(self, seed):
        """torch.manual_seed()."""
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def on_accelerator(self, tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device.type == self._name

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if self._name == "cuda" and hasattr(torch.cuda, name):
            return getattr(torch.cuda, name)
        if name.startswith(("memory_", "max_memory_", "reset_", "total_mem", "available_mem")):
            return lambda *a, **k: 0
        if name in ("synchronize", "empty_cache", "ipc_collect", "range_push", "range_pop"):
            return lambda *a, **k: None
        raise AttributeError(f"shardd's accelerator has no {name!r}")


_accelerator = Accelerator()


class RepeatingLoader:
    """A DataLoader that begins again when it is at its end."""

    def __init__(self, loader):
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self):
        return self

    def __len__(self):
        return len(self.loader)

    def __next__(self):
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options of a script: --deepspeed, --deepspeed_config FILE, and the older names of them."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true",
                       help="train by deepspeed.initialize()")
    group.add_argument("--deepspeed_config", default=None, type=str, help="the ds_config.json")
    group.add_argument("--deepscale", default=False, action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--deepscale_config", default=None, type=str, help=argparse.SUPPRESS)
    return parser


def _refused(name: str, instead: str):
    """A class that scripts may import, and that says what to do when they make one."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError(f"shardd: deepspeed.{name} is not kept: {instead}")

    return type(name, (torch.nn.Module,), {"__init__": __init__, "__doc__": instead})


def _log_dist(message, ranks=None, level=None) -> None:
    """Logs on these ranks; [-1] or None: on all."""
    if not ranks or -1 in ranks or comm.rank() in ranks:
        monitor.log.log(level or 20, message)


def _see_memory_usage(message, force=False, **more) -> None:
    """Nothing: `shardctl status` shows memory."""


class _Builder:
    """Of an operator that DeepSpeed compiles at the user's. Nothing is compiled here."""

    def is_compatible(self, verbose=False) -> bool:
        """True: the daemons have it."""
        return True

    def load(self, verbose=False):
        """There is nothing to load."""
        raise NotImplementedError("shardd: operators of DeepSpeed are not here: the daemons "
                                  "compute the step")


def _model_file(base_folder: str, mp_rank_str: str) -> str:
    return os.path.join(base_folder, f"mp_rank_{mp_rank_str}_model_states.pt")


PIPE = "train each stage as a model of its own name in shardd, as \"gpt.pp0\""
MOE = "use the experts of your model library: each parameter is kept, used in a step or not"
PipelineModule, LayerSpec = _refused("PipelineModule", PIPE), _refused("LayerSpec", PIPE)
TiedLayerSpec, MoE = _refused("TiedLayerSpec", PIPE), _refused("MoE", MOE)
_PIPE = {"PipelineModule": PipelineModule, "LayerSpec": LayerSpec, "TiedLayerSpec": TiedLayerSpec}
_SAFE = {n: getattr(zero, n) for n in dir(zero)
         if n.startswith("safe_") or "z3_leaf" in n}
_ZERO = {n: getattr(zero, n) for n in (
    "Init", "GatheredParameters", "register_external_parameter", "unregister_external_parameter",
    "ZeroParamStatus", "unwrap_model_for_generation")}
_BUILDERS = {n: type(n, (_Builder,), {"NAME": word}) for n, word in (
    ("CPUAdamBuilder", "cpu_adam"), ("CPUAdagradBuilder", "cpu_adagrad"),
    ("CPULionBuilder", "cpu_lion"), ("FusedAdamBuilder", "fused_adam"),
    ("FusedLambBuilder", "fused_lamb"), ("FusedLionBuilder", "fused_lion"),
    ("AsyncIOBuilder", "async_io"), ("UtilsBuilder", "utils"))}
_SCHEDULES = {**schedules.CONSTANTS, **schedules.SCHEDULES,
              **{n: getattr(schedules, n) for n in (
                  "LR_RANGE_TEST", "ONE_CYCLE", "WARMUP_LR", "WARMUP_DECAY_LR", "WARMUP_COSINE_LR",
                  "VALID_LR_SCHEDULES", "add_tuning_arguments")}}

class OffloadDeviceEnum(str, enum.Enum):
    """Where offloaded state goes. nvme is refused by the table of ds_config."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class DeepSpeedZeroConfig:
    """The block zero_optimization, checked, with its values as attributes."""

    def __init__(self, **given):
        block = config.Config({"train_batch_size": 1, "zero_optimization": given})
        self.__dict__.update(block.get("zero_optimization", {}))
        self.stage = block.stage
        self.overlap_comm = block.get("zero_optimization.overlap_comm", self.stage == 3)
        self.leaf_module = types.SimpleNamespace(**block.leaf_modules)


def _bf16_config(param_dict: dict) -> types.SimpleNamespace:
    block = param_dict.get("bf16") or param_dict.get("bfloat16") or {}
    return types.SimpleNamespace(**{"enabled": False, **block})


def _wrapper(name: str):
    """A name for isinstance(): no optimizer here is one of these wrappers of DeepSpeed."""
    return type(name, (), {"__doc__": "DeepSpeed wraps optimizers by it. Nothing here is one."})


# Each module below deepspeed, and the names in it. A module that exists stands for itself.
MODULES: dict[str, Any] = {
    "comm": comm,
    "comm.comm": comm,
    "zero": zero,
    "runtime": {},
    "runtime.lr_schedules": _SCHEDULES,
    "runtime.engine": {"DeepSpeedEngine": engine.DeepSpeedEngine},
    "runtime.config": {"DeepSpeedConfig": config.Config, "DeepSpeedConfigError": config.ConfigError,
                       "ADAM_OPTIMIZER": "adam", "ADAMW_OPTIMIZER": "adamw"},
    "runtime.dataloader": {"RepeatingLoader": RepeatingLoader},
    "runtime.utils": {"see_memory_usage": _see_memory_usage},
    "runtime.zero": _ZERO,
    "runtime.zero.partition_parameters": _ZERO,
    "runtime.zero.utils": {"ZeRORuntimeException": type("ZeRORuntimeException", (Exception,), {})},
    "runtime.zero.stage_1_and_2": {"DeepSpeedZeroOptimizer": optimizer.DeepSpeedOptimizer},
    "runtime.zero.stage3": {"DeepSpeedZeroOptimizer_Stage3": optimizer.DeepSpeedOptimizer},
    "runtime.zero.config": {"DeepSpeedZeroConfig": DeepSpeedZeroConfig},
    "runtime.zero.leaf_module_config": {
        f"DEFAULT_LEAF_MODULE_{k.upper()}": v for k, v in config.LEAF_MODULES.items()},
    "runtime.base_optimizer": {"DeepSpeedOptimizer": optimizer.DeepSpeedOptimizer},
    "runtime.swap_tensor": {"MIN_SWAPPABLE_BYTES": 1 << 20},
    "runtime.precision_config": {"get_bfloat16_config": _bf16_config},
    "runtime.zero.offload_config": {"OffloadDeviceEnum": OffloadDeviceEnum},
    "runtime.fp16": {},
    "runtime.fp16.fused_optimizer": {"FP16_Optimizer": _wrapper("FP16_Optimizer")},
    "runtime.fp16.unfused_optimizer": {"FP16_UnfusedOptimizer": _wrapper("FP16_UnfusedOptimizer")},
    "runtime.bf16_optimizer": {"BF16_Optimizer": _wrapper("BF16_Optimizer")},
    "runtime.activation_checkpointing": {},
    "runtime.activation_checkpointing.checkpointing": checkpointing,
    "checkpointing": checkpointing,
    "checkpoint": {},
    "checkpoint.utils": {"clone_tensors_for_torch_save": saving.clone_tensors,
                         "get_model_ckpt_name_for_rank": _model_file},
    # FusedLamb and the like are not here, so that scripts which ask take another way.
    "ops": {"__compatible_ops__": collections.defaultdict(
        bool, {b.NAME: b.NAME not in ("async_io", "fused_lamb", "utils")
               for b in _BUILDERS.values()})},
    "ops.adam": {"DeepSpeedCPUAdam": DeepSpeedCPUAdam, "FusedAdam": FusedAdam},
    "ops.adam.cpu_adam": {"DeepSpeedCPUAdam": DeepSpeedCPUAdam},
    "ops.adam.fused_adam": {"FusedAdam": FusedAdam},
    "ops.adagrad": {"DeepSpeedCPUAdagrad": DeepSpeedCPUAdagrad},
    "ops.lion": {"DeepSpeedCPULion": DeepSpeedCPULion, "FusedLion": FusedLion},
    "ops.op_builder": _BUILDERS,
    "ops.aio": {"AsyncIOBuilder": _BUILDERS["AsyncIOBuilder"]},
    "utils": {"logger": monitor.log, "log_dist": _log_dist, "RepeatingLoader": RepeatingLoader,
              "set_log_level_from_string": lambda name, custom_logger=None:
              (custom_logger or monitor.log).setLevel(name.upper()), **_SAFE},
    "utils.zero_to_fp32": zero_to_fp32,
    "utils.logging": {"logger": monitor.log, "log_dist": _log_dist},
    "utils.groups": {"_get_data_parallel_world_size": comm.get_world_size,
                     "_get_data_parallel_rank": comm.get_rank,
                     "_get_data_parallel_group": lambda: torch.distributed.group.WORLD,
                     "_get_sequence_parallel_world_size": lambda: 1,
                     "_get_sequence_parallel_rank": lambda: 0,
                     "_get_sequence_parallel_group": lambda: None},
    "utils.torch": {"required_torch_version": lambda min_version=0, max_version=99:
                    min_version <= float(".".join(torch.__version__.split(".")[:2]))
                    <= max_version},
    "utils.z3_leaf_module": {k: v for k, v in _SAFE.items() if "z3" in k},
    "accelerator": {"get_accelerator": lambda: _accelerator,
                    "is_current_accelerator_supported": lambda: True},
    "accelerator.real_accelerator": {"get_accelerator": lambda: _accelerator},
    "git_version_info": {"torch_info": {"version": "0.0", "cuda_version": "0.0",
                                        "hip_version": "0.0", "nccl_version": "0.0",
                                        "bf16_support": True},
                         "version": VERSION},
    "pipe": _PIPE,
    "runtime.pipe": _PIPE,
    "runtime.pipe.module": _PIPE,
    "moe": {},
    "moe.layer": {"MoE": MoE},
    "moe.utils": {"split_params_into_different_moe_groups_for_optimizer":
                  lambda param_groups, max_group_size=None:
                  [param_groups] if isinstance(param_groups, dict) else list(param_groups)},
}


def build(root: types.ModuleType) -> None:
    """Makes the tree below shardd.deepspeed."""
    for path, names in MODULES.items():
        if isinstance(names, types.ModuleType):
            module = names
        else:
            module = types.ModuleType(f"{OURS}.{path}", f"deepspeed.{path}, as shardd has it.")
            module.__dict__.update(names)
            module.__path__ = []
        sys.modules[f"{OURS}.{path}"] = module
        parent, _, last = path.rpartition(".")
        above = sys.modules[f"{OURS}.{parent}"] if parent else root
        # utils.z3_leaf_module is a function, and a module of its own.
        if not callable(getattr(above, last, None)):
            setattr(above, last, module)


class _Loader(importlib.abc.Loader):
    """Gives the module that there is."""

    def __init__(self, module: types.ModuleType):
        self._module = module
        self._spec = getattr(module, "__spec__", None)

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        for path in MODULES:
            # A module that has a function's name: importing it later would write over the function.
            inside, _, last = path.rpartition(".")
            if module is sys.modules.get(f"{OURS}.{inside}") and \
                    callable(getattr(module, last, None)):
                sys.modules[f"{REAL}.{path}"] = sys.modules[f"{OURS}.{path}"]
        module.__spec__ = self._spec or module.__spec__


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata says about deepspeed."""

    def read_text(self, filename):
        if filename == "METADATA":
            return (f"Metadata-Version: 2.1\nName: {REAL}\nVersion: {VERSION}\n"
                    "Summary: shardd under the names of DeepSpeed\n")
        return None

    def locate_file(self, path):
        return os.path.join(os.path.dirname(__file__), str(path))


class Finder(importlib.abc.MetaPathFinder):
    """Answers for deepspeed, its modules and its distribution."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != REAL and not fullname.startswith(REAL + "."):
            return None
        module = sys.modules.get(OURS + fullname[len(REAL):])
        if module is None:
            raise ModuleNotFoundError(
                f"shardd stands in for deepspeed, and has no module {fullname!r}. With "
                "SHARDD_AS_DEEPSPEED=0 the real one is imported, if it is installed", name=fullname)
        return importlib.machinery.ModuleSpec(fullname, _Loader(module), is_package=True)

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        if (context.name or "").lower() == REAL:
            return iter([_Distribution()])
        return itertools.chain()


def install() -> bool:
    """From now on `import deepspeed` gives shardd.deepspeed. Returns whether it does.

    SHARDD_AS_DEEPSPEED=0 in the environment leaves things as they are. Raises RuntimeError if the
    real DeepSpeed is imported already.
    """
    if os.environ.get("SHARDD_AS_DEEPSPEED") == "0":
        return False
    there = sys.modules.get(REAL)
    if there is not None and there is not sys.modules.get(OURS):
        raise RuntimeError(
            f"shardd: deepspeed is imported already, from {getattr(there, '__file__', None)}: call "
            "shardd.deepspeed.install() before anything that imports it, or start the script by "
            "python -m shardd.deepspeed")
    if not any(isinstance(f, Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    return True


def uninstall() -> None:
    """Takes the stand-in away again. What was imported stays with whoever imported it."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, Finder)]
    for name in [n for n in sys.modules if n == REAL or n.startswith(REAL + ".")]:
        if sys.modules[name] is sys.modules.get(OURS + name[len(REAL):]):
            del sys.modules[name]
