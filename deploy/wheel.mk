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

# Installs the wheel in an environment of its own for each of PYTHONS, and trains there with two
# ranks. TORCH is a version that pip installs for each; without it they have torch themselves.
PYTHONS ?= $(TORCH_PYTHON)
.PHONY: check-wheel
check-wheel: wheel $(if $(filter $(TORCH_PYTHON),$(PYTHONS)),torch)
	@TORCH='$(TORCH)' client/python/tests/wheel_trains.sh \
	  "$$(ls -t $(B)/dist/*.whl | head -1)" $(B)/wheel-test $(PYTHONS)
