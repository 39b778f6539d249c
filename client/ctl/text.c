/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and sentences in the form that people write and read them, for all subcommands.
 * ctl_count() reads a number and returns false where the text is none. ctl_bytes() writes one. */
#include "ctl/ctl.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ctl_count(const char *text, uint64_t max, uint64_t *out)
{
	static const struct {
		const char *name;
		double factor;
	} units[] = {{"", 1},
		     {"K", 1e3},
		     {"k", 1e3},
		     {"M", 1e6},
		     {"G", 1e9},
		     {"B", 1e9},
		     {"T", 1e12},
		     {"Ki", 1024.0},
		     {"Mi", 1024.0 * 1024},
		     {"Gi", 1024.0 * 1024 * 1024}};
	char *end;
	double n;

	if (*text < '0' || *text > '9') /* No sign, blank, nan or inf may come first. */
		return false;
	n = strtod(text, &end);
	for (size_t i = 0; i < NR(units); i++) {
		if (strcmp(end, units[i].name) != 0)
			continue;
		n = rint(n * units[i].factor);
		if (!(n >= 1 && n <= (double)max))
			return false;
		*out = (uint64_t)n;
		return true;
	}
	return false;
}

const char *ctl_bytes(char out[CTL_NUMBER_BYTES], double bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	size_t u = 0;

	for (; bytes >= 1024 && u < NR(units) - 1; u++)
		bytes /= 1024;
	snprintf(out, CTL_NUMBER_BYTES, "%.*f %s",
		 u == 0       ? 0
		 : bytes < 10 ? 2
			      : 1,
		 bytes, units[u]);
	return out;
}

const char *ctl_age(char out[CTL_NUMBER_BYTES], double seconds)
{
	static const struct {
		double most, unit;
		const char *name;
	} units[] = {{120, 1, "s"}, {7200, 60, "min"}, {172800, 3600, "h"}, {1e18, 86400, "d"}};
	size_t u = 0;

	while (u < NR(units) - 1 && seconds >= units[u].most)
		u++;
	snprintf(out, CTL_NUMBER_BYTES, "%.0f %s", seconds / units[u].unit, units[u].name);
	return out;
}
