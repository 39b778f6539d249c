# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh; vm.sh says what the words mean.
# b.sh: two guests on a wire: a daemon on each, RDMA between them, and what happens when it ends
ip_a=10.9.0.1 ip_b=10.9.0.2
model=(--layers 1 --dim 32 --heads 2 --seq 32 --batch 9 --world 2)
data=/tmp/text

must "two guests" guest_pair a b
for g in a b; do
	must "a text for $g" on $g "find /usr/share/common-licenses -type f -print0 | LC_ALL=C sort -z | xargs -0 cat >$data; cp $data /vm/job/text"
done
must "a secret" "$VM_HERE/shardctl" secret new "$here/secret"

# --- daemons and trainers ---

daemon() # NODE: starts it; its log is this machine's $(job NODE)/daemon
{
	on "$1" "setsid $VM_SEES/shardd --config /tmp/shardd.conf >>/vm/job/daemon 2>&1 </dev/null & echo \$! >/tmp/daemon.pid"
	await "daemon $1's socket" on "$1" "test -S /tmp/shardd.sock"
}

daemons() # TRANSPORT: fresh ones on both
{
	local g

	for g in a b; do
		on $g 'kill -9 $(cat /tmp/*.pid 2>/dev/null) 2>/dev/null; rm -rf /tmp/state /tmp/shardd.sock /vm/job/daemon /vm/job/trainer* /vm/job/dump; mkdir /tmp/state; ulimit -l'
		cp "$here/secret" "$(job $g)/secret"
		cat >"$(job $g)/conf" <<-END
			[daemon]
			node = $g
			http = 127.0.0.1:29701
			socket = /tmp/shardd.sock
			state = /tmp/state
			memory = 256MiB
			[net]
			transport = $1
			[cluster]
			secret = /tmp/secret
			heartbeat_timeout = ${BEAT:-60s}
			[nodes]
			a = $ip_a:29700
			b = $ip_b:29700
		END
		on $g 'cp /vm/job/conf /tmp/shardd.conf; install -m 600 /vm/job/secret /tmp/secret'
	done
	daemon a
	daemon b
	for g in a b; do
		await "link_up in daemon $g's log" grep -q event=link_up "$(job $g)/daemon"
	done
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

# A trainer of so many steps, until it ends; rank 0 is on a and writes the weights. `trainer a 10 & ...; wait $!`
trainer() # NODE STEPS
{
	ON_S=${ON_S:-240} on "$1" "echo \$\$ >/tmp/trainer.pid; exec $VM_SEES/gpt --data $data ${model[*]} --steps $2 --rank-hint $([ "$1" = a ] && echo 0 || echo 1) \
		--address unix:/tmp/shardd.sock --log /vm/job/trainer.log --dump /vm/job/dump >>/vm/job/trainer 2>&1"
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

# the trainers' weights and moments are those of one process here
exact() # STEPS
{
	local of="$here/reference-$1"

	[ -d "$of" ] || "$VM_HERE/reference" --data "$(job a)/text" "${model[@]}" --steps "$1" --nodes 1,1 --log "$of.log" --dump "$of" >"$of.out" 2>&1
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
	on a 'ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 50' >"$here/bw" &
	on b 'sleep 2; ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 50 10.9.0.1' | awk '$1 == 65536 { bw = $4 } END { print bw " MB/s"; exit !(bw > 0) }'
	wait $!
}
t wire "ib_write_bw from guest to guest" wire

train() # TRANSPORT
{
	local pids=()

	daemons "$1"
	trainer a 10 & pids+=($!)
	trainer b 10 & pids+=($!)
	ended "${pids[@]}"
	carried a "$1"
	carried b "$1"
	exact 10
}
t train_tcp "two nodes train over TCP" train tcp
t train_rdma "two nodes train over RDMA" train rdma

trainer_kill()
{
	local first second

	daemons rdma
	trainer a 40 & first=$!
	trainer b 40 & second=$!
	await "step 10" step_is a 10
	on b 'kill -9 $(cat /tmp/trainer.pid)'
	! wait $second
	trainer b 40 & second=$!
	ended $first $second
	carried a rdma
	exact 40
}
t trainer_kill "a trainer is killed and comes again" trainer_kill
