# SPDX-License-Identifier: Apache-2.0
"""What a user might do wrong, one test per row of the list: it ends in a sentence that says what to
do, and never in a wrong number or in SIGSEGV. Each runs in a process of its own, whose end is
looked at, too. Parameters of stage 3 are in test_guards_absent.py."""

import copy
import io

import pytest
import torch
from torch import nn

from guards import X, Net, check, ends, group  # noqa: F401
from models import Experts, vectors

import shardd


# --- each row: a function that does it, and the words of its end (None: it works) ---


def load_state_dict(make):
    model, opt = make()
    model.load_state_dict(Net().state_dict())


def load_state_dict_assign(make):
    model, opt = make()
    model.load_state_dict(Net().state_dict(), assign=True)


def load_state_dict_of_copies(make):
    model, opt = make(params="copy")
    model.load_state_dict(Net().state_dict())


def load_state_dict_of_a_part(make):
    model, opt = make()
    model.up.load_state_dict(Net().up.state_dict())


def load_state_dict_below_compile(make):
    model = Net()
    make(torch.compile(model, backend="eager"))
    model.load_state_dict(Net().state_dict())


def half(make):
    model, opt = make()
    model.half()(X.half()).sum().backward()
    opt.step()


def to_bf16(make):
    model, opt = make()
    model.to(torch.bfloat16)(X.bfloat16()).sum().backward()
    opt.step()


def replaced_parameter(make):
    model, opt = make()
    model.up.weight.data = torch.zeros(5, 4)
    model(X).sum().backward()
    opt.step()


def written_before_the_first_step(make):
    model, opt = make(steps=0)
    nn.init.zeros_(model.up.weight)
    model(X).sum().backward()


def data_written_before_the_first_step(make):
    model, opt = make(steps=0)
    model.up.weight.data.normal_()
    model(X).sum().backward()


def data_replaced_before_the_first_step(make):
    model, opt = make(steps=0)
    model.up.weight.data = torch.zeros(5, 4)
    model(X).sum().backward()


def other_strides_before_the_first_step(make):
    """Equal weights are no change."""
    model, opt = make(steps=0)
    model.up.weight.data = model.up.weight.data.t().contiguous().t()
    model(X).sum().backward()
    opt.step()
    plain, _ = make(name="plain")
    assert torch.equal(model.up.weight, plain.up.weight)


def assigned_before_the_first_step(make):
    model, opt = make(steps=0)
    model.load_state_dict(Net().state_dict(), assign=True)
    model(X).sum().backward()
    opt.step()


def ddp_after_the_first_step(make):
    group()
    model, opt = make()
    nn.parallel.DistributedDataParallel(model)


def ddp_before(make):
    group()
    model = nn.parallel.DistributedDataParallel(Net())
    plain, _ = make(name="plain", steps=3)
    make(model, steps=3)
    for a, b in zip(plain.parameters(), model.module.parameters()):
        assert torch.equal(a, b)


def ddp_and_two_passes(make):
    group()
    model = nn.parallel.DistributedDataParallel(Net())
    model, opt = make(model, steps=0, accumulate=2)
    model(X).sum().backward()
    model(X).sum().backward()


def ddp_and_fewer_passes(make):
    group()
    _, plain = make(name="plain", accumulate=2)
    model = nn.parallel.DistributedDataParallel(Net())
    model, opt = make(model, accumulate=2)
    assert opt.result.grad_norm == plain.result.grad_norm > 0.1


def saved_and_copied(make):
    import copy
    import io
    model, opt = make()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = Net()
    other.load_state_dict(torch.load(buffer))
    twin = copy.deepcopy(model)
    twin.up.weight.data.zero_()
    assert torch.equal(other(X), model(X)) and not torch.equal(twin(X), model(X))
    twin.load_state_dict(other.state_dict())
    torch.save(model, io.BytesIO())  # As a whole, with its hooks.
    opt.close()
    torch.save(model, io.BytesIO())
    group()
    nn.parallel.DistributedDataParallel(model)


def backward_twice(make):
    model, opt = make(steps=0)
    model(X).sum().backward()
    model(X).sum().backward()


def backward_thrice_of_two(make):
    model, opt = make(steps=0, accumulate=2)
    for _ in range(3):
        model(X).sum().backward()


def no_gradient_at_all(make):
    model, opt = make(steps=0)
    opt.step()
    assert opt.global_step == 1


def unused_parameters(make):
    model = Experts()
    opt = shardd.SGD(model, lr=0.5, name="guard")
    before = [p.clone() for p in model.b.parameters()]
    model(*vectors(0, 0)).backward()
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.b.parameters()))
    opt.close()


def clip_grad_norm(make):
    model, opt = make(steps=0)
    model(X).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_in_this_step(make):
    """As in torch, the call stands between backward() and step()."""
    model, opt = make(steps=0)
    for most in (0.01, 0.01, 1e9):
        model(X).sum().backward()
        opt.clip_grad_norm_(most)
        opt.step()
        assert opt.result.clip_factor == pytest.approx(min(1, most / opt.result.grad_norm),
                                                       rel=1e-4), opt.result


def gradient_replaced(make):
    model, opt = make(steps=0)
    model(X).sum().backward()
    model.up.weight.grad = torch.zeros(5, 4)
    opt.step()


def gradient_taken_away(make):
    model, opt = make(steps=0)
    model(X).sum().backward()
    model.up.weight.grad = None
    opt.step()


def gradient_logged(make):
    model, opt = make(steps=0)
    model(X).sum().backward()
    print(model.up.weight.grad.norm().item())


def gradient_changed(make):
    model, opt = make(steps=0)
    model(X).sum().backward()
    model.up.weight.grad.mul_(2)


def gradients_kept(make):
    model, opt = make(steps=0, grads="keep")
    model(X).sum().backward()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0
    opt.step()


def sixteen_bits_of_a_model_of_32(make):
    make(dtype=torch.bfloat16)


def frozen_later_trained(make):
    model = Net()
    model.up.weight.requires_grad_(False)
    model, opt = make(model)
    model.up.weight.requires_grad_(True)
    model(X).sum().backward()
    opt.step()


def nothing_to_train(make):
    make(Net().requires_grad_(False))


def expanded(make):
    model = Net()
    model.up.bias = nn.Parameter(torch.zeros(1).expand(5))
    make(model)


def complex_parameter(make):
    model = Net()
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    make(model)


def double_parameter(make):
    make(Net().double(), steps=0)


def dtensor(make):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    group()
    make(fully_shard(Net(), mesh=init_device_mesh("cpu", (1,))))


def grad_scaler(make):
    model, opt = make(steps=0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X).sum()).backward()
    scaler.step(opt)


def grad_scaler_of_kept_gradients(make):
    model, opt = make(steps=0, grads="keep")
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X).sum()).backward()
    scaler.step(opt)


def own_grad_scaler(make):
    model, opt = Net().half(), None
    opt = shardd.AdamW(model, name="guard", loss_scale="dynamic")
    scaler = shardd.GradScaler(opt)
    for _ in range(2):
        scaler.scale(model(X.half()).sum()).backward()
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() > 1
    opt.close()


def scale_forgotten(make):
    model = Net().half()
    opt = shardd.AdamW(model, name="guard", loss_scale=1024)
    model(X.half()).sum().backward()


def scale_forgotten_of_kept_gradients(make):
    model, opt = make(Net().half(), steps=0, loss_scale=1024, grads="keep")
    model(X.half()).sum().backward()
    opt.step()


def scale_forgotten_after_zero_grad(make):
    model, opt = make(Net().half(), steps=0, loss_scale=1024)
    opt.scale(model(X.half()).sum()).backward()
    opt.zero_grad()
    model(X.half()).sum().backward()


def compiled(make):
    model = Net()
    opt = shardd.SGD(model, lr=0.1, name="guard")
    graph = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        graph(X).sum().backward()
        opt.step()
    assert torch.equal(graph(X), model(X))
    opt.close()


def sparse(make):
    model = nn.Embedding(6, 3, sparse=True)
    opt = shardd.SGD(model, lr=1.0, name="guard")
    before = model.weight.detach().clone()
    with pytest.warns(UserWarning, match="sent as a dense one"):
        model(torch.tensor([1, 1, 4])).sum().backward()
    opt.step()
    assert (before - model.weight).sum(1).tolist() == pytest.approx([0, 6, 0, 0, 3, 0])
    opt.close()


def lr_between(make):
    model, opt = make()
    model(X).sum().backward()
    opt.param_groups[0]["lr"] = 7.0
    opt.step()
    assert opt.result.lr == 7.0  # As in torch, what counts is there when step() is called.


def betas_after_backward(make):
    model, opt = make()
    opt.param_groups[0]["betas"] = (0.6, 0.9)
    model(X).sum().backward()
    opt.param_groups[0]["betas"] = (0.5, 0.9)
    opt.step()


def positional_lr(make):
    """As in torch.optim."""
    opt = shardd.SGD(Net().parameters(), 0.25, name="guard", momentum=0.9)
    assert (opt.kind, opt.param_groups[0]["lr"]) == ("sgd", 0.25)
    opt.close()


def lbfgs(make):
    make(kind="lbfgs")


def lbfgs_object(make):
    model = Net()
    make(model, torch.optim.LBFGS(model.parameters()))


def muon(make):
    make(kind="muon")


def amsgrad(make):
    model = Net()
    make(model, torch.optim.AdamW(model.parameters(), amsgrad=True))


def used_optimizer(make):
    model = Net()
    torch_one = torch.optim.AdamW(model.parameters())
    model(X).sum().backward()
    torch_one.step()
    make(model, torch_one)


def pickled(make):
    import pickle
    pickle.dumps(make()[1])


def deep_copied(make):
    import copy
    copy.deepcopy(make()[1])


def one_more_group(make):
    make()[1].add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def forked_child(make):
    import os
    model, opt = make()
    child = os.fork()
    if child == 0:
        try:
            model(X)
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    model(X).sum().backward()
    opt.step()


def loader_workers(make):
    data = torch.utils.data.TensorDataset(torch.ones(8, 4))
    model, opt = make()
    for (x,) in torch.utils.data.DataLoader(data, batch_size=2, num_workers=2):
        model(x).sum().backward()
        opt.step()
    assert opt.global_step == 5


def after_the_end(make):
    model, opt = make()
    opt.close()
    assert torch.isfinite(model(X)).all()
    model(X).sum().backward()
    nn.init.zeros_(model.up.weight)
    opt.step()


def never_resume(make):
    make()[1].close(drop=False)
    make(resume="never")


def must_resume(make):
    make(resume="must")


def another_model_of_that_name(make):
    make()[1].close(drop=False)
    make(nn.Linear(4, 3))


def two_of_one_script(make):
    """As in a GAN. The second model has a name of its own."""
    one, two = Net(), Net()
    nn.init.zeros_(two.up.weight)
    opts = [shardd.AdamW(m, timeout=20) for m in (one, two)]
    assert torch.equal(two.up.weight, torch.zeros(5, 4)) and opts[0].name != opts[1].name
    for m, opt in zip((one, two), opts):
        m(X).sum().backward()
        opt.step()
    opts[1].close()
    assert shardd.AdamW(Net(), timeout=20).name == opts[1].name
    opts[0].close()


def taken_over_with_decoupled_decay(make):
    if "decoupled_weight_decay" not in torch.optim.Adam([torch.ones(1)]).defaults:
        return
    model = Net()
    twin = copy.deepcopy(model)
    plain = torch.optim.Adam(twin.parameters(), lr=0.1, weight_decay=0.5,
                             decoupled_weight_decay=True)
    make(model, torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.5,
                                 decoupled_weight_decay=True), steps=5)
    for _ in range(5):
        plain.zero_grad()
        twin(X).sum().backward()
        plain.step()
    assert all(torch.allclose(a, b, atol=1e-5)
               for a, b in zip(model.parameters(), twin.parameters()))


def state_after_a_skipped_step(make):
    """Adam's t counts the steps that changed the weights."""
    model, opt = make()
    (model(X) * float("nan")).sum().backward()
    opt.step()
    assert opt.global_step == 2 and opt.applied == 1
    assert [int(s["step"]) for s in opt.full_state_dict()["state"].values()] == [1] * 4


def not_a_number(make):
    model, opt = make()
    before = [p.clone() for p in model.parameters()]
    (model(X) * float("nan")).sum().backward()
    opt.step()
    assert opt.step_was_skipped and opt.overflow and opt.result.reason == "nonfinite"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def zero_grad_drops(make):
    plain, _ = make(name="plain", steps=2)
    model, opt = make()
    (model(X) * 5).sum().backward()
    opt.zero_grad()
    model(X).sum().backward()
    opt.step()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters()))


def empty_tensor(make):
    model = Net()
    model.nothing = nn.Parameter(torch.zeros(0, 3))
    make(model, steps=2)


def tied(make):
    model = Net()
    model.again = model.up
    assert len(make(model, steps=2)[1].param_groups[0]["params"]) == 4


def odd_settings(make):
    make(no_such_setting=3)


def odd_choice(make):
    make(params="gpu")


def odd_hint(make):
    import os
    os.environ.update(RANK="none", WORLD_SIZE="")
    make()


def dcp(make):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    model, opt = make()
    state = get_optimizer_state_dict(model, opt)
    assert state["param_groups"][0]["params"] == [n for n, _ in model.named_parameters()]
    assert opt.global_step == 1  # It makes a step of its own where opt.state is empty.
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups[0]["params"][0] is model.up.weight


def foreign_state(make):
    model, opt = make()
    opt.load_state_dict(torch.optim.SGD(Net().parameters(), momentum=0.5).state_dict())


def copied_parameters(make):
    model, opt = make(params="copy", steps=2)
    with torch.no_grad():
        model.up.weight.zero_()
    image, _ = make(name="image", steps=2)
    assert torch.equal(model.down.weight, image.down.weight)


def copied_parameters_by_environment(make):
    import os
    os.environ["SHARDD_PARAMS"] = "copy"
    model, opt = make()
    with torch.no_grad():
        model.up.weight.zero_()


ROWS = [
    (load_state_dict, "Load before the Optimizer is made"),
    (load_state_dict_assign, "Load before the Optimizer is made"),
    (load_state_dict_of_copies, "Load before the Optimizer is made"),
    (load_state_dict_of_a_part, "Load before the Optimizer is made"),
    (load_state_dict_below_compile, "Load before the Optimizer is made"),
    (half, "'up.weight' is not the memory that shardd updates any more"),
    (to_bf16, "'up.weight' is not the memory that shardd updates any more"),
    (replaced_parameter, "'up.weight' is not the memory that shardd updates any more"),
    (written_before_the_first_step, "make the Optimizer after loading or initializing the model"),
    (data_written_before_the_first_step, "make the Optimizer after loading or initializing the"),
    (data_replaced_before_the_first_step, "make the Optimizer after loading or initializing the"),
    (other_strides_before_the_first_step, None),
    (assigned_before_the_first_step, "of the module is another one now"),
    (ddp_after_the_first_step, "DistributedDataParallel is not needed"),
    (ddp_before, None),
    (ddp_and_two_passes, "take DDP away, because shardd sums over the ranks itself"),
    (ddp_and_fewer_passes, None),
    (saved_and_copied, None),
    (backward_twice, "Say Optimizer(accumulate=N)"),
    (backward_thrice_of_two, "a second gradient in this step"),
    (no_gradient_at_all, None),
    (unused_parameters, None),
    (clip_grad_norm, "give clip=1.0 to shardd.Optimizer"),
    (clip_in_this_step, None),
    (gradient_replaced, "'up.weight' was changed or taken away"),
    (gradient_taken_away, "'up.weight' was changed or taken away"),
    (gradient_logged, 'give grads="keep"'),
    (gradient_changed, 'give grads="keep"'),
    (gradients_kept, None),
    (sixteen_bits_of_a_model_of_32, "call model.to(torch.bfloat16) first"),
    (frozen_later_trained, "'up.weight' was frozen when the Optimizer was made"),
    (nothing_to_train, "no parameter requires a gradient"),
    (expanded, "'up.bias' has strides (0,) for shape (5,): its elements overlap"),
    (complex_parameter, "torch.view_as_real"),
    (double_parameter, "image can be torch.float32, torch.bfloat16 or torch.float16"),
    (dtensor, "leave fully_shard() out"),
    (grad_scaler, "shardd.GradScaler"),
    (grad_scaler_of_kept_gradients, "shardd.GradScaler"),
    (own_grad_scaler, None),
    (scale_forgotten, "opt.scale(loss).backward()"),
    (scale_forgotten_of_kept_gradients, "opt.scale(loss).backward()"),
    (scale_forgotten_after_zero_grad, "opt.scale(loss).backward()"),
    (compiled, None),
    (sparse, None),
    (lr_between, None),
    (betas_after_backward, "beta1 of group 0 changed from 0.6 to 0.5 after the gradients"),
    (positional_lr, None),
    (lbfgs, "LBFGS, Muon, LAMB and others"),
    (lbfgs_object, "LBFGS is none of AdamW, Adam, SGD, Adagrad and Lion"),
    (muon, "kind is 'muon', and can be adamw, adam, sgd, adagrad, lion"),
    (amsgrad, "amsgrad=True is not kept by shardd"),
    (used_optimizer, "has made steps already"),
    (pickled, "Attach to the model by its name instead"),
    (deep_copied, "Attach to the model by its name instead"),
    (one_more_group, "under another name="),
    (forked_child, None),
    (loader_workers, None),
    (after_the_end, "this Optimizer is closed"),
    (never_resume, "exists at"),
    (must_resume, "SHARD_NOT_FOUND"),
    (another_model_of_that_name, "SHARD_MISMATCH"),
    (two_of_one_script, None),
    (taken_over_with_decoupled_decay, None),
    (state_after_a_skipped_step, None),
    (not_a_number, None),
    (zero_grad_drops, None),
    (empty_tensor, None),
    (tied, None),
    (odd_settings, "no_such_setting"),
    (odd_choice, "params is 'gpu', and can be"),
    (odd_hint, None),
    (dcp, None),
    (foreign_state, "the state is of sgd, and this optimizer is adamw"),
    (copied_parameters, None),
    (copied_parameters_by_environment, None),
]


@pytest.mark.parametrize("function,words", ROWS, ids=[f.__name__ for f, _ in ROWS])
def test_guard(ends, function, words):
    check(ends, function, words)


def crashes(make):
    """A write into the read-only image, for which there is no guard in Python."""
    model, opt = make()
    with torch.no_grad():
        model.up.weight.add_(1)


def test_a_crash_is_noticed(ends):
    """The checker can fail: a process that ends by SIGSEGV is not taken for a sentence."""
    with pytest.raises(AssertionError, match="crashes ended with -11"):
        ends(crashes)
