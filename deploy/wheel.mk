# SPDX-License-Identifier: Apache-2.0
# `make wheel` builds the Python package's wheel in build/dist, with libshard and shardd inside. It
# needs the network once, for what builds it: client/python/requirements-wheel.txt.
WHEEL_PYTHON := build/wheel-tools/bin/python3
.PHONY: wheel
wheel: $(WHEEL_PYTHON)
	@PYTHON=$(abspath $(WHEEL_PYTHON)) MAKE='$(MAKE)' client/python/wheel.sh $(VERSION) $(B)/dist
$(WHEEL_PYTHON): client/python/requirements-wheel.txt
	@rm -rf build/wheel-tools; python3 -m venv build/wheel-tools
	@$@ -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes -r $< || \
	  { rm -rf build/wheel-tools; echo "wheel: pip could not install $<: it needs the network once" >&2; exit 1; }
	@touch $@

# Installs the wheel in an environment of its own, with the torch of `make torch`, and trains.
.PHONY: check-wheel
check-wheel: wheel torch
	@rm -rf build/wheel-test; python3 -m venv build/wheel-test
	@build/wheel-test/bin/pip install --quiet --disable-pip-version-check --no-deps --no-index \
	  $$(ls -t $(B)/dist/*.whl | head -1)
	@echo $$(realpath build/torch/lib/python3*/site-packages) >$$(ls -d build/wheel-test/lib/python3*/site-packages)/torch.pth
	@cd / && env -u PYTHONPATH -u SHARDD_LIB -u SHARD_DAEMON -u SHARD_ADDRESS OMP_NUM_THREADS=1 \
	  $(abspath build/wheel-test)/bin/python3 -m torch.distributed.run --nproc-per-node 2 \
	  $(abspath client/python/tests)/wheel_trains.py
