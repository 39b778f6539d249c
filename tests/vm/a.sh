# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh; vm.sh says what the words mean.
# a.sh: one guest: RDMA on real verbs, the demo over it, bits as on this machine
demo=(--layers 1 --dim 32 --steps 10) # and what tests/demo/exact.sh has
slow="[cluster]
heartbeat_timeout = 60s"

must "a guest" guest_run g

devices() { on g ibv_devinfo -d rxe0 | tee "$here/devices" | grep -q PORT_ACTIVE && echo "rxe0: PORT_ACTIVE"; }
t devices "verbs know a device" devices

# That it ends well and has a line is what counts: beside a load an emulated processor's clock gave
# 0.00 MB/s.
write_bw()
{
	set -o pipefail
	on g 'tests/bench/write_bw.sh rxe0 1 65536 50' |
		awk '$1 == 65536 { bw = $4 } END { print bw " MB/s"; exit bw == "" }'
}
t write_bw "ib_write_bw between two processes" write_bw

demo_in() # GUEST|here FOLDER CONF
{
	mkdir -p "$(job g)/$2"
	case $1 in
	here) CONF=$3 OUT=$(job g)/$2 tests/demo/exact.sh "$VM_HERE" 1,1 "${demo[@]}" ;;
	*) ON_S=300 on g "SLOW=10 CONF='$3' OUT=/vm/job/$2 tests/demo/exact.sh $VM_SEES 1,1 ${demo[*]}" ;;
	esac
}
isa() { sed -n 's/.* isa=\([^ ]*\).*/\1/p' "$(job g)/$1/daemon-a.out"; }
same() { "$VM_HERE/dumpcmp" "$(job g)/$1/daemons" "$(job g)/$2/daemons"; }

demo_tcp()
{
	demo_in g tcp "$slow"
	[ "$(isa tcp)" = avx2 ] || { echo "the guest computes with $(isa tcp), not with AVX2"; return 1; }
	echo "demo: exact"
}
t demo_tcp "the demo over TCP" demo_tcp

bits_host()
{
	demo_in here host ""
	[ -d "$(job g)/tcp" ] || demo_in g tcp "$slow"
	same tcp host
	echo "$(isa tcp) there, $(isa host) here"
}
t bits_host "the guest's bits are this machine's" bits_host

demo_rdma()
{
	demo_in g rdma "$slow
[net]
transport = rdma"
	grep -h 'event=rdma_up' "$(job g)"/rdma/daemon-?.out
	[ -d "$(job g)/tcp" ] || demo_in g tcp "$slow"
	same rdma tcp
	echo "demo: exact, the bits of TCP"
}
t demo_rdma "the demo over RDMA" demo_rdma

# shellcheck disable=SC2086 # several words
programs g $VERBS

# Against ib_write_bw with 1 MiB, in the same guest: without sums at least 0.80 of it. Software
# emulation has no speed of its own: two guest processors share what the machine leaves them, and
# the same code was seen between 0.4 and 1.25, as what ran beside it wanted. There the ratios are
# printed and not judged; that RDMA is the way is what the other tests of this part say.
bench()
{
	local least=0.80

	set -o pipefail
	[[ $VM_ACCEL = *kvm* ]] || least=0
	ON_S=500 on g "$VM_SEES/tests/bench/bench_rdma" | tee "$here/bench"
	awk -v least=$least '/^bench: rdma_(push|pull) / { n++; if ($8 < least) low = low " " $2 } /^bench: rdma_/ { said = said " " substr($2, 6) " " $8 }
		END { print "ratios:" said (low ? "; below " least ":" low : ""); exit n != 2 || low != "" }' "$here/bench"
}
t rdma_bench "rdma_push, rdma_pull beside ib_write_bw" bench
