// SPDX-License-Identifier: Apache-2.0
/* compare.c: compares two folders of dumped tensors. The program dumpcmp, with which `make demo`
 * ends, calls it, and so does its test. It lists both folders, then compares the files with the
 * same name element by element. A folder that cannot be read, is empty or lacks a file counts as
 * different, so that nothing missing ever looks equal. */
#include "lib/compare.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define RUN 4096 /* Elements that are read at a time. */

static int is_dump(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return n > 4 && strcmp(d->d_name + n - 4, ".bin") == 0;
}

static void free_names(struct dirent **names, int nr)
{
	for (int i = 0; i < nr; i++)
		free(names[i]);
	free(names);
}

static FILE *open_in(const char *folder, const char *name, FILE *out)
{
	char path[4096];
	FILE *f = NULL;

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path))
		f = fopen(path, "rbe");
	if (!f)
		fprintf(out, "%s: missing in %s: %s\n", name, folder, strerror(errno));
	return f;
}

static void say_difference(const char *name, uint64_t index, const uint32_t *a, const uint32_t *b,
			   FILE *out)
{
	float x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	fprintf(out,
		"%.*s: element %" PRIu64 " differs: 0x%08" PRIx32 " (%.9g) and 0x%08" PRIx32
		" (%.9g)\n",
		(int)(strlen(name) - 4), name, index, *a, (double)x, *b, (double)y);
}

static bool compare_streams(FILE *fa, FILE *fb, const char *name, struct compare *c, FILE *out)
{
	uint32_t a[RUN], b[RUN];
	uint64_t index = 0, different = 0;

	for (;;) {
		size_t na = fread(a, 1, sizeof(a), fa), nb = fread(b, 1, sizeof(b), fb);

		if (na != nb || na % sizeof(*a) || ferror(fa) || ferror(fb)) {
			fprintf(out,
				"%s: sizes differ or are odd: %" PRIu64 " and %" PRIu64 " bytes\n",
				name, index * 4 + na, index * 4 + nb);
			return false;
		}
		for (size_t i = 0; i < na / sizeof(*a); i++, index++) {
			if (a[i] != b[i] && different++ == 0)
				say_difference(name, index, &a[i], &b[i], out);
		}
		if (!na)
			break;
	}
	c->files++;
	c->bytes += index * sizeof(*a);
	c->different += different;
	return index > 0 && !different;
}

static bool compare_file(const char *a, const char *b, const char *name, struct compare *c,
			 FILE *out)
{
	FILE *fa = open_in(a, name, out), *fb = open_in(b, name, out);
	bool equal = fa && fb && compare_streams(fa, fb, name, c, out);

	if (fa)
		fclose(fa);
	if (fb)
		fclose(fb);
	return equal;
}

static bool same_names(const char *a, const char *b, struct dirent **in_a, int a_nr,
		       struct dirent **in_b, int b_nr, FILE *out)
{
	bool same = true;
	int i = 0, j = 0;

	while (i < a_nr || j < b_nr) { /* Both lists are sorted. */
		int order = i == a_nr   ? 1
			    : j == b_nr ? -1
					: strcmp(in_a[i]->d_name, in_b[j]->d_name);

		if (order)
			fprintf(out, "%s: missing in %s\n", (order < 0 ? in_a[i] : in_b[j])->d_name,
				order < 0 ? b : a);
		same = same && !order;
		i += order <= 0;
		j += order >= 0;
	}
	return same;
}

static int by_name(const struct dirent **x, const struct dirent **y)
{
	return strcmp((*x)->d_name, (*y)->d_name);
}

bool compare_folders(const char *a, const char *b, struct compare *c, FILE *out)
{
	struct dirent **in_a = NULL, **in_b = NULL;
	int a_nr = scandir(a, &in_a, is_dump, by_name), b_nr = scandir(b, &in_b, is_dump, by_name);
	bool equal = a_nr > 0 && b_nr > 0;

	memset(c, 0, sizeof(*c));
	if (a_nr <= 0)
		fprintf(out, "%s: %s\n", a, a_nr < 0 ? "cannot be read" : "no tensors");
	if (b_nr <= 0)
		fprintf(out, "%s: %s\n", b, b_nr < 0 ? "cannot be read" : "no tensors");
	if (equal)
		equal = same_names(a, b, in_a, a_nr, in_b, b_nr, out);
	for (int i = 0; equal && i < a_nr; i++)
		equal = compare_file(a, b, in_a[i]->d_name, c, out);
	free_names(in_a, a_nr);
	free_names(in_b, b_nr);
	return equal;
}
