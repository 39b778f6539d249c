// SPDX-License-Identifier: Apache-2.0
/* The kernels that nvcc has made of kernels.cu. The assembler puts the file into the program, and
 * the driver gets it when the daemon takes a GPU (device.c). The Makefile says where the file is. A
 * build without nvcc has none, and then no GPU can be taken. */
#include "gpu/fatbin.h"

#include <stddef.h>

#ifdef SHARD_FATBIN

__asm__(".section .rodata\n"
	".balign 64\n"
	".globl gpu_fatbin_data\n.hidden gpu_fatbin_data\n"
	"gpu_fatbin_data:\n"
	".incbin \"" SHARD_FATBIN "\"\n"
	".byte 0\n"
	".previous\n");
extern const char gpu_fatbin_data[];

const void *gpu_fatbin(void)
{
	return gpu_fatbin_data;
}

#else

const void *gpu_fatbin(void)
{
	return NULL;
}

#endif
