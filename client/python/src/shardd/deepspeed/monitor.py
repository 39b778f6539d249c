# SPDX-License-Identifier: Apache-2.0
"""What an engine tells people: monitors, times, and a count of operations.

Monitors are those of a ds_config: csv_monitor and tensorboard, wandb and comet where they are
installed. Rank 0 writes. A monitor that is asked for and cannot be had is an error when the engine
is made, and not in mid-run.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import sys
import time

from .config import Config, ConfigError

log = logging.getLogger("shardd.deepspeed")
if not log.handlers:
    _handler = logging.StreamHandler(sys.stdout)
    _handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
    log.addHandler(_handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class Monitors:
    """Where scalars of training go. write() is nothing on ranks other than 0."""

    def __init__(self, config: Config, rank: int):
        self._csv = self._board = self._wandb = self._comet = None
        self.enabled = False
        if rank != 0:
            return
        if config.get("csv_monitor.enabled"):
            self._csv = _folder(config, "csv_monitor", "csv_monitor")
        if config.get("tensorboard.enabled"):
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ConfigError("shardd: ds_config: tensorboard.enabled, and the package "
                                  "tensorboard is not installed: install it, or take csv_monitor"
                                  ) from None
            self._board = SummaryWriter(_folder(config, "tensorboard", "tensorboard"))
        for name in ("wandb", "comet"):
            block = config.get(name) or {}
            if block.get("enabled"):
                setattr(self, "_" + name, _remote(name, block))
        self.enabled = any((self._csv, self._board, self._wandb, self._comet))

    def write(self, scalars: list[tuple[str, float]], samples: int) -> None:
        """Writes (name, value) at a number of samples."""
        if self._csv:
            for name, value in scalars:
                path = os.path.join(self._csv, name.replace("/", "_") + ".csv")
                new = not os.path.exists(path)
                with open(path, "a", newline="", encoding="utf-8") as f:
                    out = csv.writer(f)
                    if new:
                        out.writerow(["step", name])
                    out.writerow([samples, value])
        for name, value in scalars:
            if self._board:
                self._board.add_scalar(name, value, samples)
            if self._comet:
                self._comet.log_metric(name, value, step=samples)
        if self._board:
            self._board.flush()
        if self._wandb:
            self._wandb.log(dict(scalars), step=samples)

    def close(self) -> None:
        """Ends what is open."""
        if self._board:
            self._board.close()


def _folder(config: Config, block: str, otherwise: str) -> str:
    path = os.path.join(config.get(f"{block}.output_path") or otherwise,
                        config.get(f"{block}.job_name") or "DeepSpeedJobName")
    os.makedirs(path, exist_ok=True)
    return path


def _remote(name: str, block: dict):
    try:
        if name == "wandb":
            import wandb
            wandb.init(project=block.get("project", "deepspeed"), group=block.get("group"),
                       entity=block.get("team"))
            return wandb
        import comet_ml
        return comet_ml.start(project=block.get("project"), workspace=block.get("workspace"),
                              api_key=block.get("api_key"))
    except ImportError:
        raise ConfigError(f"shardd: ds_config: {name}.enabled, and its package is not installed: "
                          "install it, or take csv_monitor") from None


class Timers:
    """Milliseconds of forward, backward and step, as wall_clock_breakdown tells them."""

    def __init__(self, enabled: bool):
        self.enabled = enabled
        self.ms = {"forward": 0.0, "backward": 0.0, "step": 0.0}

    @contextlib.contextmanager
    def time(self, what: str):
        """Counts the time in here."""
        if not self.enabled:
            yield
            return
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.ms[what] += 1000 * (time.perf_counter() - begin)

    def tell(self, result) -> None:
        """One line for the step that ended."""
        if not self.enabled:
            return
        wait = f", of it waiting {result.wait_ms:.2f}" if result is not None else ""
        log.info("time (ms) | fwd: %.2f | bwd: %.2f | step: %.2f%s", self.ms["forward"],
                 self.ms["backward"], self.ms["step"], wait)
        self.ms = dict.fromkeys(self.ms, 0.0)


@contextlib.contextmanager
def count_flops(module, path: str | None, rank: int):
    """Counts the operations of a forward pass, and rank 0 prints them or writes a file."""
    from torch.utils.flop_counter import FlopCounterMode
    counter = FlopCounterMode(display=False)
    with counter:
        yield
    if rank == 0:
        params = sum(p.numel() for p in module.parameters())
        text = f"flops of a forward pass: {counter.get_total_flops()}, parameters: {params}\n"
        for name, counts in counter.get_flop_counts().items():
            text += f"{name}: {sum(counts.values())}\n"
        if path:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        else:
            log.info("%s", text)
