#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh RELEASE OUT: builds the wheel of client/python/src/shardd with libshard and shardd
# inside, and prints its name. What Debian has as .a is linked into both: libuv, inih, jansson,
# protobuf-c. libmicrohttpd needs gnutls, which has parts without .a: auditwheel puts these beside
# the package. A daemon in a wheel is for one machine and one user, so RDMA, etcd and systemd are
# left out. It needs Python with setuptools, wheel and auditwheel, and patchelf: PYTHON names it.
set -eu
release=${1:?usage: wheel.sh RELEASE OUT} out=${2:?usage: wheel.sh RELEASE OUT}
python=${PYTHON:-python3} here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd) build=build/wheel
cd "$here/../.."
fail()
{
	echo "wheel: $*" >&2
	exit 1
}
[ -f "$here/src/shardd/__init__.py" ] ||
	fail "client/python/src/shardd is not there: nothing to put into a wheel"
"$python" -c 'import setuptools, wheel, auditwheel' 2>/dev/null ||
	fail "$python has no setuptools, wheel or auditwheel: install them, as by pip into a" \
		"virtual environment"
"${MAKE:-make}" --no-print-directory B=$build RDMA=0 ETCD=0 SYSTEMD=0 \
	LIBS_PROTO=-l:libprotobuf-c.a LIBS_CLIENT='-l:libprotobuf-c.a -Wl,--exclude-libs,ALL' \
	LIBS_DAEMON='-l:libuv_a.a -l:libinih.a -l:libjansson.a -lmicrohttpd -lgnutls -lm' \
	$build/shardd $build/libshard.so.0 $build/libshard-tls.so.0 $build/libshard-cuda.so.0 >&2
stage=$(mktemp -d "${TMPDIR:-/tmp}/shardd-wheel.XXXXXX")
trap 'rm -rf "$stage"' EXIT
cp -r "$here/pyproject.toml" "$here/setup.py" "$here/src" "$stage"
find "$stage/src" -name __pycache__ -prune -exec rm -rf {} +
# The library looks for the daemon in ../bin.
native=$stage/src/shardd/_native
mkdir -p "$native/lib" "$native/bin"
strip -o "$native/lib/libshard.so.0" $build/libshard.so.0
# libshard looks for it beside itself, where a trainer asks for TLS. It loads the system's OpenSSL.
strip -o "$native/lib/libshard-tls.so.0" $build/libshard-tls.so.0
# It finds libshard beside it, and the driver's libcuda.so.1 at run time.
strip -o "$native/lib/libshard-cuda.so.0" $build/libshard-cuda.so.0
PATH=$(dirname "$(command -v "$python")"):$PATH \
	patchelf --set-rpath '$ORIGIN' "$native/lib/libshard-cuda.so.0"
strip -o "$native/bin/shardd" $build/shardd
chmod 755 "$native/bin/shardd"
cd "$stage"
SHARD_RELEASE=$release "$python" -m pip -q wheel --no-deps --no-build-isolation -w dist . >&2
PATH=$(dirname "$(command -v "$python")"):$PATH \
	"$python" -m auditwheel repair -w "$out" dist/*.whl >&2
echo "$out/$(ls -t "$out" | head -1)"
