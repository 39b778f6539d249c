# SPDX-License-Identifier: Apache-2.0
# The Python packages of tests/python/requirements.txt, in an environment of their own below build/. `make check` needs the network for that
# once; without it the test that uses them fails, it is not skipped.
VENV_PYTHON := build/python/bin/python3
.PHONY: python
python: $(VENV_PYTHON)
$(VENV_PYTHON): tests/python/requirements.txt
	@rm -rf build/python; python3 -m venv build/python
	@build/python/bin/pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes -r $< || \
	  { rm -rf build/python; echo "python: pip could not install $<: it needs the network once" >&2; exit 1; }
	@touch $@
