# SPDX-License-Identifier: Apache-2.0
# service.sh: what the tests of part c do inside the guest, where shardd is a service of systemd,
# installed from its packages. c.sh sources it there, with $build and $job set. The user alice is in
# the group shardd, and bob is not. Trainers are the example gpt, run by alice: one layer, dim 32
# and 12 steps unless a test says otherwise. What they dump at their end is compared on the host.
# The first command that fails ends the test. What it said, the unit's status and the end of its
# journal are the evidence.
set -eEuo pipefail
conf=/etc/shardd/shardd.conf
state=/var/lib/shardd
work=/var/tmp/work
model=(--data "$job/text" --layers 1 --dim 32 --heads 2 --seq 32 --batch 4 --seed 1)
steps=12

failed() # LINE COMMAND
{
	[ "$BASH_SUBSHELL" = 0 ] || return 0
	echo "service.sh:$1: failed: $2"
	systemctl status --no-pager -n 0 shardd || :
	journalctl --no-pager -n "${LINES_SHOWN:-25}" -o short-monotonic -u shardd || :
	tail -n 5 $work/*.out 2>/dev/null || :
}
trap 'failed $LINENO "$BASH_COMMAND"' ERR

wait_for() # SECONDS WHAT COMMAND...
{
	local until=$((SECONDS + $1)) what=$2

	shift 2
	until "$@" >/dev/null 2>&1; do
		if [ $SECONDS -ge $until ]; then
			echo "not in time: $what"
			return 1
		fi
		sleep 0.1
	done
}

is() # WHAT EXPECTED FOUND
{
	[ "$2" = "$3" ] || { echo "$1: \"$3\", expected \"$2\""; return 1; }
}

has() # WHAT PATTERN, in the text on standard input
{
	local text

	text=$(cat)
	grep -qE "$2" <<<"$text" || { echo "$1: no $2 in:"; echo "$text"; return 1; }
}

prop() { systemctl show -P "$1" shardd; }

# From now on: what `since` marks and `said` looks at
since() { mark=@$(date +%s.%6N); } # --after-cursor misses the first entry that matches
journal() { journalctl --no-pager -u shardd --since "$mark" "$@"; }
said() # FIELD=VALUE... of one entry since the mark; prints the newest's text
{
	local n

	n=$(journal -o cat "$@" | tail -n 1)
	[ -n "$n" ] || { echo "the journal has no entry with $*"; return 1; }
	echo "$n"
}

users()
{
	local u

	for u in alice bob; do
		id $u >/dev/null 2>&1 || useradd -m $u
	done
}

installed() # the packages, if they are not
{
	users
	systemctl cat shardd >/dev/null 2>&1 || dpkg -i "$job"/1/*.deb >/dev/null 2>&1
	id -nG alice | grep -qw shardd || adduser -q alice shardd
}

clean() # the service as it is after an installation, without models, with all its starts before it
{
	local f changed=

	installed
	mkdir -p $work
	rm -rf $work/*
	chown alice $work
	[ -e $work.conf ] || cp $conf $work.conf
	cmp -s $work.conf $conf || { cp $work.conf $conf && changed=yes; }
	for f in /etc/systemd/system/shardd.service.d /etc/shardd/secret /etc/shardd/node_secret; do
		[ ! -e "$f" ] || { rm -rf "$f" && changed=yes; }
	done
	[ -z "$changed" ] || systemctl daemon-reload
	systemctl reset-failed shardd 2>/dev/null || :
	if [ -n "$changed" ]; then
		systemctl restart shardd
	else
		systemctl start shardd
	fi
	for f in $(shardctl model list --json | grep -o '"name": *"[^"]*"' | cut -d'"' -f4); do
		shardctl model drop "$f" --force
	done
	since
}

# --- trainers ---

train() # NAME [options of gpt]: in the background, as alice; a connection that is over begins it again, as a supervisor does
{
	local name=$1

	shift
	mkdir -p "$job/$name"
	chmod 777 "$job/$name"
	(
		for ((try = 1; try <= 50; try++)); do
			rc=0
			runuser -u alice -- env HOME=/tmp "${train_env[@]}" "$build/gpt" "${model[@]}" --name "$name" --steps "$steps" --log "$work/$name.log" \
				--dump "$job/$name" "$@" >"$work/$name.out" 2>&1 </dev/null || rc=$?
			[ $rc != 0 ] && [ -n "$again" ] && grep -qE 'SHARD_CLOSED|SHARD_UNREACHABLE' "$work/$name.out" || break
			sleep 0.5
		done
		echo $try >"$work/$name.tries"
		echo $rc >"$work/$name.ended"
	) &
}
again=
train_env=()

step_of() { sed -n 's/^.*step=\([0-9]*\) .*$/\1/p' "$work/$1.log" 2>/dev/null | tail -n 1; }
reached() { [ "$(step_of "$1" || :)" -ge "$2" ]; }

ended() # NAME STATUS [SECONDS]
{
	wait_for "${3:-90}" "$1 ends (it is at step $(step_of "$1" || :))" test -s "$work/$1.ended"
	is "status of trainer $1 ($(tail -n 1 "$work/$1.out"))" "$2" "$(cat "$work/$1.ended")"
}

# --- the tests: each is told of in c.sh ---

install_packages()
{
	users
	ss -Hltnu | awk '{ print $1, $5 }' | sort >/tmp/before
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$job"/1/*.deb 2>&1 | tail -n 15
	adduser -q alice shardd
	dpkg -s shardd | has "shardd's state" '^Status: install ok installed'
	dpkg --audit
	ss -Hltnu | awk '{ print $1, $5 }' | sort | comm -13 /tmp/before - >/tmp/opened
	! grep -v '^tcp 127\.0\.0\.1:' /tmp/opened || { echo "a port is open to others"; return 1; }
	echo "opened: $(paste -sd, /tmp/opened)"
}

ready()
{
	installed
	is "enabled" enabled "$(systemctl is-enabled shardd)"
	is "active" active "$(systemctl is-active shardd)"
	is "type" notify "$(prop Type)"
	is "status" "nodes 1 of 1, no models" "$(prop StatusText)"
	is "the user" "shardd shardd" "$(ps -o user=,group= -p "$(prop MainPID)" | xargs)"
	is "socket's folder" "shardd:shardd 750" "$(stat -c '%U:%G %a' /run/shardd)"
	is "socket" "shardd:shardd 660" "$(stat -c '%U:%G %a' /run/shardd/shardd.sock)"
	is "state" "shardd:shardd 750" "$(stat -c '%U:%G %a' $state)"
	is "memlock" infinity "$(prop LimitMEMLOCK)"
	grep -q '^Max locked memory *unlimited' "/proc/$(prop MainPID)/limits"
	is "adjusted OOM score" -900 "$(cat "/proc/$(prop MainPID)/oom_score_adj")"
	! journalctl --no-pager -o cat -u shardd -p warning | grep . || { echo "warnings of a fresh start"; return 1; }
	shardctl status | has "shardctl status" 'self'
	echo "enabled, READY, $(prop StatusText)"
}

service_start() # how long from the start of the process to READY
{
	local i ms=()

	installed
	for i in 1 2 3; do
		systemctl reset-failed shardd
		systemctl stop shardd
		systemctl start shardd
		ms+=($((($(prop ActiveEnterTimestampMonotonic) - $(prop ExecMainStartTimestampMonotonic)) / 1000)))
	done
	printf '%s\n' "${ms[@]}" | sort -n >/tmp/ms
	echo "service_start $(sed -n 2p /tmp/ms) ms in the guest (of $(tr '\n' ' ' </tmp/ms)), limit 10000"
	[ "$(sed -n 2p /tmp/ms)" -le 10000 ]
}

trains()
{
	clean
	train trains
	wait_for 60 "step 3" reached trains 3
	wait_for 10 "its status" eval 'prop StatusText | grep -q "models trains (step [0-9]*, world 1)"'
	prop StatusText >/tmp/status
	has "systemctl status" 'nodes 1 of 1, models trains \(step [0-9]+, world 1\)' </tmp/status
	systemctl status --no-pager -n 0 shardd | has "systemctl status" 'Status: "nodes 1 of 1, models trains'
	ended trains 0
	echo "alice trained $steps steps; status said: $(cat /tmp/status)"
}

refused()
{
	local rc=0

	clean
	runuser -u bob -- env HOME=/tmp "$build/gpt" "${model[@]}" --steps 2 --name bob >$work/bob.out 2>&1 || rc=$?
	is "status of a trainer that is not of the group" 1 $rc
	has "what it said" 'SHARD_UNREACHABLE: .*EACCES.*add it to the group shardd' <$work/bob.out
	rc=0
	runuser -u bob -- shardctl status >$work/ctl.out 2>&1 || rc=$?
	[ $rc != 0 ]
	runuser -u alice -- shardctl status >/dev/null
	tail -n 1 $work/bob.out
}

journal_fields()
{
	clean
	train fields --steps 3
	ended fields 0
	journal -o json SHARDD_EVENT=sealed >/tmp/json
	for f in '"SHARDD_MODEL":"fields"' '"PRIORITY":"6"' '"SYSLOG_IDENTIFIER":"shardd"' '"_SYSTEMD_UNIT":"shardd.service"' '"SHARDD_STEP":"0"' \
		'"SHARDD_NODE":"shardd-vm"' '"MESSAGE":"node=shardd-vm event=sealed model=fields'; do
		grep -qF "$f" /tmp/json || { echo "no $f in: $(cat /tmp/json)"; return 1; }
	done
	is "one entry" 1 "$(wc -l </tmp/json)"
	said SHARDD_MODEL=fields SHARDD_EVENT=world
}

another() # PID: the unit has another process, and it is ready
{
	[ "$(prop MainPID)" != 0 ] && [ "$(prop MainPID)" != "$1" ] && [ "$(prop ActiveState)" = active ]
}

resumed() # NAME: its trainer ended and was started again
{
	[ "$(cat $work/$1.tries)" -gt 1 ] || { echo "trainer $1 did not notice anything"; return 1; }
}

warm() # since the mark: a start took the models over, and none was lost
{
	! journal -o cat SHARDD_EVENT=lost | grep .
	! journal -o cat SHARDD_EVENT=cold_start | grep .
	said SHARDD_EVENT=warm_start
}

killed() # kill -9 in mid-run
{
	local pid

	clean
	again=yes
	train killed --steps 60
	wait_for 60 "step 4" reached killed 4
	pid=$(prop MainPID)
	kill -9 "$pid"
	wait_for 30 "a new process" another "$pid"
	echo "step $(step_of killed) when it was back"
	ended killed 0 200
	resumed killed
	is "restarts" 1 "$(prop NRestarts)"
	warm
}

watchdog() # a process that stands still
{
	local pid began

	clean
	again=yes
	train watched --steps 60
	wait_for 60 "step 4" reached watched 4
	pid=$(prop MainPID)
	kill -STOP "$pid"
	began=$SECONDS
	wait_for 90 "a new process" another "$pid"
	began=$((SECONDS - began))
	ended watched 0 200
	resumed watched
	journal -o cat | has "the journal" 'Watchdog timeout'
	is "restarts" 1 "$(prop NRestarts)"
	warm
	echo "restarted by the watchdog after $began s; went on to step $(step_of watched)"
}

held() # a restart with a file that is wrong: the models wait until it is right
{
	local pid

	clean
	pid=$(prop MainPID)
	again=yes
	train held --steps 60
	wait_for 60 "step 4" reached held 4
	printf '[daemon]\nlog_level = loud\n' >>$conf
	systemctl restart --no-block shardd
	wait_for 60 "what it says" eval 'prop StatusText | grep -q "models are kept: .*shardd.conf:[0-9]*: .daemon. log_level = loud"'
	prop StatusText
	is "it waits" activating "$(prop ActiveState)"
	cp $work.conf $conf
	systemctl restart shardd
	another "$pid"
	ended held 0 200
	resumed held
	warm
}

reload_bad()
{
	local pid

	clean
	pid=$(prop MainPID)
	train reload --steps 6
	printf '[daemon]\nlog_level = loud\n' >>$conf
	systemctl reload shardd
	wait_for 20 "the refusal" said SHARDD_EVENT=reload_failed
	said SHARDD_EVENT=reload_failed | has "the refusal" 'shardd.conf:[0-9]+: \[daemon\] log_level = loud: choose error, warn, info or debug'
	is "priority" 3 "$(journal -o json SHARDD_EVENT=reload_failed | grep -o '"PRIORITY":"[0-9]"' | cut -d'"' -f4)"
	is "the process" "$pid" "$(prop MainPID)"
	is "active" active "$(systemctl is-active shardd)"
	sed -i 's/^log_level = loud/log_level = debug/' $conf
	systemctl reload shardd
	wait_for 20 "the reload" said SHARDD_EVENT=reload
	said SHARDD_EVENT=reload | has "the reload" 'taken=daemon.log_level'
	ended reload 0
	is "the process" "$pid" "$(prop MainPID)"
	said SHARDD_EVENT=reload_failed
}

# `systemctl stop` in the middle of a step: tests/vm/phases.c
staging()
{
	clean
	"$build/tests/vm/phases" staging 2>&1
	is "active" inactive "$(prop ActiveState)"
	is "result" success "$(prop Result)"
	said SHARDD_EVENT=stopped >/dev/null
	said SHARDD_EVENT=stopping SHARDD_MODEL=phases | has "the journal" 'not decided, it is aborted'
	said SHARDD_EVENT=stopping SHARDD_MODEL=phases
}

applying()
{
	clean
	"$build/tests/vm/phases" applying 2>&1
	wait_for 30 "the stop" eval '[ "$(systemctl is-active shardd)" = inactive ]'
	is "result" success "$(prop Result)"
	said SHARDD_EVENT=stopped >/dev/null
	! journal -o cat SHARDD_EVENT=stop_unfinished | grep .
	said SHARDD_EVENT=stopping SHARDD_MODEL=phases | has "the journal" 'applying: the decided step is finished first'
	said SHARDD_EVENT=stopping SHARDD_MODEL=phases
}

# A state folder of 256 KiB that is full: nobody loses anything, what needs it waits and says why; a
# start does not come to pass
full_state()
{
	clean
	systemctl stop shardd
	mount -t tmpfs -o size=256k,mode=750,uid="$(id -u shardd)",gid="$(id -g shardd)" small $state
	trap 'umount -l $state' EXIT
	systemctl start shardd
	train full
	wait_for 60 "step 3" reached full 3
	dd if=/dev/zero of=$state/fill bs=1k status=none || :
	ended full 0
	train late
	wait_for 60 "the reason" said SHARDD_EVENT=view_not_durable
	is "active" active "$(systemctl is-active shardd)"
	rm $state/fill
	ended late 0
	said SHARDD_EVENT=view_not_durable
	systemctl stop shardd
	dd if=/dev/zero of=$state/fill bs=1k status=none || :
	! systemctl start shardd
	wait_for 30 "the end of its restarts" systemctl is-failed -q shardd
	said SHARDD_EVENT=start_failed
	rm $state/fill
	systemctl reset-failed shardd
	systemctl start shardd
	systemctl stop shardd
	umount $state
	trap - EXIT
}

# --- the secret ---

tool() { shardctl --address 127.0.0.1:29700 --secret "$1" --timeout 20 status >$work/tool 2>&1; }
refuses() # SECRET
{
	local rc=0

	tool "$1" || rc=$?
	is "status of a tool with $1" 5 $rc
}

secret()
{
	local f

	clean
	shardctl secret new /etc/shardd/secret
	is "the file" "root:root 600" "$(stat -c '%U:%G %a' /etc/shardd/secret)"
	systemctl restart shardd
	said SHARDD_EVENT=secret | has "the journal" 'accepted=1'
	for f in old new other; do
		shardctl secret new $work/$f
	done
	cp /etc/shardd/secret $work/old
	install -o alice -m 600 $work/old $work/hers # a secret's file is of who uses it
	install -o alice -m 600 $work/other $work/wrong.secret
	train_env=(SHARD_ADDRESS=tcp://127.0.0.1:29700)
	train without
	train_env+=(SHARD_SECRET=$work/wrong.secret)
	train wrong
	train_env+=(SHARD_SECRET=$work/hers)
	train secret
	ended wrong 1
	has "with another secret" 'SHARD_DENIED: .*did not prove that it knows the secret' <$work/wrong.out
	ended without 1
	has "without one" 'SHARD_DENIED: .*asks over tcp for the cluster secret' <$work/without.out
	said SHARDD_EVENT=auth_refused
	ended secret 0
	# rotation: old and new, new and old, new
	cat $work/old $work/new >/etc/shardd/secret
	systemctl restart shardd
	said SHARDD_EVENT=secret | has "the journal" 'accepted=2'
	tool $work/old
	tool $work/new
	cat $work/new $work/old >/etc/shardd/secret
	systemctl restart shardd
	tool $work/old
	tool $work/new
	cp $work/new /etc/shardd/secret
	systemctl restart shardd
	tool $work/new
	refuses $work/old
	refuses $work/other
	cat $work/tool
}

# --- RDMA as the unit confines it: the service is node a, and b is a daemon without a unit ---

rdma()
{
	local b

	clean
	shardctl secret new /etc/shardd/node_secret
	install -m 600 /etc/shardd/node_secret $work/secret
	printf '%s\n' '[net]' 'transport = rdma' '[cluster]' 'heartbeat_timeout = 60s' '[nodes]' 'a = 10.9.0.1:29700' 'b = 10.9.0.1:29710' >$work/nodes
	printf '%s\n' '[daemon]' 'node = a' | cat - $work/nodes >$conf
	printf '%s\n' '[daemon]' 'node = b' 'http = off' "socket = $work/b.sock" 'socket_mode = 0666' "state = $work/b" 'memory = 256MiB' |
		sed "\$r $work/nodes" >$work/b.conf
	systemctl restart shardd
	"$build/shardd" --config $work/b.conf --set cluster.node_secret=$work/secret >$work/b.out 2>&1 &
	b=$!
	wait_for 60 "RDMA to node b" eval 'shardctl status | grep "^b .*tensors by rdma"'
	train rdma --world 2 --rank-hint 0
	train rdma_b --name rdma --world 2 --rank-hint 1 --address unix:$work/b.sock
	ended rdma 0
	ended rdma_b 0
	is "refused frames" 0 "$(shardctl status --json | grep -o '"refused_frames": *[0-9]*' | grep -o '[0-9]*$')"
	shardctl status | grep '^b '
	shardctl model drop rdma --force
	kill $b
	wait $b
	cp $work.conf $conf
}

# --- checkpoints, the guest's reboot, the packages ---

saves()
{
	clean
	rm -rf $state/checkpoints
	printf 'checkpoint_dir = %s/checkpoints\ncheckpoint_every = 2\nrestore_at_start = yes\n' $state >>$conf
	systemctl reload shardd
	wait_for 20 "the reload" said SHARDD_EVENT=reload
	train saved --steps 6
	ended saved 0
	wait_for 30 "the checkpoint of step 6" eval 'shardctl checkpoints $state/checkpoints/saved | grep -q "global_step6 "'
	shardctl checkpoints $state/checkpoints/saved
}

restored()
{
	wait_for 60 "READY after the reboot" eval '[ "$(systemctl is-active shardd)" = active ]'
	rm -f $work/*
	train saved
	ended saved 0
	is "the first step" 7 "$(sed -n '1s/^.*step=\([0-9]*\) .*$/\1/p' $work/saved.log)"
	cp $work.conf $conf
	since
	echo "READY $(($(prop ActiveEnterTimestampMonotonic) / 1000)) ms after the start of the kernel; went on with step 7"
}

upgraded()
{
	local pid version

	clean
	pid=$(prop MainPID)
	version=$(shardd --version)
	again=yes
	train upgraded --steps 200
	wait_for 60 "step 3" reached upgraded 3
	DEBIAN_FRONTEND=noninteractive dpkg -i "$job"/2/*.deb 2>&1 | tail -n 15
	echo "step $(step_of upgraded) at the end of the upgrade"
	[ ! -s $work/upgraded.ended ] || { echo "it was over before"; cat $work/upgraded.out; return 1; }
	[ "$pid" != "$(prop MainPID)" ]
	is "the version" "$version.1" "$(shardd --version)"
	said SHARDD_EVENT=start | has "the daemon's version" "release=${version#shardd }.1 "
	ended upgraded 0 300
	resumed upgraded
	warm
}

# What autopkgtest runs, as alice: the trainer of README.md is built against libshard-dev and trains
# ten steps with spawn:
spawns()
{
	installed
	rm -rf /tmp/spawns
	mkdir /tmp/spawns
	chown alice /tmp/spawns
	runuser -u alice -- env HOME=/tmp AUTOPKGTEST_TMP=/tmp/spawns sh deploy/debian/tests/train
}

removed()
{
	clean
	DEBIAN_FRONTEND=noninteractive apt-get remove -y -q shardd 2>&1 | tail -n 5
	is "the process" "" "$(pgrep -x shardd || :)"
	is "the unit" not-found "$(prop LoadState)"
	[ ! -e /run/shardd ] && [ ! -e /usr/bin/shardd ]
	[ -e $conf ] && [ -e $state/identity ] || ls -la /etc/shardd $state
	[ -e $conf ]
	[ "$(ls $state | wc -l)" -gt 0 ]
	! ss -Hltn | grep -E ':2970[01]\b'
	echo "removed; $conf and $state stay"
}

leave_traces()
{
	clean
	shardctl secret new /etc/shardd/secret
	shardctl secret new /etc/shardd/node_secret
	mkdir -p $state/checkpoints/m
	echo here >$state/checkpoints/m/file
}

purged()
{
	leave_traces
	DEBIAN_FRONTEND=noninteractive apt-get purge -y -q shardd 2>&1 | tail -n 5
	is "what is left of $state" checkpoints "$(ls -A $state)"
	is "a checkpoint" here "$(cat $state/checkpoints/m/file)"
	[ ! -e /etc/shardd ] && [ ! -e /run/shardd ] && [ ! -e /etc/systemd/system/multi-user.target.wants/shardd.service ]
	! dpkg -s shardd 2>/dev/null | grep '^Status:'
	echo "purged; $state/checkpoints is kept"
}

purged_all()
{
	leave_traces
	echo "shardd shardd/purge_checkpoints boolean true" | debconf-set-selections
	DEBIAN_FRONTEND=noninteractive apt-get purge -y -q shardd 2>&1 | tail -n 5
	[ ! -e $state ] && [ ! -e /etc/shardd ] && [ ! -e /run/shardd ]
	! debconf-show shardd | grep .
	echo "purged with the answer yes: $state is gone"
}
