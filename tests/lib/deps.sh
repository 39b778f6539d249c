#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deps.sh: installs the Debian packages that building and testing need and that are missing. Beside
# arm.sh and promtool.sh it is the only script that calls apt. With NO_APT=1 it prints what is
# missing and fails.
set -eu
packages=(
	build-essential pkg-config                                  # compiler, make, the installed library's test
	g++                                                         # the kernels for GPUs, which tests run on the processor
	libuv1-dev libinih-dev libjansson-dev                       # the daemon: loop, configuration, status
	libmicrohttpd-dev                                           # /metrics, /status and the page, on a thread of its own
	libgnutls28-dev                                             # their TLS: whether a client's certificate is right
	libsystemd-dev systemd                                      # the service: notify, watchdog, journal; what reads the unit critically
	libprotobuf-c-dev protobuf-c-compiler libxxhash-dev         # the wire
	python3-venv                                                # export and import against safetensors; the replay of make chaos
	libibverbs-dev                                              # RDMA between nodes
	libssl-dev                                                  # the secrets and TLS: headers; the library is loaded at run time
	libcurl4-openssl-dev                                        # the membership source etcd: HTTP on the daemon's loop
	liburing-dev                                                # io_uring, where the state of chunks is on a disk
	libcmocka-dev procps                                        # tests
	openssl                                                     # the other end of TLS in tests
	etcd-server etcd-client                                     # the clusters of tests/proc/test_source_etcd
	xfsprogs btrfs-progs                                        # file systems that share parts of files (tests/unit/test_part_older)
	clang llvm libclang-rt-dev clang-format                     # fuzzers, their coverage, the format
	python3 mandoc groff-base                                   # the manual, and two that read it critically
	iperf3 fio                                                  # figures beside ours in make bench
)
[[ ${1:-} != @(deb|vm) ]] || packages+=(debhelper dpkg-dev po-debconf lintian) # for make deb
[ "${1:-}" != vm ] || packages+=(                                  # for make vm
	qemu-system-x86 busybox-static cpio kmod e2fsprogs iproute2 # guests, what they boot from, their network
	debootstrap                                                 # and their Debian root
	rdma-core ibverbs-providers ibverbs-utils perftest          # verbs, and figures beside ours
)
missing=()
for p in "${packages[@]}"; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "${NO_APT:-0}" != 0 ]; then
	echo "deps: missing packages: ${missing[*]}" >&2
	echo "deps: install them, or run \`make deps\` without NO_APT=1" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo "deps: no apt-get here: install what matches these Debian packages: ${missing[*]}" >&2
	exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { echo "deps: root or sudo is needed to install: ${missing[*]}" >&2; exit 1; }
	as_root=(sudo)
fi
# etcd-server brings a service. The tests start an etcd of their own, so none is left running or
# enabled, unless it was installed before.
policy=/usr/sbin/policy-rc.d no_service=
if [[ " ${missing[*]} " = *" etcd-server "* ]]; then
	no_service=yes
	[ -e $policy ] || {
		trap '"${as_root[@]}" rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
		"${as_root[@]}" chmod 755 $policy
	}
fi
echo "deps: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q || echo "deps: apt-get update failed; trying with the lists that are here" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
if [ -n "$no_service" ]; then
	# The second one is for a policy of this machine's own, which may have started it.
	"${as_root[@]}" update-rc.d etcd disable >/dev/null 2>&1 || true
	"${as_root[@]}" deb-systemd-helper disable etcd.service >/dev/null 2>&1 || true
	[ ! -d /run/systemd/system ] || "${as_root[@]}" systemctl stop etcd.service >/dev/null 2>&1 || true
fi
