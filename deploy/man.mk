# SPDX-License-Identifier: Apache-2.0
# The manual. It is a part of `make install` and `make uninstall`. `make man` makes it alone, in
# build/man. Without python3 there is none, and with CUDA=0 none about shard_cuda.h.
MANDIR   ?= $(PREFIX)/share/man
MAN_PYTHON   ?= $(shell command -v python3)
MAN_DATE ?= 2026-11-21
MAN      := $(B)/man/done
MAN_H    := include/shard.h $(if $(HAVE_CUDA),include/shard_cuda.h)

.PHONY: man install-man uninstall-man
man: $(if $(MAN_PYTHON),$(MAN))
	$(if $(MAN_PYTHON),,@echo 'man: no (python3 is not here)')
$(MAN): deploy/man.py deploy/events.txt daemon/obs/README.md $(MAN_H) $(B)/with-cuda deploy/shardd.conf $(B)/shardd $(B)/shardctl
	$(call say,man,$(@D))
	@rm -rf $(@D); mkdir -p $(@D)
	$(Q)$(MAN_PYTHON) deploy/man.py $(@D) $(VERSION) $(MAN_DATE) $(B)/shardd $(B)/shardctl deploy/shardd.conf $(MAN_H)
	@touch $@
install: install-man
install-man: man
	@$(if $(MAN_PYTHON),for f in $$($(MAN_PYTHON) deploy/man.py --list $(MAN_H)); do install -D -m 644 $(B)/man/$$f $(DESTDIR)$(MANDIR)/$$f || exit 1; done,:)
uninstall: uninstall-man
uninstall-man:
	@$(if $(MAN_PYTHON),for f in $$($(MAN_PYTHON) deploy/man.py --list include/shard.h include/shard_cuda.h); do rm -f $(DESTDIR)$(MANDIR)/$$f; done,:)
