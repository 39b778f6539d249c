# SPDX-License-Identifier: Apache-2.0
"""shardd under the names of DeepSpeed.

    import shardd.deepspeed as deepspeed          # one line changes, or none:
    python -m shardd.deepspeed train.py ...       # under Accelerate, Transformers, Lightning, Ray

ds_config.json is followed key by key (config.py). install() does from inside a script what the
second line does from outside.
"""

from __future__ import annotations

import sys as _sys

from .comm import init_distributed
from .config import Config, ConfigError
from .config import Config as DeepSpeedConfig
from .config import ConfigError as DeepSpeedConfigError
from .engine import DeepSpeedEngine, initialize
from .optimizer import DeepSpeedOptimizer
from .standin import VERSION as __version__
from .standin import (LayerSpec, PipelineModule, add_config_arguments, build, install,
                      uninstall)

__all__ = ["Config", "ConfigError", "DeepSpeedConfig", "DeepSpeedConfigError",
           "DeepSpeedEngine", "DeepSpeedOptimizer", "LayerSpec", "PipelineModule",
           "add_config_arguments", "init_distributed", "initialize", "install", "uninstall"]

build(_sys.modules[__name__])
dist = _sys.modules[__name__ + ".comm"]
