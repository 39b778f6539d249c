// SPDX-License-Identifier: Apache-2.0
/* The uuid of a GPU, written and read. The configuration reads what an operator wrote, and texts
 * and status write it. Pure: it asks no driver. */
#include "gpu/uuid.h"

#include <stdio.h>
#include <string.h>

/* Characters of the form 8-4-4-4-12. */
#define PLAIN 36

static bool dash_at(size_t i)
{
	return i == 8 || i == 13 || i == 18 || i == 23;
}

const char *gpu_uuid_text(const uint8_t uuid[GPU_UUID_BYTES], char text[GPU_UUID_TEXT])
{
	char *to = text + 4;

	memcpy(text, "GPU-", 4);
	for (size_t i = 0; i < GPU_UUID_BYTES; i++) {
		if (dash_at((size_t)(to - text) - 4))
			*to++ = '-';
		to += snprintf(to, 3, "%02x", uuid[i]);
	}
	return text;
}

static int hex(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);

	return c != 0 && at != NULL ? (int)(at - digits) : -1;
}

bool gpu_uuid_parse(uint8_t uuid[GPU_UUID_BYTES], const char *text, size_t n)
{
	size_t digits = 0;

	if (n >= 4 && (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)) {
		text += 4;
		n -= 4;
	}
	if (n != PLAIN)
		return false;
	for (size_t i = 0; i < n; i++) {
		int digit = hex(text[i]);

		if (dash_at(i) != (text[i] == '-') || (digit < 0 && !dash_at(i)))
			return false;
		if (digit < 0)
			continue;
		uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | digit : digit << 4);
		digits++;
	}
	return true;
}
