# SPDX-License-Identifier: Apache-2.0
"""Runs unit tests of DeepSpeed itself against the stand-in.

run.py TESTS [--write] [FILE...]: TESTS is the folder tests of a checkout of DeepSpeed, which is not
part of this project. FILES names what is run, by path below tests/unit. Each file runs in a process
of its own. passing.txt is the list of ids that pass; without --write one that is in the list and
does not pass is an error. With --write new ones are added, and the list never gets shorter. What
hangs fails after DS_UNITTEST_TIMEOUT seconds.

skipped.txt says why the rest is not in the list: in each line the id of a test function, without
parameters, or a whole file, and a reason. A test that looks at the inside of DeepSpeed's own
optimizers or partitions is there. A function of which some parameters pass is in both lists. A test
function that is in neither list is an error.
"""

import os
import pathlib
import subprocess
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
PASSING, SKIPPED = HERE / "passing.txt", HERE / "skipped.txt"
FILES = """
runtime/test_lr_schedulers.py
runtime/test_ds_config_dict.py
runtime/test_ds_config_model.py
runtime/test_ds_initialize.py
runtime/test_no_sync_ctxt.py
runtime/test_multi_output_model.py
runtime/test_multiple_models.py
runtime/test_data.py
runtime/half_precision/test_dynamic_loss_scale.py
runtime/half_precision/test_zero_optim_overflow.py
runtime/zero/test_zero_grad_clip.py
runtime/zero/test_ignore_unused_parameters.py
runtime/zero/test_zero_context.py
runtime/zero/test_zero_context_ancestry.py
runtime/zero/test_zero_context_return.py
runtime/zero/test_zero_leaf_module.py
runtime/zero/test_zero_tensor_fragment.py
runtime/zero/test_unwrap_model.py
v1/zero/test_zero.py
v1/zero/test_zero_user_backward.py
v1/zero/test_zero2_offload_multi_backward.py
v1/zero/test_zero_cpu_offload_grad_accum.py
checkpoint/test_zero_optimizer.py
checkpoint/test_lr_scheduler.py
checkpoint/test_tag_validation.py
checkpoint/test_shared_weights.py
checkpoint/test_latest_checkpoint.py
""".split()
SECONDS = int(os.environ.get("SECONDS_PER_FILE", 3600))


class Plugin:
    """Each test gets a daemon and a model of its own, and ranks are forked from this process."""

    def __init__(self):
        self.n, self.passed = 0, []

    def another_daemon(self):
        self.n += 1
        os.environ["SHARD_ADDRESS"] = f"spawn:dsunit-{os.getpid()}-{self.n}"
        # Tests of a class may save into one folder, where a checkpoint is of one model.
        os.environ["SHARDD_MODEL"] = "unit"

    def pytest_runtest_setup(self, item):
        self.another_daemon()

    def pytest_pycollect_makeitem(self, collector, name, obj):
        """DeepSpeed's fixtures that are classes: pytest does not see them as such since 8.4."""
        if isinstance(obj, type) and getattr(obj, "is_dist_fixture", False) and "run" in vars(obj):
            import pytest

            def launch(request):
                obj()(request)
                self.another_daemon()  # What trained there is over, as the job that it stands for.

            pytest.register_fixture(name=name, func=launch, node=collector)

    def pytest_collection_finish(self, session):
        """What hangs fails, and the next test goes on. DeepSpeed's harness ends pytest then, or
        waits for ranks that never come."""
        import unit.common as harness

        for item in session.items:
            print(f"\nCOLLECTED-ID {item.nodeid}", flush=True)

        def close(case, pool, num_procs, force=False):
            pool.terminate()
            pool.join()

        def run(case, **fixtures):
            """A rank ends with an error that its pool hands on. pytest's own is no Exception: it
            would end the process, and the pool would wait for it until the time is over."""
            try:
                case._current_test(**fixtures)
            except harness.pytest.fail.Exception as e:
                raise AssertionError(str(e)) from e

        harness.DistributedExec._close_pool = close
        harness.DistributedTest.run = run
        harness.reduce_boolean_flags = on_all_ranks
        harness.pytest = types.SimpleNamespace(**vars(harness.pytest))
        harness.pytest.exit = lambda why, returncode=None: harness.pytest.fail(why, pytrace=False)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            print(f"\nPASSED-ID {report.nodeid}", flush=True)


def look_inside(deepspeed):
    """What DeepSpeed's tests look at beside parameters: masters, read here from the daemons, under
    the names that DeepSpeed's own optimizers have inside; the leaf modules; and that a parameter
    of stage 3 stays in memory, as it does on a CPU."""
    import torch

    def masters(opt):
        return [torch.cat([opt.read(p).flatten() for p in g["params"] if id(p) in opt._row_of])
                for g in opt.param_groups]

    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups"):
        setattr(deepspeed.DeepSpeedOptimizer, name, property(masters))
    deepspeed.DeepSpeedOptimizer.leaf_parameters = property(
        lambda opt: deepspeed.utils.get_z3_leaf_modules(opt._module))
    deepspeed.DeepSpeedEngine.sparse_tensor_module_names = frozenset()
    torch.nn.Parameter.ds_persist = True
    torch.nn.Parameter.ds_status = deepspeed.zero.ZeroParamStatus.AVAILABLE
    # Never called: a test sees to it that it is not.
    deepspeed.DeepSpeedEngine._get_optimizer_ckpt_name = None


def on_all_ranks(flag: bool, op=all) -> bool:
    """The harness does this with tensors on a device by its number, which a CPU has not."""
    import torch.distributed as dist

    flags = [flag]
    if dist.is_initialized():
        flags = [False] * dist.get_world_size()
        dist.all_gather_object(flags, flag)
    return op(flags)


def ddp_on_cpu() -> None:
    """DDP as tests call it that compare with it: they give device_ids, which it refuses on a CPU."""
    import torch.nn.parallel

    class DDP(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module, device_ids=None, output_device=None, **more):
            super().__init__(module, **more)

    torch.nn.parallel.DistributedDataParallel = DDP


def one(tests: str, file: str) -> int:
    """Runs one file in this process."""
    import multiprocessing

    import pytest
    import torch.multiprocessing

    import shardd.deepspeed
    shardd.deepspeed.install()
    look_inside(shardd.deepspeed)
    ddp_on_cpu()
    before = multiprocessing.set_start_method

    def always_fork(method, force=False):
        before("fork", force=True)

    torch.multiprocessing.set_start_method = always_fork
    os.chdir(tests)
    return pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", f"unit/{file}",
                        *os.environ.get("PYTEST_MORE", "").split()], plugins=[Plugin()])


def ids(tests: str, file: str) -> tuple[set[str], set[str]]:
    """The ids of a file that pass, and all of them. A file that hangs is ended after
    SECONDS_PER_FILE."""
    log = subprocess.Popen([sys.executable, str(pathlib.Path(__file__)), "--one", tests, file],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           start_new_session=True)
    try:
        out, _ = log.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(log.pid, 9)
        out, _ = log.communicate()
    if os.environ.get("VERBOSE"):
        print(out)
    lines = [line.strip().partition("-ID ") for line in out.splitlines()]
    return tuple({i for what, _, i in lines if what == word} for word in ("PASSED", "COLLECTED"))


def unsaid(file: str, there: set[str], known: set[str]) -> set[str]:
    """The test functions of a file that are in neither list; the file, if it has no test."""
    said = {line.split()[0] for line in SKIPPED.read_text().splitlines() if line.strip()}
    if f"unit/{file}" in said:
        return set()
    return {i.split("[")[0] for i in there or {f"unit/{file}"}} - said - \
        {i.split("[")[0] for i in known}


def main() -> int:
    """Runs the files, and compares or writes the list."""
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        return one(words[1], words[2])
    write = "--write" in words
    words = [w for w in words if w != "--write"]
    if not words:
        print(__doc__)
        return 2
    tests, files = os.path.abspath(words[0]), words[1:] or FILES
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", DS_DISABLE_REUSE_DIST_ENV="1",
                      LOCAL_SIZE="8")
    os.environ.setdefault("SHARD_LINGER", "1s")
    os.environ.setdefault("DS_UNITTEST_TIMEOUT", "120")
    known = set(PASSING.read_text().split("\n")) - {""} if PASSING.exists() else set()
    lost: set[str] = set()
    new: set[str] = set()
    for file in files:
        got, there = ids(tests, file)
        want = {i for i in known if i.split("::")[0] == f"unit/{file}"}
        print(f"{file}: {len(got)} pass, {len(want - got)} of the list do not", flush=True)
        lost |= want - got
        if write:
            known |= got
            PASSING.write_text("".join(i + "\n" for i in sorted(known)))
        new |= unsaid(file, there, known)
    for i in sorted(lost):
        print("does not pass any more:", i)
    for i in sorted(new):
        print("is neither in passing.txt nor in skipped.txt:", i)
    return 1 if lost or new else 0


if __name__ == "__main__":
    sys.exit(main())
