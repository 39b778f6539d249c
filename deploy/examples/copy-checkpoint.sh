#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program for [daemon] checkpoint_hook: copies a checkpoint to an object store, by rclone, or to
# s3://BUCKET/... by the AWS command line. Change the first line, put it to
# /etc/shardd/copy-checkpoint, and make it executable.
#
#   copy-checkpoint copy /srv/checkpoints/global_step812        what the daemon calls
#   copy-checkpoint fetch gpt /srv/checkpoints global_step812   brings one of the model gpt back,
#                             before a restore; a fourth word is another folder to bring it to
#
# In the store it is TO/MODEL/FOLDER/TAG, so that neither two models in one folder nor two folders
# with one name meet. Clusters that use the same names and folders each need a TO of their own.
#
# The daemon's user has no home directory. What rclone has to know lies in a file of its own, which
# that user can read. For AWS, credentials come from the machine's role, or from
# AWS_SHARED_CREDENTIALS_FILE in the daemon's unit. Uploads of large files are in parts.
# manifest.json is removed first and goes last, so what has one in the store is whole, also where a
# tag is saved anew. Links are left out: they may lead to anything that this user reads.
set -eu
to=${SHARDD_COPY_TO:-store:bucket/shardd}
export RCLONE_CONFIG="${RCLONE_CONFIG:-/etc/shardd/rclone.conf}"
echo 0 >/proc/self/oom_score_adj 2>/dev/null || : # the daemon's is not for this

# put and get: a file. put_all: a folder without its manifest. get_all: a folder. del: a manifest,
# if it is there.
case $to in
s3://*)
	s3() { aws s3 --only-show-errors "$@"; }
	put() { s3 cp --no-follow-symlinks "$1" "$2"; }
	put_all() { s3 cp --recursive --no-follow-symlinks --exclude manifest.json --exclude '.copied*' "$1" "$2"; }
	get() { s3 cp "$1" "$2"; }
	get_all() { s3 cp --recursive "$1" "$2"; }
	del() { s3 rm "$1/manifest.json"; }
	;;
*)
	clone() { rclone --retries 5 --log-level ERROR --checksum --skip-links "$@"; }
	put() { clone copyto "$1" "$2"; }
	put_all() { clone copy --exclude /manifest.json --exclude '/.copied*' "$1" "$2"; }
	get() { clone copyto "$1" "$2"; }
	get_all() { clone copy "$1" "$2"; }
	# It is 3 where there is no such folder yet.
	del() { clone delete --max-depth 1 --include /manifest.json "$1" || [ $? = 3 ]; }
	;;
esac

same() # FOLDER SUM: is it still the checkpoint that was begun?
{
	[ ! -L "$1/manifest.json" ] && [ "$(cksum <"$1/manifest.json")" = "$2" ] && return 0
	echo "$1: it was saved anew meanwhile" >&2
	return 1
}

case ${1:-} in
copy)
	store=$to/$SHARDD_MODEL/${2#/}
	was=$(cksum <"$2/manifest.json")
	del "$store"
	put_all "$2" "$store"
	same "$2" "$was"
	put "$2/manifest.json" "$store/manifest.json"
	;;
fetch)
	from=${3#/} into=${5:-$3}
	from=${from%/}
	# It has its name when it is whole, as what the daemon writes.
	get "$to/$2/$from/$4/manifest.json" "$into/.fetch-$4/manifest.json"
	get_all "$to/$2/$from/$4" "$into/.fetch-$4"
	mv -T "$into/.fetch-$4" "$into/$4"
	echo "$4" >"$into/.fetch-latest"
	mv -T "$into/.fetch-latest" "$into/latest"
	;;
*)
	echo "usage: $0 copy FOLDER/TAG | fetch MODEL FOLDER TAG [INTO]" >&2
	exit 2
	;;
esac
