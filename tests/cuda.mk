# SPDX-License-Identifier: Apache-2.0
# The kernels of GPUs, on a processor and with nvcc. `make nvcc` fetches NVIDIA's compiler from
# PyPI into build/nvcc. test_cuda_* run the .cu files on a processor: a C++ compiler includes
# tests/cuda/shim.h before them.
nvcc:
	@[ -x build/nvcc/venv/bin/pip ] || python3 -m venv build/nvcc/venv
	@build/nvcc/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: --upgrade --target build/nvcc \
	  -r tests/cuda/requirements.txt || { echo "nvcc: pip could not install it: it needs the network once" >&2; exit 1; }
	@build/nvcc/nvidia/cu13/bin/nvcc --version | sed -n 4p
.PHONY: nvcc

CXX     := $(if $(filter default,$(origin CXX)),g++,$(CXX))
SHIM_CU := $(patsubst %.cu,$(B)/shim/%.o,daemon/gpu/kernels.cu client/examples/gpt_kernels.cu tests/cuda/border.cu)
SHIM_A  := $(B)/libshim.a
# Kernels are templates, which the linker need not see.
$(B)/shim/%.o: %.cu tests/cuda/shim.h
	@mkdir -p $(@D)
	$(call say,c++,$<)
	$(Q)$(CXX) -std=c++17 -fPIC -ffp-contract=off -fno-exceptions -fno-rtti -Wall -Wextra -Wno-unknown-pragmas $(if $(WERROR),-Werror) $(SANF) $(INC) -Idaemon -Itests -Iclient \
	  $(if $(SAN),-O1,-O2) -g1 -include tests/cuda/shim.h -MMD -MP -c -x c++ $< -o $@
$(SHIM_A): $(SHIM_CU) $(call objs,tests/cuda/shim_run.c tests/cuda/shim_kernels.c tests/cuda/border.c)
	$(ar)
SHIM_TESTS := $(filter $(B)/tests/unit/test_cuda%,$(UNIT))
$(SHIM_TESTS): $(SHIM_A)
$(SHIM_TESTS): TEST_L = $(SHIM_A) -lcmocka $(LIBS_DAEMON) $(LIBS_CLIENT)
# It asks a real GPU (tests/gpu/lease.sh), on a machine that may have few libraries. A test gives it
# the driver library for tests.
$(B)/tests/gpu/lease: $(call objs,tests/gpu/lease.c tests/cuda/border.c) $(DAEMON_A) $(PROTO_A) $(FAKE_CUDA)
	$(link) $(filter %.o %.a,$^) -ldl -lm
# And what the example model has there.
$(B)/tests/gpu/lease_gpt: $(call objs,tests/gpu/lease_gpt.c client/examples/transformer_cuda.c client/examples/device.c) $(GPT_A) $(PROTO_A) $(FAKE_CUDA)
	$(link) $(filter %.o %.a,$^) -ldl -lm
# Devices that a test moves by hand, in place of gpu/device.c.
HAND_GPU := $(filter $(B)/tests/unit/test_tier_gpu%,$(UNIT))
$(HAND_GPU): $(B)/tests/cuda/hand_gpu.o
