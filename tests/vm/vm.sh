# SPDX-License-Identifier: Apache-2.0
# vm.sh: guests and named tests, for the parts of `make vm` (tests/vm/{a,b,c}.sh), which run.sh
# starts in the checkout's root. A guest sees the checkout, read-only, as /vm/src, where its
# commands start, and a folder of its own of this machine, writable, as /vm/job. The programs in it
# are those of this build: $VM_SEES/shardd. It has AVX2 and no AVX-512, two processors, and
# soft-RoCE on device rxe0.
#
#   guest_run G          Starts one guest. Its / is this machine's, and what it changes there is
#                        forgotten. /tmp and /run are fresh. rxe0 is on dummy0, 10.9.0.1.
#   guest_pair G H       Starts two such guests on wires of their own: eth0 with 10.9.0.1 and
#                        10.9.0.2, and eth1 with 10.9.1.1 and 10.9.1.2, where rxe0 is.
#   guest_again H        Boots the second guest of a pair anew, after guest_cut or guest_stop.
#   guest_boot G IMAGE   Boots systemd as PID 1 on an ext4 image that is written (root_image FILE of
#                        root.sh makes one). rxe0 is on dummy0, 10.9.0.1.
#   guest_reboot G       Shuts the guest down in good order and boots it again. guest_stop G shuts
#                        it down, and guest_cut G takes the power away.
#   on G COMMAND...      Runs the command in the guest (bash, as root). Gives its output and status,
#                        124 after $ON_S (default 120) seconds, and 125 if the guest is gone.
#                        Several may run at a time: `on g ... &`. What it leaves running goes on.
#   job G                Prints the folder of this machine that is /vm/job there.
#   t NAME WHAT COMMAND...
#                        Runs a named test, a command or function, in a subshell with set -e. Its
#                        output goes to a log. The tests of a part run in order. ONLY="name ..."
#                        runs only these. What all of them need belongs in front of them, in `must`.
#   must WHAT COMMAND... Runs what the tests after it need. If it fails, the part ends there and
#                        counts as failed.
#   programs G PROGRAM...
#                        Runs cmocka programs in the guest and counts them one by one. A skipped
#                        test counts as failed there.
set -u
part=${VM_PART:?run by run.sh}
here=$VM_DIR/$part
results=$here/results
mkdir -p "$here/log"
: >"$results"

# --- guests ---

job() { echo "$here/$1"; }

# guest_start G MODE NET IP [options of qemu]: starts it, does not wait
guest_start()
{
	local g=$1 dir="$here/$1" memory=${VM_MEMORY:-2048}

	printf '%s\n' "MODE=$2" "NET=$3" "IP=$4" >"$dir/env"
	rm -rf "$dir"/{todo,doing,out,rc,up,stop}
	mkdir "$dir"/{todo,doing,out,rc}
	cp tests/vm/agent "$dir/agent"
	# shellcheck disable=SC2086 # several words
	qemu-system-x86_64 $VM_ACCEL -m "$memory" -smp 2 -nodefaults -no-user-config -no-reboot -display none \
		-kernel "$VM_KERNEL" -initrd "$VM_INITRD" -append "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off systemd.show_status=0" \
		-chardev "file,id=console,path=$here/log/console-$g,append=on" -serial chardev:console \
		-virtfs "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap" \
		-virtfs "local,path=$PWD,mount_tag=src,security_model=none,readonly=on,multidevs=remap" \
		-virtfs "local,path=$dir,mount_tag=job,security_model=none,multidevs=remap" \
		"${@:5}" >>"$here/log/qemu-$g" 2>&1 </dev/null &
	echo $! >"$dir/pid"
	disown
}

guest_lives() { kill -0 "$(cat "$here/$1/pid" 2>/dev/null)" 2>/dev/null; }

pause() { read -rt "$1" <>"$here/never" || :; }

guest_ready() # G: its agent answers
{
	local until=$((SECONDS + ${BOOT_S:-120}))

	until [ -s "$here/$1/up" ]; do
		if ! guest_lives "$1" || [ $SECONDS -gt $until ]; then
			echo "vm: guest $1 did not start; its console:"
			tail -n 20 "$here/log/console-$1" "$here/log/qemu-$1"
			return 1
		fi
		pause 0.1
	done
	! grep -a 'vm: guest: ' "$here/log/console-$1" # the agent or init complained
}

guest_new() # G
{
	rm -rf "${here:?}/$1"
	mkdir "$here/$1"
	: >"$here/log/console-$1"
	: >"$here/log/qemu-$1"
}

guest_run()
{
	guest_new "$1"
	guest_start "$1" root dummy 10.9.0.1
	guest_ready "$1"
}

# guest_wired G IP server=on|off: eth0 for everything, eth1 for soft-RoCE
guest_wired()
{
	local i options=()

	for i in 0 1; do
		options+=(-netdev "stream,id=n$i,$3,addr.type=unix,addr.path=$VM_SHORT/wire-$part-$i" \
			-device "virtio-net-pci,netdev=n$i,mac=52:54:00:00:0$i:0${2##*.}")
	done
	guest_start "$1" root wire "$2" "${options[@]}"
}

guest_pair()
{
	guest_new "$1"
	guest_new "$2"
	rm -f "$VM_SHORT"/wire-*
	echo server=on >"$here/$1/wire"
	echo server=off >"$here/$2/wire"
	guest_wired "$1" 10.9.0.1 server=on
	until [ -S "$VM_SHORT/wire-$part-1" ] || ! guest_lives "$1"; do
		pause 0.05
	done
	guest_wired "$2" 10.9.0.2 server=off
	guest_ready "$1" && guest_ready "$2"
}

guest_again()
{
	guest_wired "$1" "$(sed -n 's/^IP=//p' "$here/$1/env")" "$(cat "$here/$1/wire")"
	guest_ready "$1"
}

guest_boot()
{
	[ -d "$here/$1" ] && ! guest_lives "$1" || guest_new "$1"
	guest_start "$1" disk dummy 10.9.0.1 -drive "if=virtio,format=raw,cache=unsafe,file=$2"
	echo "$2" >"$here/$1/image"
	guest_ready "$1"
}

guest_wait() # G: until it has ended
{
	local until=$((SECONDS + ${BOOT_S:-120}))

	while guest_lives "$1"; do
		if [ $SECONDS -gt $until ]; then
			echo "vm: guest $1 did not shut down; its console:"
			tail -n 20 "$here/log/console-$1"
			guest_cut "$1"
			return 1
		fi
		pause 0.1
	done
}

guest_cut()
{
	kill -9 "$(cat "$here/$1/pid")" 2>/dev/null
	while guest_lives "$1"; do
		pause 0.05
	done
}

guest_stop()
{
	if [ -f "$here/$1/image" ]; then
		ON_S=20 on "$1" 'systemctl poweroff' >/dev/null
	else
		: >"$here/$1/stop"
	fi
	guest_wait "$1"
}

guest_reboot()
{
	guest_stop "$1" && guest_boot "$1" "$(cat "$here/$1/image")"
}

guests_end()
{
	local f

	for f in "$here"/*/pid; do
		[ ! -f "$f" ] || { kill -9 "$(cat "$f")" && rm "$f"; } 2>/dev/null
	done
	rm -f "$VM_SHORT"/wire-*
}
trap guests_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkfifo "$here/never"

on()
{
	local g=$1 dir="$here/$1" name limit=${ON_S:-120} until rc

	shift
	name=$BASHPID-$SRANDOM
	printf '#%s\n%s\n' "$limit" "$*" >"$dir/$name"
	mv "$dir/$name" "$dir/todo/$name"
	until=$((SECONDS + limit + 30))
	until [ -f "$dir/rc/$name" ]; do
		if ! guest_lives "$g" || [ $SECONDS -gt $until ]; then
			cat "$dir/out/$name" 2>/dev/null
			echo "vm: guest $g is gone (the end of its console):"
			tail -n 5 "$here/log/console-$g"
			return 125
		fi
		pause 0.05
	done
	cat "$dir/out/$name"
	rc=$(cat "$dir/rc/$name")
	[ "$rc" != 124 ] || echo "vm: over $limit s: $*"
	return "$rc"
}

# --- named tests ---

wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " = *" $1 "* ]] || [[ " $ONLY " = *" $part/$1 "* ]]; }

took() # KIND NAME WHAT SECONDS: a result, for run.sh
{
	printf '%s\t%s\t%s\t%s\n' "$@" >>"$results"
}

# every 30 s: a long test is still the one that runs
ticking() # NAME
{
	while pause 30 && kill -0 $$; do # no sleep, which would outlive this
		printf '     %s: %d s\n' "$1" $((SECONDS - start))
	done
}

t()
{
	local name=$1 what=$2 log rc start=$SECONDS ticks

	shift 2
	wanted "$name" || return 0
	log=$here/log/$name
	ticking "$part/$name" &
	ticks=$!
	(
		set -eE
		"$@"
	) >"$log" 2>&1
	rc=$?
	{ kill $ticks && wait $ticks; } 2>/dev/null
	if [ $rc = 0 ]; then
		took ok "$name" "$what" $((SECONDS - start))
		printf 'ok   %-34s %s  %d s\n' "$part/$name" "$(tail -n 1 "$log" | cut -c1-100)" $((SECONDS - start))
	else
		took FAIL "$name" "$what" $((SECONDS - start))
		printf 'FAIL %-34s %s (status %d)  %d s\n' "$part/$name" "$what" $rc $((SECONDS - start))
		tail -n "${TAIL:-40}" "$log" | sed 's/^/     | /'
	fi
	return 0
}

must()
{
	local what=$1 log="$here/log/${2##*/}" start=$SECONDS

	shift
	if ! "$@" >"$log" 2>&1; then
		took FAIL "${1##*/}" "$what" $((SECONDS - start))
		printf 'FAIL %-34s %s\n' "$part" "$what: part $part ends here"
		tail -n "${TAIL:-40}" "$log" | sed 's/^/     | /'
		exit 1
	fi
	printf 'vm: %s: %s, %d s\n' "$part" "$what" $((SECONDS - start))
}

programs()
{
	local g=$1 program name p f s start

	shift
	for program in "$@"; do
		name=${program##*/}
		wanted "$name" || continue
		start=$SECONDS
		rm -f "$here/$g/counts"
		ON_S=$((${TIMEOUT:-300} + 30)) on "$g" "TIMEOUT=${TIMEOUT:-300} tests/lib/run.sh /tmp/results '$program'; rc=\$?; tail -n 1 /tmp/results >/vm/job/counts; \
			cp /tmp/results.logs/*.log /vm/job; grep -h '^\[  SKIPPED \] [^0-9]' /tmp/results.logs/*$name.log; exit \$rc" >"$here/log/$name" 2>&1
		mv "$here/$g"/*.log "$here/log/" 2>/dev/null
		cat "$here/log/$name"
		read -r p f s _ <"$here/$g/counts" || p=0 f=1 s=0 # passed, failed, skipped, time, name
		[ "$s" = 0 ] || echo "FAIL $part/$name: $s skipped, though here is all that they need"
		printf '%s\t%s\t%s\t%s\t%s\n' count "$name" "$p $((f + s))" "$((SECONDS - start))" program >>"$results"
	done
}
