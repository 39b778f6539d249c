# SPDX-License-Identifier: Apache-2.0
# `make config-readme` writes the list of options and settings again.
# tests/unit/test_config_manual.c compares it.
.PHONY: config-readme
config-readme: $(B)/tests/unit/test_config_manual
	$< print >daemon/config/README.md
