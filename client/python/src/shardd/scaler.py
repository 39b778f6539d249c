# SPDX-License-Identifier: Apache-2.0
"""GradScaler: for a loop that has one of torch, where the loss scale is in the daemons."""

from __future__ import annotations

import torch


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
