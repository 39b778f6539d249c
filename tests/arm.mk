# SPDX-License-Identifier: Apache-2.0
# `make check-arm`: builds the library, the daemon's objects and the unit tests for aarch64 with
# Debian's cross compiler and runs the tests with qemu-user. This shows that nothing there needs
# x86, and that C11 alone orders what processes share. Some tests are not run here: those of what
# qemu-user does not emulate (advice to the kernel on memory, programs of the same kind that a test
# starts, control data of a socket), those of RDMA and of GPUs, and seven that take long and compute
# nothing new.
# A program measures its own pace and so grants itself several times the time that the guard, which
# is not emulated, would. So the guard's bound is longer here.
ARM_ROOT := build/arm-root
ARM_MAKE  = B=build/arm CC='aarch64-linux-gnu-gcc --sysroot=$(CURDIR)/$(ARM_ROOT)' AR=aarch64-linux-gnu-ar \
            OBJCOPY=aarch64-linux-gnu-objcopy RDMA=0 SYSTEMD=0 CUDA=0 ETCD=0 URING=0 WERROR=1
ARM_SKIP := test_client_rules test_shm test_room test_stream_send test_gpt_reference test_rdma% test_etcd% test_verdict test_quorum test_quorum_random test_gpt_grad test_ckpt_f% test_core_plan test_cuda% test_gpu% test_tier_gpu%
ARM_UNIT := $(filter-out $(ARM_SKIP),$(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c)))

check-arm:
	@tests/lib/arm.sh $(ARM_ROOT)
	@$(MAKE) --no-print-directory $(ARM_MAKE) check-arm-run
check-arm-run: $(B)/libshard.so.0 $(addprefix $(B)/qemu/,$(ARM_UNIT))
	@rm -rf $(B)/results*; TIMEOUT=240 tests/lib/run.sh $(B)/results $(addprefix $(B)/qemu/,$(ARM_UNIT))
$(B)/qemu/%: $(B)/tests/unit/%
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec qemu-aarch64 -L %s %s "$$@"\n' '$(CURDIR)/$(ARM_ROOT)' '$(CURDIR)/$<' >$@
	@chmod +x $@
.PHONY: check-arm check-arm-run
