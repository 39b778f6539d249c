# SPDX-License-Identifier: Apache-2.0
# `make page`: tests the daemon's page in a headless browser. It is not part of `make check`.
# chromium is not a dependency, and without it this is skipped.
.PHONY: page
page: all
	@tests/page/page.sh $(B)
