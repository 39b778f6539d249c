# SPDX-License-Identifier: Apache-2.0
"""Parameters and gradients on a device: the driver library of tests/cuda, whose copies are late.

A model that is trained from a device has the losses and weights of the one on the host, bit by bit.
What CUDA refuses is an exception with its name. There is no GPU where this runs.
"""

import ctypes as C
import pathlib
import re

import pytest

from shardd import cuda, lib
from test_layout import compile_c

ROOT = pathlib.Path(__file__).resolve().parents[3]
FAKE = pathlib.Path(lib._candidates()[0]).parent / "tests" / "cuda"
HEADER = ROOT / "include" / "shard_cuda.h"
CODE = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)

pytestmark = pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists(),
                                reason="libshard-cuda was left out (CUDA=0), or `make tests` "
                                       "was not run")


def test_structs(tmp_path):
    """As test_layout.py, for shard_cuda.h."""
    lines, here = ["#include <shard_cuda.h>\n#include <stddef.h>\nint main(void) {"], []
    for name, cls in cuda.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        here.append([name, str(C.sizeof(cls))])
        for field, kind in cls._fields_:
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                         f'sizeof(((struct {name} *)0)->{field}));')
            here.append([f"{name}.{field}", str(getattr(cls, field).offset), str(C.sizeof(kind))])
    out = compile_c(tmp_path, "\n".join(lines) + "}")
    assert here == [line.split() for line in out.splitlines()]
    assert set(re.findall(r"^struct (shard_\w+) \{", CODE, flags=re.M)) == set(cuda.STRUCTS)


def test_functions():
    declared = dict(re.findall(r"\b(shard_cuda_\w+)\(([^;]*)\);", CODE))
    assert set(declared) == set(cuda.FUNCTIONS)
    for name, (_, arguments) in cuda.FUNCTIONS.items():
        given = [a for a in declared[name].split(",") if a.strip() != "void"]
        assert len(given) == len(arguments), name


TRAIN = """
    import torch, shardd, sys, hashlib
    torch.manual_seed(7)
    steps, accumulate = 8, {accumulate}
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3),
                                torch.nn.Linear(3, 3)).to({dtype})
    device = None
    if {device}:
        import fakegpu
        device = fakegpu.Device()
        device.take(model)
        fakegpu.install(device)
    for p in model[3].parameters():
        p.requires_grad_({last})
    opt = shardd.AdamW([p for p in model.parameters()] if {last} else model, lr=0.02, clip=0.5,
                       name="{name}", params="copy", accumulate=accumulate, {more})
    losses = []
    g = torch.Generator().manual_seed(3)
    for step in range(steps):
        for _ in range(accumulate):
            x = torch.randn(16, 24, generator=g).to({dtype})
            y = torch.randint(0, 3, (16,), generator=g)
            loss = torch.nn.functional.cross_entropy(model(x).float(), y) / accumulate
            loss.backward()
            if step == 3 and "{name}".startswith("again"):
                opt.zero_grad()  # The attempt is over, and its copies may be late.
                loss = torch.nn.functional.cross_entropy(model(x).float(), y) / accumulate
                loss.backward()
            losses.append(loss.item())
        opt.step()
        assert not opt.step_was_skipped
    about = None
    if device:
        a = opt._session.copies.about()
        about = [a.grad_pinned, a.image_pinned, a.pushed_bytes > 0, device.pushed]
    weights = [opt.read(p).double().sum().item() for p in opt._rows and [r.param for r in opt._rows]]
    here = hashlib.sha256(b"".join(p.detach().float().numpy().tobytes()
                                   for p in model.parameters())).hexdigest()
    opt.close(drop=True)
    say(losses=losses, weights=weights, here=here, about=about)
"""


def train(start, device, **words):
    words = {"accumulate": 1, "dtype": "torch.float32", "last": True, "more": "", "name": "m",
             **words}
    code = TRAIN.format(device=device, **words)
    env = {"LD_LIBRARY_PATH": str(FAKE), "FAKE_CUDA_SEED": "5"} if device else {}
    status, said, err = start(code, **env).wait()
    assert status == 0, err
    return said[0]


@pytest.mark.parametrize("words", [
    {}, {"dtype": "torch.bfloat16"}, {"accumulate": 3}, {"last": False},
    {"dtype": "torch.bfloat16", "accumulate": 2}, {"more": "grad_dtype=torch.bfloat16"},
    {"name": "again"}, {"more": "grads='keep'"}], ids=str)
def test_as_on_the_host(start, words):
    host, device = train(start, False, **words), train(start, True, **words)
    pushes = device["about"][3]
    assert device["about"][:3] == [1, 1, True] and pushes > 0
    del host["about"], device["about"]
    assert host == device


def test_errors(start):
    """What CUDA refuses is a sentence with its name, and the trainer ends in order."""
    code = """
        import torch, shardd, fakegpu
        device = fakegpu.Device()
        model = torch.nn.Linear(4, 4, bias=False)
        device.take(model)
        fakegpu.install(device)
        opt = shardd.SGD(model, lr=0.1, name="e", params="copy")
        try:
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
        except shardd.cuda.DeviceError as e:
            say(status=e.status, text=str(e), dead=e.dead)
        opt.close()
    """
    for fail, status, text in (
            ("cuStreamCreate 2 999", "SHARD_SYSTEM", "cuStreamCreate: CUDA_ERROR_UNKNOWN (999)"),
            ("cuMemcpyDtoHAsync_v2 1 700", "SHARD_CLOSED", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            ("cuEventQuery 1 719", "SHARD_CLOSED", "CUDA_ERROR_LAUNCH_FAILED")):
        rc, said, err = start(code, LD_LIBRARY_PATH=str(FAKE), FAKE_CUDA_FAIL=fail).wait()
        assert rc == 0, err
        assert said[0]["status"] == status and text in said[0]["text"], said
        assert said[0]["dead"] == (status == "SHARD_CLOSED")


def test_without_cuda(start):
    """Where there is no driver, the sentence says so."""
    code = """
        import shardd.cuda, shardd.session as s
        session = s.Session(os.environ["SHARD_ADDRESS"])
        session.define("n", [s.TensorSpec("w", (4,), 0)], [], 1, 1, "optimizer=sgd lr=1")
        try:
            shardd.cuda.Copies(session._model)
        except shardd.cuda.DeviceError as e:
            say(status=e.status, text=str(e))
        session.disconnect()
    """
    rc, said, err = start(code).wait()
    assert rc == 0, err
    assert said[0]["status"] == "SHARD_UNSUPPORTED"
    assert "no CUDA on this machine" in said[0]["text"]
