# SPDX-License-Identifier: Apache-2.0
# `make page`: the daemon's page in a headless browser. Not part of `make check`: chromium is no dependency, without it this is skipped.
.PHONY: page
page: all
	@tests/page/page.sh $(B)
