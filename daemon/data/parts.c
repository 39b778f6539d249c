/* SPDX-License-Identifier: Apache-2.0 */
/* Two bit maps, each with one byte or more per chunk. parts.h says who calls. */
#include "data/parts.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

bool parts_init(struct parts *p, size_t chunks, uint32_t parts_max)
{
	p->chunk_bytes = (parts_max + 7u) / 8;
	p->bytes = chunks * p->chunk_bytes;
	p->begun = calloc(p->bytes + 1, 1);
	p->here = calloc(p->bytes + 1, 1);
	if (p->begun != NULL && p->here != NULL)
		return true;
	parts_free(p);
	return false;
}

void parts_free(struct parts *p)
{
	free(p->begun);
	free(p->here);
	*p = (struct parts){0};
}

void parts_clear(struct parts *p, size_t chunks)
{
	CHECK(chunks * p->chunk_bytes <= p->bytes);
	memset(p->begun, 0, chunks * p->chunk_bytes);
	memset(p->here, 0, chunks * p->chunk_bytes);
}

static size_t byte_of(const struct parts *p, size_t chunk, uint32_t part)
{
	size_t at = chunk * p->chunk_bytes + part / 8;

	CHECK(part / 8 < p->chunk_bytes && at < p->bytes);
	return at;
}

bool parts_begin(struct parts *p, size_t chunk, uint32_t part)
{
	if (parts_begun(p, chunk, part))
		return false;
	p->begun[byte_of(p, chunk, part)] |= (uint8_t)(1u << part % 8);
	return true;
}

void parts_came(struct parts *p, size_t chunk, uint32_t part)
{
	if (parts_begun(p, chunk, part))
		p->here[byte_of(p, chunk, part)] |= (uint8_t)(1u << part % 8);
}

bool parts_begun(const struct parts *p, size_t chunk, uint32_t part)
{
	return p->begun[byte_of(p, chunk, part)] >> part % 8 & 1;
}

bool parts_here(const struct parts *p, size_t chunk, uint32_t part)
{
	return p->here[byte_of(p, chunk, part)] >> part % 8 & 1;
}
