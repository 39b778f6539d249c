/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_impl.h: what the writer and the reader of manifest.json share. */
#ifndef SHARD_CKPT_MANIFEST_IMPL_H
#define SHARD_CKPT_MANIFEST_IMPL_H

#include "ckpt/manifest.h"
#include "ckpt/part_impl.h"

#include <inttypes.h>

#define MANIFEST_FORMAT "shardd checkpoint"
/* The last bytes of the file. The sum is that of all bytes before them. */
#define MANIFEST_TAIL       "\"sum\":\"%016" PRIx64 "\"}\n"
#define MANIFEST_TAIL_BYTES 26

#endif
