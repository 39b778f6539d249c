# SPDX-License-Identifier: Apache-2.0
# Installs the Python packages of tests/python/requirements.txt in an environment below build/.
# `make check` needs the network for that once. Without it the test that uses them fails and is not
# skipped.
VENV_PYTHON := build/python/bin/python3
.PHONY: python
python: $(VENV_PYTHON)
$(VENV_PYTHON): tests/python/requirements.txt
	@rm -rf build/python; python3 -m venv build/python
	@build/python/bin/pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes -r $< || \
	  { rm -rf build/python; echo "python: pip could not install $<: it needs the network once" >&2; exit 1; }
	@touch $@
