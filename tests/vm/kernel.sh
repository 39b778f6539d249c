# SPDX-License-Identifier: Apache-2.0
# kernel.sh: what guests boot from, kept in $VM_CACHE: Debian's stock kernel package, unpacked and
# not installed, and an initrd of busybox, the modules below and tests/vm/init. Sourced by run.sh,
# which has `die`. Sets VM_KERNEL, VM_INITRD and VM_ACCEL.
modules=(
	virtio_pci 9pnet_virtio 9p overlay virtio_blk crc32c_generic ext4      # the guest's disks
	virtio_net dummy crc32_generic crc32-pclmul ib_uverbs rdma_ucm rdma_rxe # its network
	autofs4 configfs                                                       # systemd asks for them
)

kernel_package() # of this release
{
	apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }'
}

kernel_fetch()
{
	local package at

	package=$(kernel_package)
	if [ -z "$package" ]; then
		as_root apt-get update -q >/dev/null 2>&1
		package=$(kernel_package)
	fi
	if [ -z "$package" ]; then # without apt's lists the newest of earlier times does
		at=$(ls -dt "$VM_CACHE"/kernel-*/vmlinuz 2>/dev/null | head -n 1)
		[ -n "$at" ] || die "apt knows no linux-image-amd64: its lists are needed once (apt-get update, with a network)"
		kernel=${at%/vmlinuz}
		return
	fi
	kernel=$VM_CACHE/kernel-${package#linux-image-}
	[ ! -f "$kernel/vmlinuz" ] || return 0
	say "fetching $package"
	rm -rf "$kernel.tmp"
	mkdir -p "$kernel.tmp"
	(cd "$kernel.tmp" && apt-get -o APT::Sandbox::User= download -qq "$package") ||
		{ as_root apt-get update -q && (cd "$kernel.tmp" && apt-get -o APT::Sandbox::User= download -qq "$package"); } ||
		die "apt-get download $package failed: this needs the network once"
	dpkg -x "$kernel.tmp/$package"_*.deb "$kernel.tmp" && rm "$kernel.tmp/$package"_*.deb && mv "$kernel.tmp"/boot/vmlinuz-* "$kernel.tmp/vmlinuz" ||
		die "$package is not what was expected: no kernel in it"
	rm -rf "$kernel"
	mv "$kernel.tmp" "$kernel"
}

kernel_initrd()
{
	local version ir="$VM_DIR/initrd" m f

	version=$(ls "$kernel/lib/modules")
	rm -rf "$ir"
	mkdir -p "$ir"/{bin,proc,sys,dev,mnt,job,lower,rw} "$ir/lib/modules/$version"
	cp "$(command -v busybox)" "$ir/bin/busybox"
	"$ir/bin/busybox" modprobe --help >/dev/null 2>&1 || die "$(command -v busybox) cannot load modules: install busybox-static"
	for m in sh mount umount ip switch_root mkdir chmod ln chroot poweroff cat grep modprobe; do
		ln -s busybox "$ir/bin/$m"
	done
	[ -f "$kernel/lib/modules/$version/modules.dep" ] || depmod -b "$kernel" "$version"
	cp "$kernel/lib/modules/$version"/modules.{builtin,order}* "$ir/lib/modules/$version/"
	for m in "${modules[@]}"; do
		modprobe -d "$kernel" -S "$version" --show-depends "$m" >"$VM_DIR/depends" 2>/dev/null ||
			die "Debian's kernel $version has no module $m"
		for f in $(sed -n 's/^insmod \([^ ]*\).*/\1/p' "$VM_DIR/depends"); do
			install -D -m 644 "$f" "$ir/lib/modules/$version/${f##*/modules/"$version"/}"
		done
	done
	depmod -b "$ir" "$version"
	printf '%s\n' "${modules[@]}" >"$ir/modules"
	install -m 755 tests/vm/init "$ir/init"
	(cd "$ir" && find . | cpio -o -H newc --quiet | gzip -1) >"$VM_DIR/initrd.gz" || die "no initrd was made"
	rm -rf "$ir" "$VM_DIR/depends"
}

# KVM where a guest really starts with it. AVX-512 is left out in either case: the guests are those
# that know AVX2 only.
kernel_accel()
{
	local cpu=max,-avx512f,-avx512bw,-avx512vl,-avx512dq

	VM_ACCEL="-accel tcg,thread=multi -cpu max"
	if [ "${VM_KVM:-1}" = 1 ] && [ -r /dev/kvm ] && [ -w /dev/kvm ] &&
		timeout 20 qemu-system-x86_64 -accel kvm -cpu "$cpu" -m 512 -nodefaults -no-user-config -kernel "$VM_KERNEL" -initrd "$VM_INITRD" \
			-append "console=ttyS0 quiet panic=-1 no_timer_check vm.probe" -display none -serial stdio -no-reboot </dev/null 2>/dev/null |
		grep -q 'vm: guest is up'; then
		VM_ACCEL="-accel kvm -cpu $cpu"
	fi
}

kernel_prepare()
{
	local kernel

	kernel_fetch
	VM_KERNEL=$kernel/vmlinuz VM_INITRD=$VM_DIR/initrd.gz
	kernel_initrd
	kernel_accel
	export VM_KERNEL VM_INITRD VM_ACCEL
}
