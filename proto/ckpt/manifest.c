/* SPDX-License-Identifier: Apache-2.0 */
/* Writes manifest.json: JSON by hand, so that the order is fixed and numbers keep their bits (17 digits), its sum as the last member, read back
 * before it is believed, then synced. Fails with what the file system says, without memory, or where something cannot be said (a text that
 * is no UTF-8). */
#include "ckpt/manifest.h"
#include "ckpt/manifest_impl.h"

#include "base/check.h"
#include "wire/dtype.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_text(FILE *f, const char *key, const char *text)
{
	fprintf(f, "\"%s\":\"", key);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putc('\\', f);
		if ((unsigned char)*text < 0x20)
			fprintf(f, "\\u%04x", (unsigned)*text);
		else
			putc(*text, f);
	}
	putc('"', f);
}

/* 17 digits say a double exactly; the point keeps -0 and whole numbers real ones. */
static void put_double(FILE *f, const char *key, double v)
{
	char text[40];

	snprintf(text, sizeof(text), "%.17g", v);
	fprintf(f, "\"%s\":%s%s", key, text, strpbrk(text, ".en") ? "" : ".0");
}

static void put_head(FILE *f, const struct manifest *m)
{
	fprintf(f, "{\"format\":\"" MANIFEST_FORMAT "\",\"version\":%d,\n", MANIFEST_VERSION);
	put_text(f, "release", m->release);
	putc(',', f);
	put_text(f, "created", m->created);
	fputs(",\n", f);
	put_text(f, "name", m->name);
	putc(',', f);
	put_text(f, "run_id", m->run_id);
	fprintf(f, ",\n\"step\":%" PRIu64 ",\"applied\":%" PRIu64 ",\"skipped_in_row\":%" PRIu64 ",\n\"scaler\":{", m->step,
		m->applied, m->skipped_in_row);
	put_double(f, "scale", m->scaler.scale);
	fprintf(f, ",\"hysteresis\":%" PRId32 ",\"last_overflow\":%" PRId64 ",\"iter\":%" PRId64 "},\n\"tune\":{\"paused\":%s",
		m->scaler.hysteresis, m->scaler.last_overflow, m->scaler.iter, m->tune.paused ? "true" : "false");
	if (m->tune.has_lr) {
		putc(',', f);
		put_double(f, "lr", m->tune.lr);
	}
	if (m->tune.has_clip) {
		putc(',', f);
		put_double(f, "clip", m->tune.clip);
	}
	fputs("},\n", f);
	if (m->owner_known)
		fprintf(f, "\"owner\":{\"uid\":%u,\"gid\":%u},\n", m->owner_uid, m->owner_gid);
	put_text(f, "settings", m->settings);
	fputs(",\n", f);
	put_text(f, "optimizer", m->optimizer);
	fprintf(f, ",\"image\":\"%s\",\"grad\":\"%s\",\"kinds\":[", dtype_name(m->image), dtype_name(m->grad));
	for (uint32_t i = 0; i < m->kinds_nr; i++)
		fprintf(f, "%s\"%s\"", i ? "," : "", part_kind_name(m->kinds[i]));
	fputs("],\n", f);
}

static void put_layout(FILE *f, const struct manifest *m)
{
	fputs("\"groups\":[", f);
	for (uint32_t i = 0; i < m->groups_nr; i++) {
		fputs(i ? ",\n{" : "{", f);
		put_text(f, "name", m->groups[i].name);
		putc(',', f);
		put_text(f, "settings", m->groups[i].settings ? m->groups[i].settings : "");
		putc('}', f);
	}
	fputs("],\n\"tensors\":[", f);
	for (uint32_t i = 0; i < m->tensors_nr; i++) {
		const struct shard_tensor *t = &m->tensors[i];

		fputs(i ? ",\n{" : "\n{", f);
		put_text(f, "name", t->name);
		fputs(",\"shape\":[", f);
		for (uint32_t d = 0; d < t->ndim; d++)
			fprintf(f, "%s%" PRIu64, d ? "," : "", t->shape[d]);
		fprintf(f, "],\"group\":%u,\"flags\":%u}", t->group, t->flags);
	}
	fputs("],\n", f);
}

static void put_files(FILE *f, const struct manifest *m)
{
	fputs("\"files\":[", f);
	for (uint32_t i = 0; i < m->files_nr; i++) {
		const struct part_file *p = &m->files[i];

		fputs(i ? ",\n{" : "\n{", f);
		put_text(f, "name", p->name);
		fprintf(f, ",\"bytes\":%" PRIu64 ",\"header_bytes\":%" PRIu64 ",\"piece_bytes\":%u,\"sums\":\"", p->bytes,
			p->header_bytes, p->piece_bytes);
		for (uint32_t s = 0; s < p->sums_nr; s++)
			fprintf(f, "%016" PRIx64, p->sums[s]);
		fputs("\"}", f);
	}
	fputs("],\n\"blobs\":[", f);
	for (uint32_t i = 0; i < m->blobs_nr; i++) {
		const struct manifest_blob *b = &m->blobs[i];

		fprintf(f,
			"%s\n{\"rank\":%u,\"bytes\":%u,\"file\":%u,\"step\":%" PRIu64 ",\"offset\":%" PRIu64
			",\"sum\":\"%016" PRIx64 "\"}",
			i ? "," : "", b->rank, b->bytes, b->file, b->step, b->offset, b->sum);
	}
	fputs("],\n", f);
}

static enum shard_status make_text(const struct manifest *m, char **text, size_t *bytes, uint64_t *sum, struct err *e)
{
	FILE *f = open_memstream(text, bytes);
	bool failed;

	if (!f)
		return part_no_memory(e, "a checkpoint's manifest");
	put_head(f, m);
	put_layout(f, m);
	put_files(f, m);
	fflush(f);
	*sum = xxh_sum(*text, *bytes, 0);
	fprintf(f, MANIFEST_TAIL, *sum);
	failed = ferror(f);
	if (fclose(f) == 0 && !failed)
		return SHARD_OK;
	free(*text);
	*text = NULL;
	return part_no_memory(e, "a checkpoint's manifest");
}

static enum shard_status write_text(const char *path, const char *text, size_t bytes, struct err *e)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	bool ok = fd >= 0;
	int error = 0;

	for (size_t put = 0; ok && put < bytes;) {
		ssize_t n = write(fd, text + put, bytes - put);

		ok = n > 0 || (n < 0 && errno == EINTR);
		put += n > 0 ? (size_t)n : 0;
	}
	ok = ok && fsync(fd) == 0;
	if (!ok)
		error = errno;
	if (fd >= 0 && close(fd) != 0 && ok) {
		ok = false;
		error = errno;
	}
	if (ok)
		return SHARD_OK;
	errno = error;
	return err_set(e, SHARD_SYSTEM, "%s: cannot be written: %s", path, strerror(error));
}

enum shard_status manifest_write(const char *dir, struct manifest *m, struct err *e)
{
	char path[PART_PATH_BYTES], *text = NULL;
	struct manifest *again = NULL;
	size_t bytes = 0;
	uint64_t sum = 0;
	enum shard_status st = make_text(m, &text, &bytes, &sum, e);
	int error;

	part_path(path, dir, MANIFEST_NAME);
	if (st == SHARD_OK && bytes > MANIFEST_BYTES_MAX)
		st = err_set(e, SHARD_RANGE, "%s: would have %zu bytes: at most %u are read", path, bytes, MANIFEST_BYTES_MAX);
	if (st == SHARD_OK) /* what could not be read is not written */
		st = manifest_parse(&again, text, bytes, path, e);
	manifest_free(&again);
	if (st == SHARD_OK)
		st = write_text(path, text, bytes, e);
	error = errno;
	free(text);
	errno = error;
	m->sum = sum;
	return st;
}
