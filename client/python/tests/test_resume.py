# SPDX-License-Identifier: Apache-2.0
"""A job that starts again and finds its model."""

import torch

import shardd


def step_of(model, opt):
    model(torch.ones(1, 4)).sum().backward()
    opt.step()


def test_applied_is_the_models(address):
    """opt.applied, and step in opt.state, are those of the model also after an attach."""
    model = torch.nn.Linear(4, 2)
    opt = shardd.AdamW(model, name="counts", address=address, timeout=60)
    assert opt.applied == 0
    for _ in range(3):
        step_of(model, opt)
    assert opt.applied == 3
    opt.close(drop=False)
    opt = shardd.AdamW(model, name="counts", address=address, timeout=60)
    assert opt.applied == 3 and opt.state[model.weight]["step"] == 3
    step_of(model, opt)
    assert opt.applied == 4 and opt.state[model.weight]["step"] == 4
    opt.close()
