# SPDX-License-Identifier: Apache-2.0
"""GradScaler: for a loop that has one of torch, where the loss scale is in the daemons."""

from __future__ import annotations

import logging
from typing import Mapping

import torch

log = logging.getLogger("shardd")


class GradScaler:
    """torch's GradScaler where the loss scale is in the daemons: the same methods, no state."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """loss times the loss scale of this step."""
        return self._optimizer.scale(loss)

    def unscale_(self, optimizer) -> None:
        """Nothing: the daemons divide by the scale. clip= is on the true norm."""

    def step(self, optimizer) -> None:
        """optimizer.step()."""
        optimizer.step()

    def update(self, new_scale=None) -> None:
        """Nothing: the daemons have updated the scale."""

    def get_scale(self) -> float:
        """The loss scale of the next step."""
        r = self._optimizer.result
        return r.next_loss_scale if r and r.reason != "world" else self._optimizer._session.loss_scale

    def is_enabled(self) -> bool:
        """True."""
        return True

    def state_dict(self) -> dict:
        """The loss scale, for whoever looks. It is the daemons', and a checkpoint of theirs has it
        with all that belongs to it."""
        return {"scale": self.get_scale(), "shardd": self._optimizer.name}

    def load_state_dict(self, state_dict: Mapping) -> None:
        """Changes nothing: the loss scale comes with the model. If the state, of this class or of
        torch's, has another one, that is logged."""
        scale, now = state_dict.get("scale"), self.get_scale()
        if scale is not None and float(scale) != now:
            log.warning("shardd: this state of a GradScaler has scale %g, and model %r goes on "
                        "with its own, %g: give loss_scale= to a new model to begin with another",
                        float(scale), self._optimizer.name, now)
