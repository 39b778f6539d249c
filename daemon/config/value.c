/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers and printers of single values. The table engine and the settings call them. They read one
 * short text, allocate nothing and keep nothing. A text that is not wholly a value is refused by
 * returning false; what a caller passes wrongly is a CHECK. Units are rows of small tables. */
#include "config/value.h"

#include "base/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit counts[] = {
	{"", 1}, {"Ki", 1ull << 10}, {"Mi", 1ull << 20}, {"Gi", 1ull << 30}};
static const struct unit sizes[] = {{"TiB", 1ull << 40},
				    {"GiB", 1ull << 30},
				    {"MiB", 1ull << 20},
				    {"KiB", 1ull << 10},
				    {"B", 1}};
static const struct unit times[] = {
	{"h", 3600000000000ull}, {"min", 60000000000ull}, {"s", 1000000000ull},
	{"ms", 1000000ull},      {"us", 1000ull},         {"ns", 1},
};

static size_t digits(const char *text)
{
	return strspn(text, "0123456789");
}

bool value_u64(const char *text, uint64_t *out)
{
	size_t n = digits(text);
	uint64_t x = 0;

	CHECK(out);
	if (n == 0 || text[n] != 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		uint64_t digit = (uint64_t)(text[i] - '0');

		if (x > (UINT64_MAX - digit) / 10)
			return false;
		x = x * 10 + digit;
	}
	*out = x;
	return true;
}

bool value_double(const char *text, double *out)
{
	char *end;
	double x;

	CHECK(out);
	/* strtod() alone would take hexadecimal numbers, inf, nan and leading blanks. */
	if (text[0] == 0 || strlen(text) > 64 || strspn(text, "0123456789+-.eE") != strlen(text))
		return false;
	x = strtod(text, &end);
	if (*end != 0 || end == text || !isfinite(x))
		return false;
	*out = x;
	return true;
}

/* A fraction of a unit is rounded to a whole number, or refused where it has to be one already. */
static bool with_unit(const char *text, const struct unit *units, size_t nr, bool whole_only,
		      uint64_t *out)
{
	size_t n = strspn(text, "0123456789.");
	char number[40];
	double x;

	CHECK(out && nr > 0);
	if (n == 0 || n >= sizeof(number))
		return false;
	memcpy(number, text, n);
	number[n] = 0;
	for (size_t i = 0; i < nr; i++) {
		uint64_t whole;

		if (strcmp(text + n, units[i].name) != 0)
			continue;
		if (value_u64(number, &whole)) { /* Without rounding where that is possible. */
			if (whole > UINT64_MAX / units[i].factor)
				return false;
			*out = whole * units[i].factor;
			return true;
		}
		if (!value_double(number, &x))
			return false;
		x *= (double)units[i].factor;
		if (x >= 0x1p63 || (whole_only && x != floor(x)))
			return false;
		*out = (uint64_t)llround(x);
		return true;
	}
	return false;
}

bool value_count(const char *text, uint64_t *out)
{
	return with_unit(text, counts, NR(counts), true, out);
}

bool value_bytes(const char *text, uint64_t *out)
{
	return with_unit(text, sizes, NR(sizes), false, out);
}

bool value_duration(const char *text, uint64_t *out)
{
	return with_unit(text, times, NR(times), false, out);
}

bool value_bool(const char *text, bool *out)
{
	static const char *const words[][2] = {
		{"no", "yes"}, {"false", "true"}, {"off", "on"}, {"0", "1"}};

	CHECK(text && out);
	for (size_t i = 0; i < NR(words); i++) {
		for (int b = 0; b < 2; b++) {
			if (strcmp(text, words[i][b]) == 0) {
				*out = b;
				return true;
			}
		}
	}
	return false;
}

bool value_octal(const char *text, uint32_t *out)
{
	size_t n = strspn(text, "01234567");

	CHECK(out);
	if (n < 3 || n > 4 || text[n] != 0)
		return false;
	*out = (uint32_t)strtoul(text, NULL, 8);
	return true;
}

bool value_name(const char *text)
{
	size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789._-");

	return n >= 1 && n <= 64 && text[n] == 0;
}

static void unit_text(char *out, uint64_t x, const struct unit *units, size_t nr)
{
	size_t i = 0;

	CHECK(out && nr > 0 && units[nr - 1].factor == 1);
	while (i < nr - 1 && (x == 0 || x % units[i].factor != 0))
		i++;
	snprintf(out, VALUE_TEXT_BYTES, "%llu%s", (unsigned long long)(x / units[i].factor),
		 units[i].name);
}

void value_bytes_text(char out[VALUE_TEXT_BYTES], uint64_t bytes)
{
	unit_text(out, bytes, sizes, NR(sizes));
}

void value_duration_text(char out[VALUE_TEXT_BYTES], uint64_t ns)
{
	if (ns == 0)
		snprintf(out, VALUE_TEXT_BYTES, "0s");
	else
		unit_text(out, ns, times + 2, NR(times) - 2); /* 300s reads better than 5min. */
}

void value_double_text(char out[VALUE_TEXT_BYTES], double x)
{
	CHECK(out && isfinite(x));
	for (int digits_nr = 1; digits_nr <= DBL_DECIMAL_DIG; digits_nr++) {
		snprintf(out, VALUE_TEXT_BYTES, "%.*g", digits_nr, x);
		if (strtod(out, NULL) == x)
			return;
	}
}
