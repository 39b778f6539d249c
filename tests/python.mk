# SPDX-License-Identifier: Apache-2.0
# Installs the Python packages of tests/python/requirements.txt in an environment below build/.
# `make check` needs the network for that once. Without it the test that uses them fails and is not
# skipped.
VENV_PYTHON := build/python/bin/python3
PIP_PINNED := --quiet --disable-pip-version-check --no-deps --require-hashes
PIP_FAILED = echo "python: pip could not install $<: it needs the network once" >&2; exit 1
.PHONY: python
python: $(VENV_PYTHON)
$(VENV_PYTHON): tests/python/requirements.txt
	@rm -rf build/python; python3 -m venv build/python
	@build/python/bin/pip install $(PIP_PINNED) --only-binary=:all: -r $< || \
	  { rm -rf build/python; $(PIP_FAILED); }
	@touch $@

# `make check-python` tests the package in client/python with torch and with the libraries that it
# stands in for. They are in an environment of their own below build/. TORCH_INDEX has the build of
# torch for the CPU, for PyPI has only the one with CUDA. PYTEST: more options, as PYTEST="-k name".
TORCH_INDEX  ?= https://download.pytorch.org/whl/cpu
TORCH_PYTHON := build/torch/bin/python3
PY_REQUIRED  := client/python/requirements-test.txt
.PHONY: torch check-python
torch: $(TORCH_PYTHON)
PIP_TORCH := $(TORCH_PYTHON) -m pip install $(PIP_PINNED)
$(TORCH_PYTHON): $(PY_REQUIRED)
	@rm -rf build/torch; python3 -m venv build/torch
	@awk '/^torch==/ { on = 1 } on { print } /--hash/ { on = 0 }' $< \
	  >build/torch/torch.txt
	@awk '/^deepspeed==/ { on = 1 } on { print } /--hash/ { on = 0 }' $< \
	  >build/torch/deepspeed.txt
	@awk '/^(torch|deepspeed)==/ { off = 1 } !off { print } /--hash/ { off = 0 }' $< \
	  >build/torch/rest.txt
	@{ $(PIP_TORCH) --retries 1 --extra-index-url $(TORCH_INDEX) -r build/torch/torch.txt && \
	   $(PIP_TORCH) -r build/torch/rest.txt && \
	   DS_BUILD_OPS=0 $(PIP_TORCH) --no-build-isolation -r build/torch/deepspeed.txt; } || \
	  { rm -rf build/torch; $(PIP_FAILED); }
	@touch $@
check-python: all torch $(if $(HAVE_CUDA),$(FAKE_CUDA))
	@OMP_NUM_THREADS=1 $(TORCH_PYTHON) -B -m pytest -p no:cacheprovider -q client/python/tests \
	  $(PYTEST)

# `make check-python-frameworks` tests with Lightning and Ray, which are in an environment of their
# own on top of that one. It is not part of CI: what they need is 570 MB, and Ray starts servers.
FRAMEWORKS_PYTHON := build/frameworks/bin/python3
.PHONY: check-python-frameworks
$(FRAMEWORKS_PYTHON): client/python/requirements-frameworks.txt $(TORCH_PYTHON)
	@rm -rf build/frameworks; python3 -m venv build/frameworks
	@$(TORCH_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$($@ -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	@$@ -m pip install $(PIP_PINNED) --only-binary=:all: -r $< || \
	  { rm -rf build/frameworks; $(PIP_FAILED); }
	@touch $@
check-python-frameworks: all $(FRAMEWORKS_PYTHON)
	@SHARDD_FRAMEWORKS=1 OMP_NUM_THREADS=1 $(FRAMEWORKS_PYTHON) -B -m pytest -p no:cacheprovider \
	  -q client/python/tests/test_lightning.py client/python/tests/test_ray.py $(PYTEST)

# `make check-deepspeed` runs DeepSpeed's unit tests against the stand-in: what is in passing.txt
# has to pass. Its wheel has no tests: DEEPSPEED_SRC is a checkout of DEEPSPEED_COMMIT, and is
# fetched below build/ if it is not given, which needs the network once. Not part of CI.
DEEPSPEED_COMMIT := edaa7221267243c7be7fb49c5d5f5c4fb97b4641
DEEPSPEED_URL    ?= https://github.com/deepspeedai/DeepSpeed
DEEPSPEED_SRC    ?= build/deepspeed-src
.PHONY: check-deepspeed
build/deepspeed-src:
	@rm -rf $@.part; git init -q $@.part
	@git -C $@.part fetch -q --depth 1 $(DEEPSPEED_URL) $(DEEPSPEED_COMMIT) && \
	  git -C $@.part checkout -q FETCH_HEAD -- tests && mv $@.part $@ || \
	  { rm -rf $@.part; echo "check-deepspeed: DeepSpeed's tests are not here, and $(DEEPSPEED_URL)" \
	    "could not be fetched: say DEEPSPEED_SRC=folder, a checkout of $(DEEPSPEED_COMMIT)" >&2; \
	    exit 1; }
check-deepspeed: all torch $(filter build/deepspeed-src,$(DEEPSPEED_SRC))
	@test -d $(DEEPSPEED_SRC)/tests/unit || { echo "check-deepspeed: $(DEEPSPEED_SRC) has no" \
	  "tests/unit: DEEPSPEED_SRC is a checkout of $(DEEPSPEED_COMMIT)" >&2; exit 1; }
	@SHARDD_LIB=$(CURDIR)/build/libshard.so.0 SHARD_DAEMON=$(CURDIR)/build/shardd \
	  PYTHONPATH=$(CURDIR)/client/python/src $(TORCH_PYTHON) -B \
	  client/python/tests/deepspeed_unit/run.py $(DEEPSPEED_SRC)/tests $(FILES)
