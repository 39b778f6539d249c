# SPDX-License-Identifier: Apache-2.0
"""What shardd.Optimizer is compared with: torch.optim on fp32 copies of a model's weights.

Nothing of shardd is used here. What becomes of gradients is written down from README.md and from
proto/wire/ARITHMETIC.md: a rank sums those of its backward passes in fp32 and rounds the sum to the
type that gradients are sent in; the ranks' sums are summed in fp32, in their order, and rounded to
that type again if they are more than one; the update uses the mean. For fp32 that is what DDP does.
"""

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2, for torch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - g["lr"] * g["weight_decay"])
                p.sub_(torch.sign(m.lerp(p.grad, 1 - g["betas"][0])), alpha=g["lr"])
                m.lerp_(p.grad, 1 - g["betas"][1])


SETTINGS = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"lr": 2e-3, "momentum": 0.9, "nesterov": True,
                              "weight_decay": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-3, "weight_decay": 0.01}),
    "lion": (Lion, {"lr": 1e-4, "weight_decay": 0.01}),
}


def summed(operands, wire):
    """The sum of gradients, which may be None. Its operands are summed in fp32."""
    here = [g for g in operands if g is not None]
    if not here:
        return None
    total = here[0].float()
    for g in here[1:]:
        total = total + g.float()
    return total.to(wire)


class Optimizer:
    """torch.optim on fp32 copies of the parameters.

    wire    the type that gradients are sent in
    scale   what losses were multiplied by
    """

    def __init__(self, params, kind, wire=torch.float32, clip=0.0, scale=1.0):
        self.masters = [p.detach().float().clone().requires_grad_() for p in params]
        cls, settings = SETTINGS[kind]
        self.torch = cls(self.masters, **settings, **({} if cls is Lion else {"foreach": False}))
        self.wire, self.clip, self.scale = wire, clip, scale

    def step(self, ranks):
        """ranks: for each rank and each of its backward passes, a gradient of each parameter.

        Returns the norm of the mean. A parameter without a gradient has a gradient of zero."""
        for i, m in enumerate(self.masters):
            each = [summed([one[i] for one in passes], self.wire) for passes in ranks]
            total = summed(each, self.wire)
            m.grad = torch.zeros_like(m) if total is None else \
                torch.empty_like(m).copy_(total.float()).div_(len(ranks) * self.scale)
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.clip or float("inf"))
        self.torch.step()
        return norm.item()

    def state(self):
        """Copies of the masters and of their moments: a dict for each parameter."""
        return [{"master": m.detach().clone(),
                 **{k: v.clone() for k, v in self.torch.state[m].items() if k != "step"}}
                for m in self.masters]


def gradients(model, batch, accumulate, scale):
    """The loss of a batch, and the gradients of its backward pass, None where there is none."""
    loss = model(*batch)
    params = list(model.parameters())
    return loss.item(), torch.autograd.grad(loss / accumulate * scale, params, allow_unused=True)


def train(model, kind, data, steps, world, accumulate, clip, wire, scale):
    """A whole training. data(pass, rank) is a batch.

    Returns the losses of rank 0, the norms, the state after the first step and at the end, and of
    each element of each parameter how large its gradient was at most."""
    params = list(model.parameters())
    opt = Optimizer(params, kind, wire, clip, scale)
    losses, norms, first, largest = [], [], None, [torch.zeros_like(m) for m in opt.masters]
    for s in range(steps):
        ranks = []
        for r in range(world):
            done = [gradients(model, data(s * accumulate + a, r), accumulate, scale)
                    for a in range(accumulate)]
            ranks.append([g for _, g in done])
            if r == 0:
                losses.append(done[-1][0])
        norms.append(opt.step(ranks))
        first = first or opt.state()
        with torch.no_grad():
            for p, m, most in zip(params, opt.masters, largest):
                p.copy_(m)
                torch.maximum(most, m.grad.abs(), out=most)
    return losses, norms, first, opt.state(), largest


def replay(params, kind, steps, clip, wire, scale):
    """The same of gradients that were recorded: norms, first and last state."""
    opt = Optimizer(params, kind, wire, clip, scale)
    norms, first = [], None
    for ranks in steps:
        norms.append(opt.step(ranks))
        first = first or opt.state()
    return norms, first, opt.state()
