#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD PART...: `make vm`, after everything it needs has been installed and built. Runs the
# parts a, b and c in guests (vm.sh says what those are) and ends with "N passed, N failed, N
# skipped"; fails if anything failed, and where nothing ran. Logs, consoles and results.xml (JUnit)
# stay in BUILD/vm. Ends after LIMIT_S seconds (default: 25 minutes). ONLY="name ..." runs only
# these tests. Kept for the next time, in ~/.cache/shardd-vm or $VM_CACHE: the kernel and part c's
# root. VM_KVM=0: software emulation even where KVM is there.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=${1:?usage: run.sh BUILD PART...}
shift
began=$SECONDS limit_s=${LIMIT_S:-1500}

say() { echo "vm: $*"; }
die() { say "$*" >&2; exit 2; }
as_root()
{
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}
export -f as_root

PATH=$PATH:/usr/sbin:/sbin
build=$(cd "$B" && pwd -P) || die "$B is not there: make"
[[ $build/ = "$(pwd -P)"/* ]] || die "$build is not below the checkout: a guest would not see it"
cd "$(pwd -P)" || exit 1
for program in qemu-system-x86_64 busybox cpio modprobe depmod dpkg mke2fs debootstrap ib_write_bw ibv_devinfo rdma; do
	command -v $program >/dev/null || die "$program is not here: \`make deps-vm\` installs what is missing"
done
export VM_DIR=$build/vm VM_CACHE=${VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/shardd-vm} VM_HERE=$build VM_SEES=/vm/src/${build#"$PWD"/}
exec 9>"$build/vm.lock"
flock -n 9 || die "another make vm runs in $build"
rm -rf "$VM_DIR"
mkdir -p "$VM_DIR" "$VM_CACHE"
VM_SHORT=$(mktemp -d /tmp/shardd-vm.XXXXXX) || exit 1 # the names of sockets are short
export VM_SHORT
child=
guests_end() # of a part that could not do it itself
{
	local f

	for f in "$VM_DIR"/*/*/pid; do
		[ ! -f "$f" ] || { kill -9 "$(cat "$f")" && rm "$f"; } 2>/dev/null
	done
}
ended()
{
	[ -z "$child" ] || { kill "$child" && wait "$child"; } 2>/dev/null
	guests_end
	rm -rf "$VM_SHORT"
}
trap ended EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

. tests/vm/kernel.sh
exec 8>"$VM_CACHE/lock"
flock 8
kernel_prepare
flock -u 8
[[ $VM_ACCEL = *kvm* ]] && how=KVM || how="software emulation"
say "kernel $(basename "$(dirname "$VM_KERNEL")" | cut -d- -f2-), $how, $((SECONDS - began)) s"

for p in "$@"; do
	part_began=$SECONDS
	[ -f "tests/vm/$p.sh" ] || die "there is no part $p"
	say "part $p: $(sed -n "3s/^# $p.sh: //p" "tests/vm/$p.sh")"
	left_s=$((limit_s - SECONDS + began))
	VM_PART=$p timeout --foreground -k 10 $((left_s > 0 ? left_s : 1)) bash -c ". tests/vm/vm.sh && . tests/vm/$p.sh" 8>&- 9>&- &
	child=$!
	wait $child
	rc=$?
	child=
	guests_end
	if [ $rc != 0 ] && ! grep -q '^FAIL' "$VM_DIR/$p/results" 2>/dev/null; then
		mkdir -p "$VM_DIR/$p"
		what="ended with status $rc"
		[ $rc != 124 ] || what="the job took $limit_s s"
		printf 'FAIL\t%s\t%s\t%s\n' "part" "$what" 0 >>"$VM_DIR/$p/results"
		echo "FAIL $p: $what"
	fi
	say "part $p took $((SECONDS - part_began)) s; $((SECONDS - began)) s since the start"
done

xml() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g'; }
{
	echo '<?xml version="1.0"?>'
	echo '<testsuites>'
	for p in "$@"; do
		printf '<testsuite name="vm-%s">\n' "$p"
		while IFS=$'\t' read -r kind name what s; do
			[[ $kind != FAIL && ! ( $kind = count && $what != *" 0" ) ]] && echo "<testcase classname=\"vm.$p\" name=\"$name\" time=\"$s\"/>" && continue
			echo "<testcase classname=\"vm.$p\" name=\"$name\" time=\"$s\"><failure message=\"$(xml <<<"$what")\">"
			tail -n 40 "$VM_DIR/$p/log/$name" 2>/dev/null | tr -cd '\11\12\40-\176' | xml
			echo '</failure></testcase>'
		done <"$VM_DIR/$p/results"
		echo '</testsuite>'
	done
	echo '</testsuites>'
} >"$VM_DIR/results.xml"
cat "$VM_DIR"/*/results | awk -F'\t' -v t=$((SECONDS - began)) '
	$1 == "ok" { p++ } $1 == "FAIL" { f++ } $1 == "count" { split($3, n, " "); p += n[1]; f += n[2] }
	END { printf "vm: %d s\n%d passed, %d failed, 0 skipped\n", t, p, f; exit f > 0 || p == 0 }'
