#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_gpt.sh BUILD: trains the example model with gpt, with gpt-cuda, and with one of each, on the
# driver library of tests/cuda, whose kernels run on the processor. Each operation of the kernels
# rounds once and in the order of gpt, so the losses, the norms, the weights and the moments must be
# the same to the last bit. So they must be where gpt-cuda reads weights and writes gradients in
# memory that the daemons have on the GPU. Then gpt-cuda without a GPU, without kernels, without such
# memory, and on a device that fails: it ends with a sentence.
name=cuda_gpt
build=$(cd "${1:?usage: cuda_gpt.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.." || exit 1
[ "$(cat "$build/with-cuda")" != no ] || { echo "ok cuda_gpt: skipped, CUDA=0"; exit 0; }
# The daemons have two devices, for the models that say tier=gpu. That library takes anything for kernels.
TIER=gpu
export SHARDD_GPU_KERNELS=$build/tests/cuda/libcuda.so.1
. tests/demo/cluster.sh

model=(--layers 2 --dim 32 --heads 4 --seq 20 --batch 5 --steps 6 --seed 3 --world 2
	--settings "optimizer=adamw lr=6e-3 clip=1.0 chunk_elems=4096")
gpu=(env "LD_LIBRARY_PATH=$build/tests/cuda" FAKE_CUDA_DELAY_US=30 "$build/gpt-cuda" --kernels Makefile)
cpu=("$build/gpt")

# trains NAME PROGRAM PROGRAM OPTION...: two ranks, whose programs are cpu or gpu.
trains()
{
	local what=$1 rank node=(a b) programs=("$2" "$3")
	shift 3
	for rank in 0 1; do
		local -n program=${programs[rank]}
		start "$what-$rank" "${program[@]}" --address "unix:$dir/${node[rank]}.sock" --data "$dir/text" "${model[@]}" --name "$what" \
			--rank-hint $rank --log "$dir/$what-$rank.log" --dump "$dir/$what.dump" "$@"
	done
	finish "$what-0"
	finish "$what-1"
	# What a step took differs.
	cat "$dir/$what"-?.log | sed 's/ attempts=.*//' >"$dir/$what.steps"
	[ "$(wc -l <"$dir/$what.steps")" = 12 ] || fail "$what has $(wc -l <"$dir/$what.steps") lines of steps instead of 12"
}

# same NAME NAME: the two runs are equal.
same()
{
	cmp -s "$dir/$1.steps" "$dir/$2.steps" || fail "steps of $1 and $2 differ: $(diff "$dir/$1.steps" "$dir/$2.steps" | head -4)"
	diff -rq "$dir/$1.dump" "$dir/$2.dump" >"$dir/diff" || fail "$(head -1 "$dir/diff")"
}

text
start_daemons
for dtype in bf16 fp16 fp32; do
	trains "cpu-$dtype" cpu cpu --dtype "$dtype" --norm-dtype fp32
	trains "gpu-$dtype" gpu gpu --dtype "$dtype" --norm-dtype fp32
	same "cpu-$dtype" "gpu-$dtype"
done
trains mixed gpu cpu --dtype bf16 --norm-dtype fp32
same cpu-bf16 mixed
there=(--device-image --settings "optimizer=adamw lr=6e-3 clip=1.0 chunk_elems=4096 tier=gpu")
trains image gpu gpu --dtype bf16 --norm-dtype fp32 "${there[@]}"
same cpu-bf16 image
for node in a b; do
	grep -q 'event=device_image model=image' "$dir/daemon-$node.out" || fail "node $node has no image on a GPU"
done
for dtype in bf16 fp32; do
	trains "arena-$dtype" gpu gpu --dtype "$dtype" --norm-dtype fp32 --device-arena "${there[@]}"
	same "cpu-$dtype" "arena-$dtype"
	for node in a b; do
		grep -q "event=device_grads model=arena-$dtype" "$dir/daemon-$node.out" || fail "node $node has no gradients on a GPU"
	done
done
[ -n "$(find "$dir/mixed.dump" -type f -size +1k)" ] || fail "nothing was dumped"

# ends WHAT TEXT VARIABLE... -- OPTION...: gpt-cuda fails and says so.
ends()
{
	local what=$1 want=$2 with=()
	shift 2
	while [ "$1" != -- ]; do with+=("$1"); shift; done
	shift
	if paced 60 env "LD_LIBRARY_PATH=$build/tests/cuda" FAKE_CUDA_DELAY_US=30 "${with[@]}" "$build/gpt-cuda" --address "unix:$dir/a.sock" \
		--data "$dir/text" "${model[@]}" --world 1 --name "$what" "$@" >"$dir/$what.out" 2>&1; then
		fail "$what: it trains"
	fi
	grep -qE "^gpt-cuda: .*$want" "$dir/$what.out" || fail "$what: it says: $(tail -1 "$dir/$what.out")"
}
ends no-gpu 'no GPU is visible' FAKE_CUDA_DEVICES=0 -- --kernels Makefile
ends no-kernels 'kernels .*/none: .*make fatbin' A=b -- --kernels "$dir/none"
ends no-memory 'cuMemAlloc.* the device, or the memory' 'FAKE_CUDA_FAIL=cuMemAlloc_v2 2 2' -- --kernels Makefile
ends lost-device 'step: SHARD_CLOSED: .*CUDA_ERROR_ILLEGAL_ADDRESS' 'FAKE_CUDA_FAIL=cuStreamSynchronize 3 700' -- --kernels Makefile
ends lost-copy 'step: SHARD_CLOSED: .*CUDA_ERROR_LAUNCH_FAILED' 'FAKE_CUDA_FAIL=cuEventRecord 9 719' -- --kernels Makefile
ends no-arena 'device-arena: .*has no chunk of the model' A=b -- --kernels Makefile --device-arena
ends no-image 'has no chunk of the model' A=b -- --kernels Makefile --device-image
ends broken 'break is for gpt alone' A=b -- --kernels Makefile --break 2
stop_daemons
echo "ok cuda_gpt: gpt and gpt-cuda have the same losses, weights and moments"
