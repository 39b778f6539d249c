/* SPDX-License-Identifier: Apache-2.0 */
/* uuid.h: the uuid of a GPU as text, in the form of `nvidia-smi -L`, such as
 * GPU-3d2f9c54-0000-1111-2222-0123456789ab. A part of a GPU (MIG) has one of its own. */
#ifndef SHARD_GPU_UUID_H
#define SHARD_GPU_UUID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_DEVICES_MAX 16 /* Of one node. */
#define GPU_UUID_BYTES  16
#define GPU_UUID_TEXT   41 /* With its end. */

const char *gpu_uuid_text(const uint8_t uuid[GPU_UUID_BYTES], char text[GPU_UUID_TEXT]);
/* text has n characters. "GPU-" and "MIG-" may be left out. False: it is none. */
bool gpu_uuid_parse(uint8_t uuid[GPU_UUID_BYTES], const char *text, size_t n);

#endif
