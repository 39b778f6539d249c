# SPDX-License-Identifier: Apache-2.0
"""A write into read-only parameters that torch does not see: what the process says as it ends."""

import signal

import pytest

SCRIPT = """
import ctypes, faulthandler
import torch
import shardd
from shardd import lib
how = os.environ["HOW"]
if "traceback" in how:
    faulthandler.enable()
if "early" in how:
    shardd.explain_faults()
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
stage3 = dict(params="copy", stage3=dict(prefetch=0, keep=0, reuse=0)) if "absent" in how else {}
opt = shardd.AdamW(model, lr=0.01, name="faults", timeout=60, **stage3)
for step in range(2):
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
if "late" in how:
    shardd.explain_faults()
    shardd.explain_faults()  # Once more changes nothing.
if "off" in how:
    shardd.explain_faults(False)
wrong = lib.Faults()
wrong.size = 1
try:
    lib.check(lib.libshard().shard_explain_faults(ctypes.byref(wrong)))
except lib.Error as e:
    say(error=e.status)
if "absent closed" in how:
    opt.close()
if "absent" in how:
    torch.tensor(list(model.parameters())[0] if "closed" not in how else 0.0)
    ctypes.memset(0, 0, 4)
elif "closed" in how:
    address = model[1].bias.data_ptr()
    opt.close()
    model[1].bias.data.fill_(1)  # It is ordinary memory now.
    ctypes.memset(address, 0, 4)
elif "elsewhere" in how:
    ctypes.memset(8, 0, 4)
elif "sent" in how:
    os.kill(os.getpid(), 11)
else:
    model[1].bias.detach().numpy()[:] = 1
say(lives=True)
"""

LINE = "shardd: a write into parameter '1.bias', which is read-only memory since the first step: "


@pytest.mark.parametrize("how, named", [
    ("early", True), ("late", True), ("late traceback", True), ("early off", False), ("", True),
    ("quiet", False), ("early closed", False), ("late elsewhere", False), ("late sent traceback", False)])
def test_the_parameter_is_named(start, how, named):
    status, said, err = start(SCRIPT, HOW=how, SHARDD_EXPLAIN_FAULTS=int("quiet" not in how)).wait(120)
    assert status == -signal.SIGSEGV and said == [{"error": "SHARD_BAD_ARG"}], (status, said, err)
    assert (LINE in err) == named, err
    assert ("Fatal Python error: Segmentation fault" in err) == ("traceback" in how), err
    if named and "traceback" in how:
        assert err.index(LINE) < err.index("Fatal Python error")


AT_0 = "shardd: an access to address 0 or behind it, where a parameter of stage 3 is"


@pytest.mark.parametrize("how, named", [
    ("early absent", True), ("late absent traceback", True), ("absent", True),
    ("absent quiet", False),
    ("late absent closed", False)])
def test_a_parameter_that_is_absent(start, how, named):
    """torch.tensor() reads a tensor and asks no function of it."""
    status, said, err = start(SCRIPT, HOW=how, SHARDD_EXPLAIN_FAULTS=int("quiet" not in how)).wait(120)
    assert status == -signal.SIGSEGV, (status, said, err)
    assert (AT_0 in err) == named and LINE not in err, err
