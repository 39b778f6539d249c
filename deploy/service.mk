# SPDX-License-Identifier: Apache-2.0
# The service. It is a part of `make install` and `make uninstall`. What systemd reads lies below
# PREFIX/lib, which it knows for /usr and /usr/local. For /usr, units lie where pkg-config says.
UNITDIR ?= $(or $(if $(filter /usr,$(PREFIX)),$(shell env -u PKG_CONFIG_SYSROOT_DIR pkg-config --variable=systemdsystemunitdir systemd 2>/dev/null)),$(PREFIX)/lib/systemd/system)
SERVICE_FILES = $(UNITDIR)/shardd.service $(PREFIX)/lib/sysusers.d/shardd.conf $(PREFIX)/lib/sysctl.d/90-shardd.conf $(PREFIX)/share/shardd/limits.conf $(PREFIX)/share/shardd/gpu.conf
install: install-service
install-service:
	install -d $(sort $(dir $(addprefix $(DESTDIR),$(SERVICE_FILES))))
	sed 's,@BINDIR@,$(PREFIX)/bin,' deploy/shardd.service >$(DESTDIR)$(UNITDIR)/shardd.service
	chmod 644 $(DESTDIR)$(UNITDIR)/shardd.service
	install -m 644 deploy/shardd.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/shardd.conf
	install -m 644 deploy/90-shardd.sysctl.conf $(DESTDIR)$(PREFIX)/lib/sysctl.d/90-shardd.conf
	install -m 644 deploy/shardd.limits.conf $(DESTDIR)$(PREFIX)/share/shardd/limits.conf
	install -m 644 deploy/shardd.gpu.conf $(DESTDIR)$(PREFIX)/share/shardd/gpu.conf
# Before that of the main Makefile, which removes the folder if it is empty.
uninstall: uninstall-service
uninstall-service:
	rm -f $(addprefix $(DESTDIR),$(SERVICE_FILES))

# Debian packages of the tree as it is, into DEB_DIR; installs what that needs
DEB_DIR ?= build/deb
DEB = $(DEB_DIR)/shardd-$(VERSION)
deb:
	@tests/lib/deps.sh deb
	rm -rf $(DEB_DIR)
	mkdir -p $(DEB)
	git ls-files -co --exclude-standard -z | tar -c --null --verbatim-files-from -T - | tar -xC $(DEB)
	mv $(DEB)/deploy/debian $(DEB)/debian
	cp deploy/libshard0.symbols deploy/libshard-cuda0.symbols deploy/shardd.sysusers $(DEB)/debian/
	cd $(DEB) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL DEB_BUILD_OPTIONS="nocheck parallel=$$(nproc) $(DEB_BUILD_OPTIONS)" dpkg-buildpackage -us -uc -b
	cd $(DEB_DIR) && lintian --allow-root --fail-on error *.changes
	@ls $(DEB_DIR)/*.deb
.PHONY: install-service uninstall-service deb
