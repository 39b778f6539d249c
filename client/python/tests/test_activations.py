# SPDX-License-Identifier: Apache-2.0
"""Activations that are computed again, kept in host memory or in parts: outputs and gradients are
those of plain torch bit by bit, and what is kept is what was asked for.

The device of _on_host() is the only thing that stands for another one here: with it a copy in host
memory is a copy.
"""

import copy
import ctypes
import gc

import pytest
import torch

import shardd
from shardd import activations

BLOCK, ROWS, WIDE = 5, 500, 64
KEPT = 2 * (BLOCK + 2)  # Inputs of two passes: of each block, and those that all blocks have.


class Model(torch.nn.Module):
    """Dropout, a tuple among the inputs, an input by keyword, and an integer."""

    def __init__(self, around):
        super().__init__()
        self.around = around
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(
            torch.nn.Linear(WIDE, 2 * WIDE), torch.nn.GELU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(2 * WIDE, WIDE)) for _ in range(BLOCK))

    def forward(self, h, places, mask):
        def block(b, h, pair, mask=None):
            return h + b(h * pair[0]).masked_fill(mask == 0, 0.0) + pair[1]
        for b in self.blocks:
            h = self.around(block, b, h, places, mask=mask)
        return h


def plain(f, *args, **more):
    return f(*args, **more)


def of_torch(f, *args, **more):
    return torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False, **more)


class Info(ctypes.Structure):
    _fields_ = [(k, ctypes.c_size_t) for k in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


def bytes_held() -> int:
    """Memory of the host that is in use, as malloc() has it."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Info
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, WIDE, generator=g)
    # Strides other than those of a new tensor.
    places = torch.randn(WIDE, ROWS, generator=g).t(), torch.randn(ROWS, WIDE, generator=g)
    return x, places, torch.randint(0, 2, (ROWS, WIDE), generator=g)


def train(around, model, context=None):
    """Two passes. Returns outputs and gradients, and the bytes that are held between them."""
    model = copy.deepcopy(model)
    model.around = around
    torch.manual_seed(11)
    x, places, mask = data()
    x = x.clone().requires_grad_()
    out, held = [], 0
    for _ in range(2):
        before = bytes_held()
        with context() if context else torch.enable_grad():
            h = model(x, places, mask)
        held = bytes_held() - before
        out.append(h.detach().clone())
        h.square().mean().backward()
        del h
    return out + [x.grad] + [p.grad for p in model.parameters()], held


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Model(plain)


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def elsewhere(monkeypatch):
    monkeypatch.setattr(activations, "_on_host", lambda x: False)


@pytest.mark.parametrize("cpu", [False, True])
def test_computed_again(model, monkeypatch, cpu):
    if cpu:
        elsewhere(monkeypatch)

    def ours(f, *args, **more):
        return shardd.checkpoint(f, *args, cpu=cpu, **more)

    (a, all_of_it), (b, inputs), (c, held) = train(plain, model), train(of_torch, model), \
        train(ours, model)
    assert same(a, b) and same(a, c)
    one = ROWS * WIDE * 4
    assert inputs > (BLOCK - 1) * one and all_of_it > 5 * inputs, (all_of_it, inputs, held)
    # On the host a copy of what others have, too, is one more: of places and mask.
    assert abs(held - inputs) < one if not cpu else held < inputs + 5.5 * one


def test_random_numbers_may_differ(model):
    """The state of random numbers is what makes both computations equal: without it they differ."""
    def ours(f, *args, **more):
        return shardd.checkpoint(f, *args, preserve_rng_state=False, **more)
    assert not same(train(plain, model)[0], train(ours, model)[0])


def test_offload(model, monkeypatch):
    a, before = train(plain, model)
    elsewhere(monkeypatch)
    copies = []
    real = activations._Host.__init__
    monkeypatch.setattr(activations._Host, "__init__",
                        lambda self, x: (copies.append(x.nbytes), real(self, x))[1])
    b, _ = train(plain, model, lambda: shardd.offload_activations(min_bytes=1024))
    assert same(a, b)
    assert copies and min(copies) >= 1024
    weights = {p.nbytes for p in model.parameters() if p.dim() == 2}
    assert not weights & set(copies)  # Parameters stay where they are.
    copies.clear()
    c, _ = train(of_torch, model, lambda: shardd.offload_activations(min_bytes=1024))
    assert same(a, c)
    assert len(copies) < 2 * 5 * BLOCK  # Only inputs.


def test_offload_is_nothing_on_the_host(model):
    a, before = train(plain, model)
    b, after = train(plain, model, lambda: shardd.offload_activations(min_bytes=0))
    assert same(a, b) and after < before + ROWS * WIDE


def test_one_copy_of_what_two_save(monkeypatch):
    elsewhere(monkeypatch)
    made = []
    real = activations._Host.__init__
    monkeypatch.setattr(activations._Host, "__init__",
                        lambda self, x: (made.append(x), real(self, x))[1])
    x = torch.randn(100, requires_grad=True)
    with shardd.offload_activations(min_bytes=0):
        y = x * 2
        z = (y * y).sum() + y.square().sum()
    assert sum(m is y for m in made) == 1
    z.backward()
    assert torch.allclose(x.grad, 16 * x)


def test_changed_in_place(monkeypatch):
    """As in plain torch: an error. What was copied is right."""
    x = torch.randn(100, requires_grad=True)
    with shardd.offload_activations(min_bytes=0):
        y = x * 2
        z = y.square().sum()
        y.add_(1)
    with pytest.raises(RuntimeError, match="changed by an operation in place"):
        z.backward()
    elsewhere(monkeypatch)
    with shardd.offload_activations(min_bytes=0):
        y = x * 2
        z = y.square().sum()
        y.add_(1)
    z.backward()
    assert torch.equal(x.grad, 8 * x.detach())


def test_twice_through_backward(monkeypatch):
    elsewhere(monkeypatch)
    x = torch.randn(8, requires_grad=True)
    y = shardd.checkpoint(lambda h: (h * 3).sin(), x * 2, cpu=True).sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    assert torch.equal(x.grad, 2 * once)


def test_what_is_refused():
    with pytest.raises(ValueError, match="process group"):
        shardd.checkpoint(torch.sin, torch.ones(3, requires_grad=True), partition=True)


PARTS = """
    import torch, shardd, hashlib
    from shardd import activations
    import test_activations as t
    torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["FILE"],
                                         rank=int(os.environ["RANK"]),
                                         world_size=int(os.environ["WORLD_SIZE"]))
    if {cpu}:
        activations._on_host = lambda x: False
    torch.manual_seed(1)
    model = t.Model(t.plain).to({dtype})
    real = t.data
    t.data = lambda: tuple(tuple(y.to({dtype}) for y in x) if isinstance(x, tuple) else
                           x.to({dtype}) if x.is_floating_point() else x for x in real())
    kept = []
    part = activations._Part.__init__
    def counted(self, x, *more):
        part(self, x, *more)
        kept.append((x.nbytes, self._part._x.nbytes))
    activations._Part.__init__ = counted
    def ours(f, *args, **more):
        return {call}(f, *args, **more)
    (a, _), (b, inputs), (c, held) = t.train(t.plain, model), t.train(t.of_torch, model), \\
        t.train(ours, model)
    say(same=t.same(a, b) and t.same(a, c), kept=kept, held=held, inputs=inputs)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("n, dtype, cpu", [(2, "torch.float32", False), (3, "torch.bfloat16", True),
                                           (3, "torch.float32", False)])
def test_parts(ranks, tmp_path, n, dtype, cpu):
    """Ranks that have the same inputs keep a part each."""
    call = f"(lambda f, *a, **k: shardd.checkpoint(f, *a, partition=True, cpu={cpu}, **k))"
    said = ranks(PARTS.format(cpu=cpu, dtype=dtype, call=call), n, FILE=tmp_path / "f")
    for (one,) in said:
        assert one["same"]
        assert len(one["kept"]) == KEPT
        # The mask is of integers: with cpu it has a copy on the host.
        assert one["held"] < one["inputs"] + cpu * 8 * ROWS * WIDE
    for k in range(KEPT):
        whole = said[0][0]["kept"][k][0]
        size = 4 if dtype == "torch.float32" else 2
        assert sum(s[0]["kept"][k][1] for s in said) == whole
        assert all(s[0]["kept"][k][1] <= whole / n + size for s in said)


def test_deepspeed_parts(ranks, tmp_path):
    """deepspeed.checkpointing with an mpu: as above."""
    code = PARTS.format(cpu=False, dtype="torch.float32", call="ds.checkpointing.checkpoint")
    code = code.replace("import torch, shardd, hashlib", """import torch, shardd.deepspeed as ds
    class Mpu:
        def get_model_parallel_group(self):
            return torch.distributed.group.WORLD
    """, 1).replace("torch.manual_seed(1)", """ds.checkpointing.configure(
        Mpu(), {"activation_checkpointing": {"partition_activations": True}})
    torch.manual_seed(1)""", 1)
    for (one,) in ranks(code, 2, FILE=tmp_path / "f"):
        assert one["same"] and len(one["kept"]) == KEPT


def test_parts_of_other_inputs(ranks, tmp_path):
    """Where the ranks have other inputs, backward says so and computes no wrong gradient."""
    code = """
        import torch, shardd
        torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["FILE"],
                                             rank=int(os.environ["RANK"]), world_size=2)
        torch.manual_seed(int(os.environ["RANK"]))
        x = torch.randn(64, requires_grad=True)
        y = shardd.checkpoint(lambda h: h.sin().square(), x * 2, partition=True).sum()
        try:
            y.backward()
            say(text="")
        except RuntimeError as e:
            say(text=str(e))
        torch.distributed.destroy_process_group()
    """
    for (one,) in ranks(code, 2, FILE=tmp_path / "f"):
        assert "had different inputs of size (64,)" in one["text"]


def test_deepspeed_tracker():
    """Regions with random numbers of their own have them again in backward."""
    from shardd.deepspeed import checkpointing as ds

    class Mpu:
        def get_model_parallel_group(self):
            return None

        def get_model_parallel_rank(self):
            return 1

    ds.configure(Mpu())
    assert ds.is_configured()
    ds.model_parallel_cuda_manual_seed(5)

    def region(h):
        with ds.get_cuda_rng_tracker().fork():
            h = torch.nn.functional.dropout(h, 0.5)
        return torch.nn.functional.dropout(h.sin(), 0.5)

    found = []
    for around in (plain, ds.checkpoint):
        ds.model_parallel_cuda_manual_seed(5)
        x = torch.linspace(1, 2, 200, requires_grad=True)
        y = around(region, around(region, x * 1))
        y.sum().backward()
        found.append((y.detach(), x.grad, ds.get_cuda_rng_tracker().get_states()))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert all(torch.equal(v, found[1][2][k]) for k, v in found[0][2].items())
    with pytest.raises(AssertionError, match="Contiguous"):
        ds.configure(None, {"activation_checkpointing": {"contiguous_memory_optimization": True}})
