# SPDX-License-Identifier: Apache-2.0
"""What close() leaves of a model in a private daemon, while others come and go."""

import pytest
import torch

import shardd
from shardd.lib import libshard
from shardd.session import Session

RANK = """
import sys
import torch
import shardd
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
opt = shardd.AdamW(model, lr=0.01, name="m", world={world}, timeout=60)
say(made=True)
sys.stdin.readline()
if {trains}:
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
    say(step=opt.global_step)
opt.close()
say(closed=True)
"""


def make(address, **words):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    return model, shardd.AdamW(model, lr=0.01, name="m", address=address, timeout=60, **words)


def step(model, opt):
    model(torch.ones(1, 4)).sum().backward()
    opt.step()


def test_one_that_never_joined_leaves_it_to_those_that_do(start):
    """A rank that ends before its first step does not take the model from one that attached."""
    left = start(RANK.format(world="(1, 2)", trains=False))
    assert left.hear() == {"made": True}
    stays = start(RANK.format(world="(1, 2)", trains=True))
    assert stays.hear() == {"made": True}
    left.go()
    status, said, err = left.wait(120)
    assert status == 0 and said == [{"closed": True}], err
    stays.go()
    status, said, err = stays.wait(120)
    assert status == 0 and said == [{"step": 1}, {"closed": True}], err


def test_one_that_trained_leaves_it_to_one_that_attached(start):
    """In a world of no fixed size one ends while another one has not begun yet."""
    first, second = (start(RANK.format(world="(1, 2)", trains=True)) for _ in range(2))
    assert first.hear() == second.hear() == {"made": True}
    first.go()
    status, said, err = first.wait(120)
    assert status == 0 and said == [{"step": 1}, {"closed": True}], err
    second.go()
    status, said, err = second.wait(120)
    # Its gradients were of weights before that step, so that its own was skipped.
    assert status == 0 and said == [{"step": 1}, {"closed": True}], err


def test_the_last_one_drops_it(start, address):
    """A job that has ended leaves no model for the next one, whatever its world."""
    for world in ("2", "(2, 3)"):
        ranks = [start(RANK.format(world=world, trains=True), r, 2) for r in range(2)]
        for r in ranks:
            assert r.hear() == {"made": True}
            r.go()
        for r in ranks:
            status, said, err = r.wait(120)
            assert status == 0 and said == [{"step": 1}, {"closed": True}], err
        look = Session(address)
        assert look.status("m") is None, world
        look.disconnect()
    model, opt = make(address)  # One that is alone in the world, and has made no step.
    opt.close()
    look = Session(address)
    assert look.status("m") is None
    look.disconnect()


def test_dropped_while_it_is_attached_to(address, monkeypatch):
    """A model that ends between attaching and reading its weights is begun anew."""
    other, real, dropped = Session(address), Session.wait_for_weights, []

    def wait_for_weights(self):
        if not dropped:
            dropped.append(True)
            other.drop("m")
        real(self)

    first = make(address)[1]
    monkeypatch.setattr(Session, "wait_for_weights", wait_for_weights)
    model, opt = make(address)
    step(model, opt)
    assert dropped and opt.global_step == 1
    assert opt._session.status("m")["step"] == 1
    opt.close(drop=True)
    first.close()
    other.disconnect()


def test_a_later_optimizer_takes_the_parameters_over(address):
    """As in torch, where the one before is forgotten: its weights go on, its moments do not."""
    model, first = make(address)
    step(model, first)
    before = [p.detach().clone() for p in model.parameters()]
    second = shardd.AdamW(model, lr=0.01, name="n", address=address, timeout=60)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
    step(model, second)
    assert second.global_step == 1
    twin = torch.nn.Linear(4, 2)
    with torch.no_grad():
        for p, b in zip(twin.parameters(), before):
            p.copy_(b)
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
    step(twin, plain)
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.allclose(p, q, atol=1e-6)
    for call in (first.step, first.zero_grad):
        with pytest.raises(RuntimeError, match="'m', was closed when a later one, of model 'n'"):
            call()
    step(model, second)
    assert second.global_step == 2
    second.close()


def test_tensors_that_share_memory_with_parameters_outlive_it(address, monkeypatch):
    """As a state_dict() does, which is read later. Memory goes with the last one that needs it."""
    model, opt = make(address)
    for _ in range(2):
        step(model, opt)
    opt.close()  # None shares any: nothing is kept.
    assert not opt._image._lent
    library, unmapped = libshard(), []
    free = library.shard_unmap
    monkeypatch.setattr(library, "shard_unmap", lambda kept: (unmapped.append(True), free(kept)))
    opt = shardd.AdamW(model, lr=0.01, name="n", address=address, timeout=60)
    step(model, opt)
    state, row = model.state_dict(), model.weight.detach()[1]
    want = {k: x.clone() for k, x in state.items()}
    opt.close()
    with torch.no_grad():
        model.weight.zero_()  # It has memory of its own now.
    assert all(torch.equal(state[k], x) for k, x in want.items())
    state["weight"].mul_(2)
    assert torch.equal(row, 2 * want["weight"][1])
    del state
    assert torch.equal(row, 2 * want["weight"][1]) and not unmapped
    del row
    assert unmapped == [True]


def test_what_cannot_be_kept_is_said(address, monkeypatch, caplog):
    model, opt = make(address)
    step(model, opt)
    shares = model.weight.detach()
    status = libshard().shard_keep
    monkeypatch.setattr(libshard(), "shard_keep", lambda m, kind, ms, kept: status(m, 0, ms, kept))
    opt.close()
    assert "the memory that parameters shared with 1 other tensors is gone" in caplog.text
    del shares


def test_names_of_later_optimizers_are_new_ones(address, monkeypatch):
    """Else a later one would go on with the moments of an earlier one that a daemon keeps."""
    monkeypatch.setenv("SHARDD_MODEL", "again")
    model = torch.nn.Linear(4, 2)
    made = []
    for i in range(4):
        made.append(shardd.AdamW(model, lr=0.01, address=address, timeout=60))
        step(model, made[-1])
        assert made[-1].global_step == 1
    assert [o.name for o in made] == ["again", "again-2", "again-3", "again-4"]
    made[-1].close()


def test_a_name_that_is_given_again_goes_on(address):
    model, first = make(address)
    step(model, first)
    second = shardd.AdamW(model, lr=0.01, name="m", address=address, timeout=60)
    assert second.global_step == 1
    step(model, second)
    assert second.global_step == 2
    second.close()


def test_some_parameters_of_another_optimizer_are_refused(address):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    first = shardd.AdamW(model, lr=0.01, name="m", address=address, timeout=60)
    step(model, first)
    with pytest.raises(RuntimeError, match="'1.weight' is trained by the Optimizer of model 'm', "
                                           "and so are 2 that .* close()"):
        shardd.AdamW(model[1].named_parameters(prefix="1"), lr=0.01, name="n", address=address)
    step(model, first)
    assert first.global_step == 2
    first.close()
    second = shardd.AdamW(model[1], lr=0.01, name="n", address=address, timeout=60)
    step(model, second)
    second.close()
