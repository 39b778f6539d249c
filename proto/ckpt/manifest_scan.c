/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over JSON without making values of it. manifest_read.c calls it. It knows brackets,
 * strings and the characters between them, but not what a valid word or number is. jansson parses
 * each piece that is used and checks that. It fails where brackets do not match or nest too
 * deep. */
#include "ckpt/manifest_scan.h"

#include "base/check.h"

#include <string.h>

static const char *space(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
		p++;
	return p;
}

/* Returns the end of the string that begins at p. NULL: the string does not end. */
static const char *string(const char *p, const char *end)
{
	for (p++; p < end && *p != '"'; p++)
		if (*p == '\\')
			p++;
	return p < end ? p + 1 : NULL;
}

/* Returns the end of a number or a word. */
static const char *word(const char *p, const char *end)
{
	static const char ends[] = {' ', '\t', '\n', '\r', ',', ':', ']', '}', '[', '{', '"'};

	while (p < end && memchr(ends, *p, sizeof(ends)) == NULL)
		p++;
	return p;
}

bool scan_value(const char **at, const char *end, struct scan_piece *out)
{
	const char *p = space(*at, end);
	char closes[SCAN_DEPTH_MAX];
	uint32_t depth = 0;

	*out = (struct scan_piece){.at = p};
	do {
		char c;

		p = space(p, end);
		if (p == end)
			return false;
		c = *p;
		out->values += c != ',' && c != ':' && c != ']' && c != '}';
		if (c == '[' || c == '{') {
			if (depth == SCAN_DEPTH_MAX)
				return false;
			closes[depth++] = c == '[' ? ']' : '}';
			p++;
		} else if (c == ']' || c == '}') {
			if (depth == 0 || closes[--depth] != c)
				return false;
			p++;
		} else if (c == ',' || c == ':') {
			if (depth == 0)
				return false;
			p++;
		} else if (c == '"') {
			if ((p = string(p, end)) == NULL)
				return false;
		} else {
			p = word(p, end);
		}
	} while (depth > 0);
	out->bytes = (size_t)(p - out->at);
	*at = p;
	return true;
}

/* Passes over the character c and the blanks around it. NULL: another character is there. */
static const char *expect(const char *p, const char *end, char c)
{
	p = p != NULL ? space(p, end) : NULL;
	return p != NULL && p < end && *p == c ? space(p + 1, end) : NULL;
}

static bool is_key(const struct scan_piece *p, const char *key)
{
	size_t n = strlen(key);

	return p->bytes == n + 2 && memcmp(p->at + 1, key, n) == 0;
}

bool scan_object(const char *text, size_t bytes, struct scan_member *members, uint32_t nr)
{
	const char *end = text + bytes, *p = expect(text, end, '{');
	struct scan_piece key, value;

	for (uint32_t i = 0; i < nr; i++)
		members[i].value = (struct scan_piece){.at = NULL};
	while (p != NULL && p < end && *p == '"') {
		if (!scan_value(&p, end, &key) || (p = expect(p, end, ':')) == NULL ||
		    !scan_value(&p, end, &value))
			return false;
		for (uint32_t i = 0; i < nr; i++) {
			if (!is_key(&key, members[i].key))
				continue;
			if (members[i].value.at != NULL)
				return false;
			members[i].value = value;
		}
		p = space(p, end);
		if (p < end && *p == '}')
			return space(p + 1, end) == end;
		p = expect(p, end, ',');
	}
	return false;
}

bool scan_next(const struct scan_piece *list, const char **at, struct scan_piece *out)
{
	const char *end = list->at + list->bytes, *p = *at;

	CHECK(list->bytes >= 2 && *list->at == '[');
	p = space(p == NULL ? list->at + 1 : p, end);
	if (*p == ']')
		return false;
	if (*at != NULL)
		p++; /* The comma. */
	if (!scan_value(&p, end, out))
		return false;
	*at = p;
	return true;
}

bool scan_count(const struct scan_piece *list, uint64_t *nr)
{
	const char *end = list->at + list->bytes, *p;
	struct scan_piece element;

	*nr = 0;
	if (list->at == NULL || *list->at != '[')
		return false;
	p = space(list->at + 1, end);
	while (*p != ']') {
		if ((*nr > 0 && (p = expect(p, end, ',')) == NULL) ||
		    !scan_value(&p, end, &element))
			return false;
		p = space(p, end);
		(*nr)++;
	}
	return p + 1 == end;
}
