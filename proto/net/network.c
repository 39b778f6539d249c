/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of networks. The configuration parses one to check it, and the HTTP server to ask it. All
 * addresses are compared as IPv6, so that one comparison serves both families. A text that is no
 * list is refused by returning false. */
#include "net/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define MAPPED_BITS 96 /* ::ffff:0:0/96 is IPv4. */

static const unsigned char mapped[MAPPED_BITS / 8] = {[10] = 0xff, [11] = 0xff};

static bool has_prefix(const unsigned char *address, const struct network *n)
{
	uint32_t whole = n->bits / 8, rest = n->bits % 8;

	if (memcmp(address, n->prefix, whole) != 0)
		return false;
	return rest == 0 || (address[whole] ^ n->prefix[whole]) >> (8 - rest) == 0;
}

/* The bits behind the mask are 0, or else it is not clear what was meant. */
static bool ends_clean(const struct network *n)
{
	for (uint32_t i = n->bits; i < 128; i++)
		if (n->prefix[i / 8] >> (7 - i % 8) & 1)
			return false;
	return true;
}

static bool parse_bits(const char *text, uint32_t max, uint32_t *bits)
{
	size_t n = strspn(text, "0123456789");

	if (n == 0 || n > 3 || text[n] != 0)
		return false;
	*bits = (uint32_t)strtoul(text, NULL, 10);
	return *bits <= max;
}

static bool parse_one(struct network *n, const char *text, size_t bytes)
{
	char one[64], *slash;
	uint32_t family_bits, bits;

	if (bytes == 0 || bytes >= sizeof(one))
		return false;
	memcpy(one, text, bytes);
	one[bytes] = 0;
	slash = strchr(one, '/');
	if (slash != NULL)
		*slash = 0;
	memcpy(n->prefix, mapped, sizeof(mapped));
	if (inet_pton(AF_INET, one, n->prefix + sizeof(mapped)) == 1)
		family_bits = 32;
	else if (inet_pton(AF_INET6, one, n->prefix) == 1)
		family_bits = 128;
	else
		return false;
	bits = family_bits;
	if (slash != NULL && !parse_bits(slash + 1, family_bits, &bits))
		return false;
	n->bits = 128 - family_bits + bits;
	return ends_clean(n);
}

bool network_parse(struct network_list *l, const char *text)
{
	l->nr = 0;
	for (;;) {
		size_t bytes;

		text += strspn(text, " \t");
		bytes = strcspn(text, ", \t");
		if (l->nr == NETWORK_MAX || !parse_one(&l->net[l->nr++], text, bytes))
			return false;
		text += bytes;
		text += strspn(text, " \t");
		if (*text == 0)
			return true;
		if (*text++ != ',')
			return false;
	}
}

bool network_has(const struct network_list *l, const struct sockaddr *sa)
{
	unsigned char address[16];

	if (sa->sa_family == AF_INET) {
		memcpy(address, mapped, sizeof(mapped));
		memcpy(address + sizeof(mapped),
		       &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
	} else if (sa->sa_family == AF_INET6) {
		memcpy(address, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
	} else {
		return false;
	}
	for (uint32_t i = 0; i < l->nr; i++)
		if (has_prefix(address, &l->net[i]))
			return true;
	return false;
}
