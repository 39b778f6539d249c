# SPDX-License-Identifier: Apache-2.0
# Completion for bash. It is a part of `make install` and `make uninstall`.
COMPLETIONS = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
install: install-completion
install-completion:
	install -d $(COMPLETIONS)
	install -m 644 deploy/shardctl.bash $(COMPLETIONS)/shardctl
uninstall: uninstall-completion
uninstall-completion:
	rm -f $(COMPLETIONS)/shardctl
.PHONY: install-completion uninstall-completion
