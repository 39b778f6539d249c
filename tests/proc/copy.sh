#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# copy.sh: tries deploy/examples/copy-checkpoint.sh with an rclone and an aws that keep the store in
# a folder. Models and folders do not meet in the store, what has a manifest there is whole, also
# where a tag is saved anew and the copy is cut short, links stay out, and what is fetched is what
# was saved. Where rclone is installed, the script is tried with it too.
# shellcheck disable=SC2317 # is() calls the functions.
set -u
cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-copy.XXXXXX")
trap 'rm -rf "$dir"' EXIT
real=$(command -v rclone)
script=deploy/examples/copy-checkpoint.sh
checks=0 wrong=0
mkdir "$dir/bin"

# Both know the words that the scripts use, and no others. The file "cut" ends a copy of many files
# after the first, and "anew" is run after it.
cat >"$dir/bin/rclone" <<'END'
#!/usr/bin/env bash
store=$(dirname "$0")/../store links=all
excludes=() args=()
while [ $# -gt 0 ]; do
	case $1 in
	--retries | --log-level) shift ;;
	--checksum) ;;
	--skip-links | --no-follow-symlinks) links=none ;;
	--exclude) excludes+=("${2#/}") && shift ;;
	--only-show-errors | --recursive | s3) [ "$1" != --recursive ] || recursive=1 ;;
	--max-depth) shift ;;
	--include) only=${2#/} && shift ;;
	--*) echo "$1: not known" >&2 && exit 9 ;;
	*) args+=("$1") ;;
	esac
	shift
done
at()
{
	case $1 in
	store:*) echo "$store/${1#store:}" ;;
	s3://*) echo "$store/${1#s3://}" ;;
	*) echo "$1" ;;
	esac
}
verb=${args[0]} from=$(at "${args[1]}") to=$(at "${args[2]:-}")
one() { { [ -L "$from$1" ] && [ $links = none ]; } || { mkdir -p "$(dirname "$to$1")" && cp "$from$1" "$to$1"; }; }
many()
{
	local f x
	while read -r f; do
		for x in "${excludes[@]}"; do
			# shellcheck disable=SC2053
			[[ $f != $x ]] || continue 2
		done
		one "/$f" || return 1
		[ ! -e "$store.cut" ] || exit 7
	done < <(cd "$from" && find . ! -type d -printf '%P\n' | sort)
	[ ! -e "$store.anew" ] || . "$store.anew"
}
case $(basename "$0")-$verb${recursive:+-many} in
rclone-copy | aws-cp-many) many ;;
rclone-copyto | aws-cp) one "" ;;
rclone-delete) [ -d "$from" ] || exit 3 && rm -f "$from/${only:?}" ;;
aws-rm) rm -f "$from" ;;
*) echo "$verb: not known" >&2 && exit 9 ;;
esac
END
chmod +x "$dir/bin/rclone"
cp "$dir/bin/rclone" "$dir/bin/aws"

is() # WHAT COMMAND...
{
	local what=$1 said
	shift
	checks=$((checks + 1))
	said=$("$@" 2>&1) && return 0
	wrong=$((wrong + 1))
	echo "not ok copy: $SHARDD_COPY_TO: $what: $said"
}
no() { ! "$@"; }
save() # FOLDER TAG TEXT
{
	mkdir -p "$1/$2/client"
	echo "$3" | tee "$1/$2/part" "$1/$2/client/0" "$1/$2/zlast" >"$1/$2/manifest.json"
	: >"$1/$2/.copied"
}
copy() { SHARDD_MODEL=$1 sh "$script" copy "$2"; }
fetch() { sh "$script" fetch "$@"; }
same() { diff -r --exclude .copied "$1" "$2"; }

try() # STORE [real]
{
	local a=$dir/jobs/a/ckpt b=$dir/jobs/b/ckpt at=$dir/store f
	export SHARDD_COPY_TO=$1
	rm -rf "$dir/jobs" "$at"
	mkdir -p "$dir/back" "$at"
	save "$a" step1 gpt
	save "$b" step1 other
	is "a first copy" copy gpt "$a/step1"
	is "of a folder of the same name" copy gpt "$b/step1"
	save "$a" step1 bert
	is "of another model in that folder" copy bert "$a/step1"
	is "a store with all three" [ "$(find "$at" -name manifest.json | wc -l)" = 3 ]
	is "a store without marks" [ "$(find "$at" -name '.copied*' | wc -l)" = 0 ]
	for f in "gpt $a gpt" "gpt $b other" "bert $a/ bert"; do
		read -r model from text <<<"$f"
		rm -rf "$dir/back" "$dir/want"
		mkdir "$dir/back"
		save "$dir/want" step1 "$text"
		is "a fetch of $model from $from" fetch "$model" "$from" step1 "$dir/back"
		is "what was saved" same "$dir/want/step1" "$dir/back/step1"
		is "latest" [ "$(cat "$dir/back/latest")" = step1 ]
	done
	rm -rf "$b/step1"
	is "a fetch to where it was" fetch gpt "$b" step1
	is "what was there" grep -qx other "$b/step1/zlast"
	is "no fetch of what is not in the store" no fetch bert "$b" step1

	# A tag that is saved anew.
	save "$a" step1 newer
	if [ -z "${2:-}" ]; then
		: >"$dir/store.cut"
		is "a copy that is cut short" no copy gpt "$a/step1"
		is "no manifest beside it" [ "$(find "$at" -name manifest.json | wc -l)" = 2 ]
		is "no fetch of it" no fetch gpt "$a" step1 "$dir/back"
		rm "$dir/store.cut"
		echo "echo newest >$a/step1/manifest.json" >"$dir/store.anew"
		is "a copy while it is saved anew" no copy gpt "$a/step1"
		is "no manifest beside that" [ "$(find "$at" -name manifest.json | wc -l)" = 2 ]
		rm "$dir/store.anew"
	fi
	ln -s /etc/passwd "$a/step1/link"
	is "the next copy" copy gpt "$a/step1"
	is "all three again" [ "$(find "$at" -name manifest.json | wc -l)" = 3 ]
	is "no link, and not what it leads to" [ "$(find "$at" -name link | wc -l)" = 0 ]
	rm "$a/step1/link" "$a/step1/manifest.json"
	ln -s "$a/step1/part" "$a/step1/manifest.json"
	is "a manifest that is a link" no copy gpt "$a/step1"
	is "a call without words" no sh "$script"
}

PATH=$dir/bin:$PATH
try store:shardd
try s3://shardd
if [ -n "$real" ]; then
	rm "$dir/bin/rclone"
	hash -r
	export RCLONE_CONFIG=/dev/null
	try "$dir/store" real
fi
echo "copy: $checks checks, $wrong wrong"
exit $((wrong > 0))
