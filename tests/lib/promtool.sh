#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# promtool.sh FOLDER: puts promtool into FOLDER, unless it is there. It tests the alert rules and
# reads what daemons say of themselves. Debian has it in the package prometheus, which would start a
# server when installed, or in one of its own, as in Debian 13. The package is only fetched, and this
# one program taken out of it.
set -eu
folder=${1:?usage: promtool.sh FOLDER}
! "$folder/promtool" --version >/dev/null 2>&1 || exit 0
mkdir -p "$folder"
if has=$(command -v promtool); then
	ln -sf "$has" "$folder/promtool"
	exit 0
fi
[ "${NO_APT:-0}" = 0 ] || { echo "promtool: NO_APT is set: install promtool" >&2; exit 1; }
command -v apt-get dpkg-deb >/dev/null || { echo "promtool: there is no apt-get here: install promtool" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
fetch() { (cd "$work" && for p in promtool prometheus; do timeout 200 apt-get download -q $p && break; done); }
# Without lists apt knows no package. Only root can have them fetched.
fetch >"$work/said" 2>&1 || { timeout 200 apt-get update -q && fetch; } >>"$work/said" 2>&1 ||
	{ echo "promtool: apt-get download prometheus: $(grep -E '^(E|Err)' "$work/said" | tail -1)" >&2; exit 1; }
dpkg-deb --fsys-tarfile "$work"/prom*.deb | tar -x -C "$work" ./usr/bin/promtool
mv "$work/usr/bin/promtool" "$folder/promtool"
"$folder/promtool" --version | head -1
