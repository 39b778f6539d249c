# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh; vm.sh says what the words mean.
# b.sh: two guests on a wire: a daemon on each, RDMA between them, and what happens when it ends
ip_a=10.9.0.1 ip_b=10.9.0.2
model=(--layers 1 --dim 32 --heads 2 --seq 32 --batch 9 --world 2 --settings chunk_elems=4096) # six chunks, on both nodes
data=/vm/job/text

must "two guests" guest_pair a b
find /usr/share/common-licenses -type f -print0 | LC_ALL=C sort -z | xargs -0 cat >"$here/text"
must "the nodes' secret" "$VM_HERE/shardctl" secret new "$here/secret"

# --- daemons and trainers ---

daemon() # NODE: starts it; its log is this machine's $(job NODE)/daemon
{
	on "$1" "setsid $VM_SEES/shardd --config /tmp/shardd.conf >>/vm/job/daemon 2>&1 </dev/null & echo \$! >/tmp/daemon.pid"
	await "daemon $1's socket" on "$1" "test -S /tmp/shardd.sock"
}

node_files() # NODE: its text, secret and configuration
{
	cp "$here"/{text,secret,conf} "$(job "$1")/"
	on "$1" "sed 's/^node = .*/node = $1/' /vm/job/conf >/tmp/shardd.conf; install -m 600 /vm/job/secret /tmp/secret; mkdir -p /vm/job/state"
}

daemons() # TRANSPORT: fresh ones on both
{
	local g

	cat >"$here/conf" <<-END
		[daemon]
		node = a
		http = 127.0.0.1:29701
		socket = /tmp/shardd.sock
		state = /vm/job/state
		memory = 256MiB
		warm_restart = tmpfs
		[net]
		transport = $1
		[cluster]
		node_secret = /tmp/secret
		heartbeat_timeout = ${BEAT:-60s}
		[nodes]
		a = $ip_a:29700
		b = $ip_b:29700
	END
	for g in a b; do
		on $g 'kill -9 $(cat /tmp/*.pid 2>/dev/null) 2>/dev/null; rm -rf /tmp/shardd.sock /dev/shm/* /vm/job/{state,daemon,trainer*,dump}'
		on $g 'rdma link show rxe0/1 >/dev/null 2>&1 || { ip link set eth1 up && rdma link add rxe0 type rxe netdev eth1; }' # a test may have ended between
		node_files $g
	done
	daemon a
	daemon b
	for g in a b; do
		await "link_up in daemon $g's log" grep -q event=link_up "$(job $g)/daemon"
	done
	[ "$1" = tcp ] || await "rdma between the daemons" carried a rdma
}

await() # WHAT COMMAND...: until it succeeds, ${AWAIT_S:-60} s
{
	local what=$1 until=$((SECONDS + ${AWAIT_S:-60}))

	shift
	until "$@" >"$here/awaited" 2>&1; do
		if [ $SECONDS -gt $until ]; then
			echo "no $what within ${AWAIT_S:-60} s"
			cat "$here/awaited"
			told
			return 1
		fi
		pause 0.2
	done
}

told() { tail -n 15 "$(job a)"/{daemon,trainer*} "$(job b)"/{daemon,trainer*} 2>/dev/null; }

# A trainer of so many steps, until it ends; rank 0 is on a and writes the weights. `trainer a 10 &
# ...; wait $!`
trainer() # NODE STEPS
{
	ON_S=${ON_S:-240} on "$1" "echo \$\$ >/tmp/trainer.pid; exec $VM_SEES/gpt --data $data ${model[*]} --steps $2 --rank-hint $([ "$1" = a ] && echo 0 || echo 1) \
		--address unix:/tmp/shardd.sock --log /vm/job/trainer.log --dump /vm/job/dump >>/vm/job/trainer 2>&1"
}

# The same, started again when its daemon, or the one that knows its place in the data, is away for
# a moment.
patient() # NODE STEPS
{
	local i

	for i in 1 2 3 4 5 6 7 8 9 10; do
		! trainer "$1" "$2" || return 0
		tail -n 1 "$(job "$1")/trainer" | grep -E 'SHARD_(BAD_STATE|CLOSED|UNREACHABLE): ' || break
		pause 1
	done
	return 1
}

step_of() { sed -n '$s/^step=\([0-9]*\) .*/\1/p' "$(job "$1")/trainer.log" 2>/dev/null; }
step_is() { [ "$(step_of "$1")" -ge "$2" ] 2>/dev/null; }

# what the metrics of a daemon say that carries tensors to its peer
metrics() { on "$1" 'exec 3<>/dev/tcp/127.0.0.1/29701 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3'; }
carried() # NODE TRANSPORT
{
	metrics "$1" >"$here/metrics"
	grep '^shardd_.*transport.*1$' "$here/metrics" | grep "\"$2\"" || { echo "daemon $1 does not say that $2 carries tensors:"; grep transport "$here/metrics"; return 1; }
}

tensors() # NODE TRANSPORT: bytes so far, in and out
{
	metrics "$1" >"$here/metrics"
	awk -v of="transport=\"$2\"" '/^shardd_tensor_bytes_total/ && index($0, of) { n += $NF } END { printf "%d\n", n }' "$here/metrics"
}

# by NODE TRANSPORT: in this daemon's life tensors went by it; of rdma's by tcp too, what was sent
# before the memory of both was registered
by()
{
	local rdma tcp

	rdma=$(tensors "$1" rdma)
	tcp=$(tensors "$1" tcp)
	echo "daemon $1: $rdma bytes of tensors by rdma, $tcp by tcp"
	case $2 in
	tcp) [ "$rdma" = 0 ] && [ "$tcp" -gt 0 ] ;;
	rdma) [ "$rdma" -gt $((3 * tcp)) ] ;;
	esac
}

# the trainers' weights and moments are those of one process here
exact() # STEPS
{
	local of="$here/reference-$1"

	[ -d "$of" ] || "$VM_HERE/reference" --data "$here/text" "${model[@]}" --steps "$1" --nodes 1,1 --log "$of.log" --dump "$of" >"$of.out" 2>&1
	"$VM_HERE/dumpcmp" "$(job a)/dump" "$of" && echo "exact, $1 steps"
}

ended() # PID...: trainers, well
{
	local p

	for p in "$@"; do
		wait "$p" || { told; return 1; }
	done
}

# --- tests ---

wire()
{
	on a 'tests/bench/write_bw.sh rxe0 1 65536 50 serve' >"$here/bw" &
	on a 'tests/bench/write_bw.sh rxe0 1 65536 50 listens'
	on b 'tests/bench/write_bw.sh rxe0 1 65536 50 10.9.1.1' | awk '$1 == 65536 { bw = $4 } END { print bw " MB/s"; exit !(bw > 0) }'
	wait $!
}
t wire "ib_write_bw from guest to guest" wire

train() # TRANSPORT
{
	local pids=()

	daemons "$1"
	trainer a 10 &
	pids+=($!)
	trainer b 10 &
	pids+=($!)
	ended "${pids[@]}"
	by a "$1"
	by b "$1"
	exact 10
}
t train_tcp "two nodes train over TCP" train tcp
t train_rdma "two nodes train over RDMA" train rdma

trainer_kill()
{
	local first second

	daemons rdma
	trainer a 40 &
	first=$!
	trainer b 40 &
	second=$!
	await "step 10" step_is a 10
	on b 'kill -9 $(cat /tmp/trainer.pid)'
	! wait $second
	trainer b 40 &
	second=$!
	ended $first $second
	by a rdma
	exact 40
}
t trainer_kill "a trainer is killed and comes again" trainer_kill

# A daemon is killed, the second node's and then the coordinator's: its trainer ends, what it held
# does not.
daemon_kill()
{
	local g first second

	daemons rdma
	patient a 40 &
	first=$!
	patient b 40 &
	second=$!
	for g in b a; do
		await "step $([ $g = b ] && echo 8 || echo 20)" step_is $g "$([ $g = b ] && echo 8 || echo 20)"
		on $g 'kill -9 $(cat /tmp/daemon.pid); rm /tmp/shardd.sock'
		daemon $g
		await "models that outlived the daemon" grep 'event=warm_start models=1' "$(job $g)/daemon"
		tail -n 1 "$here/awaited"
		await "rdma between the daemons" carried a rdma
	done
	ended $first $second
	by a rdma
	exact 40
}
t daemon_kill "a daemon is killed, and starts with what it held" daemon_kill

link_goes()
{
	local first second before

	daemons auto
	patient a 60 &
	first=$!
	patient b 60 &
	second=$!
	await "step 10" step_is a 10
	carried a rdma
	on b 'rdma link del rxe0 & ip link set eth1 down; wait' # waits until nobody has it open
	echo "rxe0 is deleted at step $(step_of a)"
	await "tcp between the daemons" carried a tcp
	await "tcp between the daemons" carried b tcp
	metrics b | grep '^shardd_rdma_failures_total.* [1-9]'
	await "step 25" step_is a 25
	on b 'kill -STOP $(cat /tmp/trainer.pid)' # the run waits
	before=$(tensors b rdma)
	on b 'ip link set eth1 up && rdma link add rxe0 type rxe netdev eth1'
	echo "rxe0 is there again at step $(step_of a)"
	await "rdma between the daemons" carried b rdma
	on b 'kill -CONT $(cat /tmp/trainer.pid)'
	ended $first $second
	[ "$(tensors b rdma)" -gt "$before" ] || { echo "RDMA came back, and carried nothing"; return 1; }
	exact 60
}
t link_goes "the RDMA link is deleted in mid-run, and comes back" link_goes

# The power of b is cut: a gives up its attempt and lives. b comes back without memory: what only it
# held is lost, and both train again.
power_cut()
{
	local first second

	BEAT=15s daemons rdma
	trainer a 1000 &
	first=$!
	trainer b 1000 &
	second=$!
	await "step 10" step_is a 10
	guest_cut b
	! wait $second
	await "end of the link in daemon a's log" grep -q 'event=link_down peer=b' "$(job a)/daemon"
	await "end of the attempt in daemon a's log" grep -q 'event=attempt_ended' "$(job a)/daemon"
	guest_again b
	node_files b
	daemon b
	await "rdma between the daemons" carried a rdma
	! wait $first
	tail -n 1 "$(job a)/trainer"
	on a "$VM_SEES/shardctl --address unix:/tmp/shardd.sock model drop gpt --force"
	rm -rf "$(job a)"/{dump,trainer*} "$(job b)"/trainer*
	trainer a 10 &
	first=$!
	trainer b 10 &
	second=$!
	ended $first $second
	exact 10
}
t power_cut "the power of one is cut" power_cut
