/* SPDX-License-Identifier: Apache-2.0 */
/* trailer.h: what stands behind the state of a chunk in a slot of a file. It says which write of
 * which chunk that is, with a sum over the state. Any thread may call all of it. */
#ifndef SHARD_STORE_TRAILER_H
#define SHARD_STORE_TRAILER_H

#include <stdbool.h>
#include <stdint.h>

#define TRAILER_BYTES 4096u

struct trailer_of {
	uint64_t id, seq, bytes; /* Those of the file, of the write, and of the state. */
	uint32_t chunk;
};

void trailer_write(const struct trailer_of *of, uint8_t *state); /* Behind so many bytes of it. */
bool trailer_fits(const struct trailer_of *of, const uint8_t *state);
/* Is that block a trailer of this write? What the state is it does not say. */
bool trailer_named(const struct trailer_of *of, const uint8_t *block);

#endif
