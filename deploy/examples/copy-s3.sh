#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program for [daemon] checkpoint_hook: copies a checkpoint to S3 by the AWS command line. Change
# the first line, put it to /etc/shardd/copy-s3, and make it executable.
#
#   copy-s3 copy /srv/checkpoints/global_step812           what the daemon calls
#   copy-s3 fetch gpt /srv/checkpoints global_step812      brings one of the model gpt back, before
#                                  a restore; a fourth word is another folder to bring it to
#
# In the store it is TO/MODEL/FOLDER/TAG, so that neither two models in one folder nor two folders
# with one name meet. Clusters that use the same names and folders each need a TO of their own.
#
# Credentials come from the machine's role, or from AWS_SHARED_CREDENTIALS_FILE in the daemon's
# unit. Uploads of large files are in parts. manifest.json is removed first and goes last, so what
# has one in the bucket is whole, also where a tag is saved anew. Links are left out: they may lead
# to anything that this user reads.
set -eu
to=${SHARDD_COPY_TO:-s3://bucket/shardd}
echo 0 >/proc/self/oom_score_adj 2>/dev/null || : # the daemon's is not for this
s3="aws s3 --only-show-errors"

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
	$s3 rm "$store/manifest.json" # Also where there is none, this is no error.
	$s3 cp --recursive --no-follow-symlinks --exclude manifest.json --exclude '.copied*' "$2" "$store"
	same "$2" "$was"
	$s3 cp --no-follow-symlinks "$2/manifest.json" "$store/manifest.json"
	;;
fetch)
	from=${3#/} into=${5:-$3}
	from=${from%/}
	# It has its name when it is whole, as what the daemon writes.
	$s3 cp "$to/$2/$from/$4/manifest.json" "$into/.fetch-$4/manifest.json"
	$s3 cp --recursive "$to/$2/$from/$4" "$into/.fetch-$4"
	mv -T "$into/.fetch-$4" "$into/$4"
	echo "$4" >"$into/.fetch-latest"
	mv -T "$into/.fetch-latest" "$into/latest"
	;;
*)
	echo "usage: $0 copy FOLDER/TAG | fetch MODEL FOLDER TAG [INTO]" >&2
	exit 2
	;;
esac
