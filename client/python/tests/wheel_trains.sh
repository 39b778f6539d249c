#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel_trains.sh WHEEL DIR PYTHON...: `make check-wheel` runs it. For each interpreter it makes an
# environment below DIR, installs the wheel and trains there, with the example nanogpt.py, too.
# TORCH is the version of torch that pip installs; without it the interpreter has torch itself.
# Nothing of this repository and no shardd is in the environment or in PATH.
set -eu
wheel=$(realpath "${1:?usage: wheel_trains.sh WHEEL DIR PYTHON...}") dir=$(realpath -m "$2")
shift 2
tests=$(cd "$(dirname "$0")" && pwd)
fail()
{
	echo "check-wheel: $*" >&2
	exit 1
}
[ $# -gt 0 ] || fail "no interpreter is given: PYTHONS=\"python3.10 /path/to/python3.13\""
# All of them are looked at before the first one trains: no run ends well without one of them.
pythons=()
for python; do
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
		fail "$python is not there, or is not Python 3.10 or later"
	[ -n "${TORCH-}" ] || "$python" -c 'import torch' ||
		fail "$python has no torch: say TORCH=version, or give an interpreter that has it"
	# Not resolved: what an environment has is found by the name of its python3.
	pythons+=("$(realpath -s "$(command -v "$python")")")
done
rm -rf "$dir"
mkdir -p "$dir"
cp "$tests/wheel_trains.py" "$tests/../examples/nanogpt.py" "$dir"
cd "$dir"
n=0
for python in "${pythons[@]}"; do
	n=$((n + 1)) env=$dir/$n
	"$python" -m venv "$env" || fail "$python cannot make an environment: it needs its venv module"
	here=$("$env/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	if [ -n "${TORCH-}" ]; then
		"$env/bin/python3" -m pip install --quiet --disable-pip-version-check "torch==$TORCH" ||
			fail "pip could not install torch $TORCH for $python"
	else
		"$python" -c 'import sys, torch; print(sys.modules["torch"].__path__[0][:-len("/torch")])' \
			>"$here/torch.pth"
	fi
	"$env/bin/python3" -m pip install --quiet --disable-pip-version-check "$wheel" ||
		fail "pip could not install the wheel for $python"
	for program in wheel_trains.py 'nanogpt.py --steps 10'; do
		env -i PATH="$env/bin" HOME="$dir" OMP_NUM_THREADS=1 "$env/bin/python3" -m torch.distributed.run \
			--nproc-per-node 2 $program || fail "$program did not train with $python"
	done
	"$env/bin/python3" -c 'import sys, torch
print(f"wheel: trained with Python {sys.version.split()[0]} and torch {torch.__version__}")'
done
echo "wheel: $n of $n environments trained"
