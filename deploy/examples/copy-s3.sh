#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program for [daemon] checkpoint_hook: copies a checkpoint to S3 by the AWS command line. Change
# the first line, put it to /etc/shardd/copy-s3, and make it executable.
#
#   copy-s3 copy /srv/checkpoints/gpt/global_step812     what the daemon calls
#   copy-s3 fetch /srv/checkpoints/gpt global_step812    brings one back, before a restore
#
# Credentials come from the machine's role, or from AWS_SHARED_CREDENTIALS_FILE in the daemon's
# unit. Uploads of large files are in parts. manifest.json goes last, so what has one in the bucket
# is whole.
set -eu
to=${SHARDD_COPY_TO:-s3://bucket/shardd}
echo 0 >/proc/self/oom_score_adj 2>/dev/null || : # the daemon's is not for this
s3="aws s3 --only-show-errors"

case $1 in
copy)
	model=$(basename "$(dirname "$2")") tag=$(basename "$2")
	$s3 cp --recursive --exclude manifest.json --exclude '.copied*' "$2" "$to/$model/$tag"
	$s3 cp "$2/manifest.json" "$to/$model/$tag/manifest.json"
	;;
fetch)
	model=$(basename "$2")
	# It has its name when it is whole, as what the daemon writes.
	$s3 cp --recursive "$to/$model/$3" "$2/.fetch-$3"
	mv -T "$2/.fetch-$3" "$2/$3"
	echo "$3" >"$2/.fetch-latest"
	mv -T "$2/.fetch-latest" "$2/latest"
	;;
*)
	echo "usage: $0 copy FOLDER/TAG | fetch FOLDER TAG" >&2
	exit 2
	;;
esac
