#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# arm.sh ROOT: gets what `make check-arm` needs. That is Debian's cross compiler for aarch64 and
# qemu-user, installed on this machine, and the libraries for arm64, unpacked below ROOT. The
# libraries go nowhere else, because some of their packages would replace those of this machine.
# Only what is missing is fetched. Fails with a sentence if something cannot be had. NO_APT=1
# fetches nothing.
set -eu
root=$1
tools=(gcc-aarch64-linux-gnu qemu-user)
libraries=(libc6-dev libuv1-dev libinih-dev libjansson-dev libmicrohttpd-dev libprotobuf-c-dev libxxhash-dev libssl-dev libcmocka-dev)

fail() { echo "arm: $*" >&2; exit 1; }
missing=()
for p in "${tools[@]}"; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || [ ! -e "$root/whole" ] || exit 0
[ "${NO_APT:-0}" = 0 ] || fail "missing: ${missing[*]:-the libraries for arm64 in $root}; run \`make check-arm\` without NO_APT=1"
command -v apt-get >/dev/null || fail "no apt-get here: install ${tools[*]} by hand"
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
if [ ${#missing[@]} -gt 0 ]; then
	echo "arm: installing ${missing[*]}"
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" ||
		fail "${missing[*]} cannot be installed"
fi
[ -e "$root/whole" ] && exit
# Runs apt for another architecture, with lists, a cache and an empty list of installed packages of
# its own.
rm -rf "$root"
mkdir -p "$root"/apt/{lists,cache}/partial "$root/apt/cache/archives/partial"
touch "$root/apt/status"
root=$(cd "$root" && pwd)
options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$root/apt" -o Dir::State::lists="$root/apt/lists"
	-o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt/cache" -o APT::Install-Recommends=0 -o APT::Sandbox::User=root
	-o Debug::NoLocking=1)
echo "arm: fetching the libraries for arm64"
apt-get -q "${options[@]}" update || fail "the lists of packages for arm64 cannot be fetched"
apt-get -q -y "${options[@]}" --download-only install "${libraries[@]}" || fail "the libraries for arm64 cannot be fetched"
for deb in "$root"/apt/cache/archives/*.deb; do
	dpkg-deb -x "$deb" "$root" || fail "$deb cannot be unpacked"
done
[ -e "$root/lib/ld-linux-aarch64.so.1" ] || [ -e "$root/usr/lib/ld-linux-aarch64.so.1" ] || fail "the libraries for arm64 lack libc"
rm -rf "$root/apt"
touch "$root/whole"
