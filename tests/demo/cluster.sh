# SPDX-License-Identifier: Apache-2.0
# cluster.sh: runs the daemons and trainers of a demonstration or a test, in a folder of their own.
# Scripts that have set `name` and `build` source it. Whatever happens, every process that was
# started here is gone when the script ends. KEEP=1 keeps the folder. CONF has further lines for the
# daemons' configuration, and WORKERS the number of their workers. SLOW=n says that the machine is
# so many times slower than others, so that deadlines are longer. WARM=1: the memory of the daemons
# outlives them, on a tmpfs. TIER=nvme or mixed: the state is in files below the build folder, or
# that of every second chunk, and few chunks are in memory at a time. TIER=gpu or gpu-mixed: the same
# with the memory of two devices, which are those of the driver library for tests; with GPU=real they
# are those of this machine. `tier` has the settings then.
set -u
. "${BASH_SOURCE%/*}/../lib/pace.sh"
unset "${!SHARD_@}"

dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-$name.XXXXXX")
warm=
[ "${WARM:-}" = 1 ] && warm=$(mktemp -d "/dev/shm/shardd-$name.XXXXXX")
disk= tier= cuda=
case ${TIER:-ram} in
ram) ;;
nvme) tier=' tier=nvme nvme_cache=4' ;;
mixed) tier=' tier=nvme nvme_cache=4 nvme_share=50' ;;
gpu) tier=' tier=gpu' ;;
gpu-mixed) tier=' tier=gpu gpu_share=50' ;;
*) echo "$name: TIER is ram, nvme, mixed, gpu or gpu-mixed"; exit 1 ;;
esac
case $tier in *=gpu*)
	cuda="LD_LIBRARY_PATH=$build/tests/cuda FAKE_CUDA_DEVICES=2"
	[ "${GPU:-fake}" = fake ] || cuda=
	[ -z "$warm" ] || { echo "$name: TIER=$TIER does not take WARM=1: a tmpfs keeps no memory of devices"; exit 1; } ;;
esac
case $tier in *=nvme*) disk=$(mktemp -d "$build/nvme-$name.XXXXXX") ;; esac
declare -A pid_of=()
ports=() # files whose locks keep other scripts from this one's ports

cleanup()
{
	local p

	for p in "${pid_of[@]}"; do
		kill -9 "$p" 2>/dev/null
	done
	wait 2>/dev/null
	rm -f "${ports[@]}"
	if [ "${KEEP:-}" = 1 ]; then
		echo "$name: kept $dir"
	else
		rm -rf "$dir"
	fi
	[ -z "$warm" ] || rm -rf "$warm"
	[ -z "$disk" ] || rm -rf "$disk"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail()
{
	local f

	[ -t 1 ] && echo
	echo "$name: $*"
	for f in "$dir"/*.sock; do # whom it waits for, where a daemon can still say it
		[ -S "$f" ] && echo "--- status of ${f##*/}" && paced 10 "$build/shardctl" --address "unix:$f" status 2>&1
	done
	for f in "$dir"/*.out; do
		[ -s "$f" ] && echo "--- last lines of ${f##*/}" && tail -n 12 "$f"
	done
	echo "$name: $*" # again: where only the end of a log is shown
	exit 1
}

# --- processes: start NAME COMMAND..., running NAME, finish NAME (wait; its status must be 0) ---

start()
{
	local of=$1

	shift
	"$@" >"$dir/$of.out" 2>&1 </dev/null &
	pid_of[$of]=$!
}

running()
{
	kill -0 "${pid_of[$1]}" 2>/dev/null
}

finish()
{
	local status

	wait "${pid_of[$1]}"
	status=$?
	unset "pid_of[$1]"
	[ $status = 0 ] || fail "$1 ended with status $status"
}

listening()
{
	(exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# take_port NAME: a free port becomes the value of port_NAME. It lies below the range that the kernel
# hands out by itself, and above the tests' (lib/ports.c). No other script takes it before this one
# ends: there is a file for each port, and the lock on it belongs to this process and its children.
take_port()
{
	local port file fd

	for _ in $(seq 50); do
		port=$((29800 + RANDOM % 2900))
		file=/tmp/shardd-port-$EUID-$port
		{ exec {fd}>>"$file"; } 2>/dev/null || continue
		if flock -n "$fd" && [ "/proc/$$/fd/$fd" -ef "$file" ]; then
			ports+=("$file")
			listening $port || { printf -v "port_$1" %s $port && return; }
		fi
		exec {fd}>&-
	done
	fail "no free port on 127.0.0.1"
}

config() # NODE
{
	local port=port_$1

	mkdir "$dir/state-$1"
	cat >"$dir/$1.conf" <<-END
		[daemon]
		node = $1
		listen = 127.0.0.1:${!port}
		http = off
		allow_unauthenticated = yes
		socket = $dir/$1.sock
		state = $dir/state-$1
		memory = 1GiB
		${WORKERS:+workers = $WORKERS}
		warm_restart = $([ -n "$warm" ] && echo tmpfs || echo off)
		warm_dir = ${warm:-/dev/shm}
		${disk:+nvme_dir = $disk}
		$([[ $tier != *=gpu* ]] || echo gpu = auto)
		[cluster]
		run_id = $name
		membership = static
		[nodes]
		a = 127.0.0.1:$port_a
		b = 127.0.0.1:$port_b
		${CONF:-}
	END
}

wait_for_socket() # NODE
{
	local since=$SECONDS

	until [ -S "$dir/$1.sock" ]; do
		running "daemon-$1" || finish "daemon-$1"
		! passed $((10 * ${SLOW:-1})) $since || fail "daemon-$1 made no socket within $((SECONDS - since)) s"
		sleep 0.05
	done
}

text() # the licence texts that every Debian has
{
	find /usr/share/common-licenses -type f -print0 | LC_ALL=C sort -z | xargs -0 cat >"$dir/text"
	[ -s "$dir/text" ] || fail "no text to train on in /usr/share/common-licenses"
}

wait_for_link() # NODE: its connection to the other one
{
	local since=$SECONDS

	until grep -q 'event=link_up' "$dir/daemon-$1.out"; do
		running "daemon-$1" || finish "daemon-$1"
		! passed $((10 * ${SLOW:-1})) $since || fail "daemon-$1 found no other daemon within $((SECONDS - since)) s"
		sleep 0.05
	done
}

start_daemons() # a on the first port, b on the second; they know each other and their sockets are there when it returns
{
	local node

	take_port a
	take_port b
	for node in a b; do
		config $node
		start daemon-$node env $cuda "$build/shardd" --config "$dir/$node.conf"
	done
	for node in a b; do
		wait_for_socket $node
		wait_for_link $node
	done
}

stop_daemons()
{
	local node

	for node in a b; do
		kill -TERM "${pid_of[daemon-$node]}"
	done
	for node in a b; do
		finish daemon-$node
	done
}
