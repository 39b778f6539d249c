/* SPDX-License-Identifier: Apache-2.0 */
/* fatbin.h: the compiled kernels of kernels.cu. */
#ifndef SHARD_GPU_FATBIN_H
#define SHARD_GPU_FATBIN_H

/* NULL: the program was built without nvcc. */
const void *gpu_fatbin(void);

#endif
