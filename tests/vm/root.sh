# SPDX-License-Identifier: Apache-2.0
# root.sh: a Debian root with systemd on an ext4 image, for part c. Made by debootstrap once for
# each list of packages and kept in $VM_CACHE; a test gets a copy of its own. What our packages
# depend on is in it, our packages are not: a test installs them. Needs root or sudo, and the
# network (or a proxy in http_proxy) the first time. Sourced by parts; sets nothing.
root_packages=(
	systemd systemd-sysv dbus udev libpam-systemd iproute2 procps kmod adduser passwd debconf init-system-helpers e2fsprogs
	rdma-core ibverbs-providers ibverbs-utils libibverbs1 librdmacm1
	gcc libc6-dev pkg-config libprotobuf-c-dev # who builds a trainer with libshard-dev
	libcmocka0                                 # tests/vm/phases.c
	libuv1 libinih1 libjansson4 libmicrohttpd12 libprotobuf-c1 libsystemd0 libssl3 libxxhash0 liburing2
)

root_image() # FILE
{
	local suite=bookworm key cached tree mirror=${VM_MIRROR:-http://deb.debian.org/debian}

	key=$(printf '%s\n' "$suite" "${root_packages[@]}" | sha256sum | cut -c1-12)
	cached=$VM_CACHE/root-$key.ext4
	if [ ! -f "$cached" ]; then
		tree=$VM_CACHE/root-$key.tmp
		as_root rm -rf "$tree"
		mkdir -p "$VM_CACHE"
		echo "vm: debootstrap $suite into $cached"
		if ! as_root debootstrap --variant=minbase --include="$(IFS=, && echo "${root_packages[*]}")" "$suite" "$tree" "$mirror"; then
			tail -n 20 "$tree/debootstrap/debootstrap.log" 2>/dev/null
			echo "vm: debootstrap failed: it needs $mirror (another one: VM_MIRROR=http://...)"
			return 1
		fi
		as_root rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*
		echo shardd-vm | as_root tee "$tree/etc/hostname" >/dev/null
		as_root ln -sf /dev/null "$tree/etc/systemd/system/getty@tty1.service" # nobody logs in here
		as_root rm -f "$cached.tmp"
		as_root mke2fs -q -t ext4 -d "$tree" "$cached.tmp" 3G || { echo "vm: mke2fs -d made no image of $tree"; return 1; }
		as_root chown "$(id -u):$(id -g)" "$cached.tmp"
		as_root rm -rf "$tree"
		mv "$cached.tmp" "$cached"
	fi
	cp --sparse=always --reflink=auto "$cached" "$1"
}
