/* SPDX-License-Identifier: Apache-2.0 */
/* Reads manifest.json. Happy path: the sum at the end of the file equals its bytes → they are cut
 * into members and elements of lists, each of which is parsed as JSON by itself → every member is
 * checked for its place, type and range. A file may come from anybody, so memory stays a small
 * multiple of its size. It fails with SHARD_PROTOCOL and names the file and the member. Nothing is
 * guessed. A later version of the format is refused, too. */
#include "ckpt/client.h"
#include "ckpt/manifest.h"
#include "ckpt/folder_impl.h"
#include "ckpt/manifest_impl.h"
#include "ckpt/manifest_scan.h"

#include "base/check.h"
#include "wire/dtype.h"
#include "wire/layout.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct reader {
	const char *path;
	struct err *e;
	enum shard_status st; /* Of the first thing that was wrong. */
};

static void wrong(struct reader *r, const char *where, const char *key, const char *why)
{
	if (r->st == SHARD_OK)
		r->st = err_set(r->e, SHARD_PROTOCOL, "%s: %s%s%s %s", r->path, where,
				where[0] ? "." : "", key, why);
}

static void no_memory(struct reader *r)
{
	if (r->st == SHARD_OK)
		r->st = part_no_memory(r->e, "a checkpoint's manifest");
}

/* --- members --- */

static int64_t take_i64(struct reader *r, const json_t *o, const char *where, const char *key,
			int64_t min, int64_t max)
{
	const json_t *j = json_object_get(o, key);

	if (json_is_integer(j) && json_integer_value(j) >= min && json_integer_value(j) <= max)
		return json_integer_value(j);
	wrong(r, where, key, "is no whole number that can be there");
	return min;
}

static uint64_t take_u64(struct reader *r, const json_t *o, const char *where, const char *key)
{
	return (uint64_t)take_i64(r, o, where, key, 0, INT64_MAX);
}

static uint32_t take_u32(struct reader *r, const json_t *o, const char *where, const char *key)
{
	return (uint32_t)take_i64(r, o, where, key, 0, UINT32_MAX);
}

static double take_double(struct reader *r, const json_t *o, const char *where, const char *key)
{
	const json_t *j = json_object_get(o, key);

	if (json_is_real(j) && isfinite(json_real_value(j)))
		return json_real_value(j);
	wrong(r, where, key, "is no number");
	return 0;
}

static const char *take_text(struct reader *r, const json_t *o, const char *where, const char *key,
			     size_t max)
{
	const char *text = json_string_value(json_object_get(o, key));

	if (!text || strlen(text) > max) {
		wrong(r, where, key, "is no text, or too long");
		return "";
	}
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		if (*p >= 0x20 && *p != 0x7f && !(*p == 0xc2 && p[1] < 0xa0))
			continue;
		wrong(r, where, key, "has control characters");
		return "";
	}
	return text;
}

static void take_field(struct reader *r, const json_t *o, const char *key, char *to, size_t room)
{
	snprintf(to, room, "%s", take_text(r, o, "", key, room - 1));
}

static char *take_copy(struct reader *r, const json_t *o, const char *where, const char *key,
		       size_t max)
{
	char *copy = strdup(take_text(r, o, where, key, max));

	if (!copy)
		no_memory(r);
	return copy;
}

/* Parses a piece of the text by itself. NULL: it is no JSON, is too large, or there is no
 * memory. */
static json_t *json_of(struct reader *r, const char *key, const struct scan_piece *p)
{
	json_error_t why;
	json_t *j;

	if (p->values > SCAN_VALUES_MAX) {
		wrong(r, "", key, "holds more than can be there");
		return NULL;
	}
	j = json_loadb(p->at, p->bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
	if (j == NULL && json_error_code(&why) == json_error_out_of_memory)
		no_memory(r);
	else if (j == NULL)
		wrong(r, "", key, "is no JSON");
	return j;
}

/* Calls fn for each element of the list, in order, until one is wrong. *to has room for all of
 * them. */
static void take_list(struct reader *r, const struct scan_member *m, size_t max, size_t element,
		      void **to, void (*fn)(struct reader *r, struct manifest *m, const json_t *j),
		      struct manifest *out)
{
	struct scan_piece p;
	const char *at = NULL;
	uint64_t nr;

	if (!scan_count(&m->value, &nr) || nr > max) {
		wrong(r, "", m->key, "is no list, or too long");
		return;
	}
	if (!(*to = calloc(nr + 1, element))) {
		no_memory(r);
		return;
	}
	while (r->st == SHARD_OK && scan_next(&m->value, &at, &p)) {
		json_t *j = json_of(r, m->key, &p);

		if (j != NULL)
			fn(r, out, j);
		json_decref(j);
	}
}

static bool take_hex(const char *p, uint64_t *out)
{
	*out = 0;
	for (int i = 0; i < 16; i++) {
		const char *digits = "0123456789abcdef", *d = p[i] ? strchr(digits, p[i]) : NULL;

		if (!d)
			return false;
		*out = *out << 4 | (uint64_t)(d - digits);
	}
	return true;
}

/* --- parts of the manifest --- */

static uint32_t take_mode(struct reader *r, const json_t *root)
{
	const char *text = take_text(r, root, "", "mode", 4);
	uint32_t mode = 0;

	for (const char *p = text; *p; p++) {
		if (*p < '0' || *p > '7')
			wrong(r, "", "mode", "is no mode of a file, as 0640");
		mode = mode * 8 + (uint32_t)(*p - '0');
	}
	if (mode > 0777 || text[0] == 0)
		wrong(r, "", "mode", "is no mode of a file, as 0640");
	return mode;
}

/* A manifest has both members or neither. An import and older releases have no id. */
static void take_run(struct reader *r, struct manifest_run *run, const json_t *root)
{
	const char *id, *line;

	if (json_object_get(root, "id") == NULL && json_object_get(root, "line") == NULL)
		return;
	id = take_text(r, root, "", "id", 32);
	line = take_text(r, root, "", "line", 16);
	if (strlen(id) != 32 || !take_hex(id, &run->id[0]) || !take_hex(id + 16, &run->id[1]) ||
	    (run->id[0] == 0 && run->id[1] == 0))
		wrong(r, "", "id", "is no 32 hexadecimal digits, or all of them are 0");
	if (!take_hex(line, &run->line) || run->line == 0)
		wrong(r, "", "line", "is no 16 hexadecimal digits, or all of them are 0");
}

/* Keys that operators set for groups. An older release wrote none. */
static void take_hyper(struct reader *r, struct manifest *m, const json_t *list)
{
	size_t i;
	json_t *o;

	if (list != NULL && (!json_is_array(list) || json_array_size(list) > MANIFEST_HYPER_MAX)) {
		wrong(r, "tune", "hyper", "is no list of what can be set");
		return;
	}
	json_array_foreach(list, i, o) {
		struct manifest_hyper *h = &m->tune.hyper[m->tune.hyper_nr++];

		h->group = take_u32(r, o, "tune.hyper", "group");
		snprintf(h->key, sizeof(h->key), "%s",
			 take_text(r, o, "tune.hyper", "key", sizeof(h->key) - 1));
		h->value = take_double(r, o, "tune.hyper", "value");
	}
}

static void take_counters(struct reader *r, struct manifest *m, const json_t *root)
{
	const json_t *scaler = json_object_get(root, "scaler"),
		     *tune = json_object_get(root, "tune");
	const json_t *owner = json_object_get(root, "owner");

	take_field(r, root, "release", m->release, sizeof(m->release));
	take_field(r, root, "created", m->created, sizeof(m->created));
	take_field(r, root, "name", m->name, sizeof(m->name));
	take_field(r, root, "run_id", m->run_id, sizeof(m->run_id));
	if (m->name[0] == 0 ||
	    strspn(m->name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != strlen(m->name))
		wrong(r, "", "name", "is no name of a model");
	take_run(r, &m->run, root);
	m->step = take_u64(r, root, "", "step");
	m->applied = take_u64(r, root, "", "applied");
	m->skipped_in_row = take_u64(r, root, "", "skipped_in_row");
	m->scaler.scale = take_double(r, scaler, "scaler", "scale");
	m->scaler.hysteresis =
		(int32_t)take_i64(r, scaler, "scaler", "hysteresis", INT32_MIN, INT32_MAX);
	m->scaler.last_overflow =
		take_i64(r, scaler, "scaler", "last_overflow", INT64_MIN, INT64_MAX);
	m->scaler.iter = take_i64(r, scaler, "scaler", "iter", INT64_MIN, INT64_MAX);
	if (!json_is_boolean(json_object_get(tune, "paused")))
		wrong(r, "tune", "paused", "is neither true nor false");
	m->tune.paused = json_is_true(json_object_get(tune, "paused"));
	m->tune.has_lr = json_object_get(tune, "lr") != NULL;
	m->tune.has_clip = json_object_get(tune, "clip") != NULL;
	m->tune.lr = m->tune.has_lr ? take_double(r, tune, "tune", "lr") : 0;
	m->tune.clip = m->tune.has_clip ? take_double(r, tune, "tune", "clip") : 0;
	take_hyper(r, m, json_object_get(tune, "hyper"));
	m->owner_known = owner != NULL;
	if (owner) {
		m->owner_uid = take_u32(r, owner, "owner", "uid");
		m->owner_gid = take_u32(r, owner, "owner", "gid");
		if (json_object_get(owner, "node") != NULL)
			snprintf(m->owner_node, sizeof(m->owner_node), "%s",
				 take_text(r, owner, "owner", "node", 64));
	}
	m->has_mode = json_object_get(root, "mode") != NULL;
	if (m->has_mode)
		m->mode = take_mode(r, root);
}

static void take_types(struct reader *r, struct manifest *m, const json_t *root)
{
	const json_t *kinds = json_object_get(root, "kinds");

	m->settings = take_copy(r, root, "", "settings", MANIFEST_SETTINGS_MAX);
	m->optimizer = take_copy(r, root, "", "optimizer", 64);
	if (!dtype_parse(take_text(r, root, "", "image", 8), &m->image))
		wrong(r, "", "image", "is neither fp32, bf16 nor fp16");
	if (!dtype_parse(take_text(r, root, "", "grad", 8), &m->grad))
		wrong(r, "", "grad", "is neither fp32, bf16 nor fp16");
	if (!json_is_array(kinds) || json_array_size(kinds) < 1 ||
	    json_array_size(kinds) > NR(m->kinds)) {
		wrong(r, "", "kinds", "is no list of one to four");
		return;
	}
	for (m->kinds_nr = 0; m->kinds_nr < json_array_size(kinds); m->kinds_nr++) {
		const char *name = json_string_value(json_array_get(kinds, m->kinds_nr));
		enum shard_kind *to = &m->kinds[m->kinds_nr];

		for (int k = SHARD_MASTER; name && k <= SHARD_MOMENTUM; k++)
			if (strcmp(name, part_kind_name((enum shard_kind)k)) == 0)
				*to = (enum shard_kind)k;
		if (*to == 0 || (m->kinds_nr == 0) != (*to == SHARD_MASTER))
			wrong(r, "", "kinds", "names none, or not master first");
	}
}

static void take_tensor(struct reader *r, struct manifest *m, const json_t *j)
{
	struct shard_tensor *t = &m->tensors[m->tensors_nr++];
	const json_t *shape = json_object_get(j, "shape");
	uint64_t elems;

	t->name = take_copy(r, j, "tensors", "name", 255);
	t->group = take_u32(r, j, "tensors", "group");
	layout_flags_take(t, take_u32(r, j, "tensors", "flags"));
	if (t->group >= (m->groups_nr ? m->groups_nr : 1) || (t->flags & ~(uint32_t)SHARD_FROZEN))
		wrong(r, "tensors", "group", "or its flags are none that there are");
	if (!t->name || t->name[0] == 0 || !json_is_array(shape) ||
	    json_array_size(shape) > NR(t->shape)) {
		wrong(r, "tensors", "shape", "is no list of at most eight, or its name is empty");
		return;
	}
	t->ndim = (uint32_t)json_array_size(shape);
	for (uint32_t d = 0; d < t->ndim; d++) {
		const json_t *n = json_array_get(shape, d);

		if (!json_is_integer(n) || json_integer_value(n) < 0)
			wrong(r, "tensors", "shape", "has a dimension that is no number from 0 on");
		t->shape[d] = (uint64_t)json_integer_value(n);
	}
	if (!layout_numel(&elems, t->shape, t->ndim))
		wrong(r, "tensors", "shape", "has more than 2^44 elements");
}

static void take_group(struct reader *r, struct manifest *m, const json_t *j)
{
	m->groups[m->groups_nr++] =
		(struct shard_group){take_copy(r, j, "groups", "name", 64),
				     take_copy(r, j, "groups", "settings", MANIFEST_SETTINGS_MAX)};
}

/* header_min: the shortest header that such a file can have. */
static void take_pieces(struct reader *r, struct part_file *f, const json_t *j, const char *where,
			uint64_t header_min)
{
	const char *name = take_text(r, j, where, "name", sizeof(f->name) - 1);
	const char *sums = json_string_value(json_object_get(j, "sums"));
	size_t digits = sums ? strlen(sums) : 0;

	snprintf(f->name, sizeof(f->name), "%s", name);
	if (f->name[0] == 0 || f->name[0] == '.' || strchr(f->name, '/') ||
	    strcmp(f->name, MANIFEST_NAME) == 0)
		wrong(r, where, "name", "is no name of a file in this folder");
	f->bytes = take_u64(r, j, where, "bytes");
	f->header_bytes = take_u64(r, j, where, "header_bytes");
	f->piece_bytes = take_u32(r, j, where, "piece_bytes");
	if (f->piece_bytes == 0 || f->piece_bytes > PART_PIECE_BYTES ||
	    f->piece_bytes % PART_ALIGN || f->header_bytes < header_min ||
	    f->header_bytes > f->bytes || f->bytes > 1ull << 62 || digits % 16 ||
	    digits / 16 !=
		    (f->bytes + f->piece_bytes - 1) / (f->piece_bytes ? f->piece_bytes : 1)) {
		wrong(r, where, f->name, "contradicts itself: bytes, header, pieces and sums");
		return;
	}
	if (!(f->sums = malloc(digits / 2 + 1))) {
		no_memory(r);
		return;
	}
	for (f->sums_nr = 0; f->sums_nr < digits / 16; f->sums_nr++)
		if (!take_hex(sums + (size_t)f->sums_nr * 16, &f->sums[f->sums_nr]))
			wrong(r, where, "sums", "are no hexadecimal digits");
}

static void not_twice(struct reader *r, const struct part_file *all, const struct part_file *f,
		      const char *where)
{
	for (; all < f; all++)
		if (strcmp(all->name, f->name) == 0)
			wrong(r, where, f->name, "is there twice");
}

static void take_file(struct reader *r, struct manifest *m, const json_t *j)
{
	struct part_file *f = &m->files[m->files_nr++];

	take_pieces(r, f, j, "files", 10);
	not_twice(r, m->files, f, "files");
}

static void take_client(struct reader *r, struct manifest *m, const json_t *j)
{
	struct part_file *f = &m->client[m->client_nr++];

	take_pieces(r, f, j, "client", 0);
	not_twice(r, m->client, f, "client");
	if (!client_name_ok(f->name) || f->header_bytes != 0)
		wrong(r, "client", "name", "is no name of a file of trainers");
}

static void take_blob(struct reader *r, struct manifest *m, const json_t *j)
{
	struct manifest_blob *b = &m->blobs[m->blobs_nr++];
	const char *sum = take_text(r, j, "blobs", "sum", 16);

	b->rank = take_u32(r, j, "blobs", "rank");
	b->bytes = (uint32_t)take_i64(r, j, "blobs", "bytes", 0, PART_BLOB_BYTES);
	b->file = take_u32(r, j, "blobs", "file");
	b->step = take_u64(r, j, "blobs", "step");
	b->offset = take_u64(r, j, "blobs", "offset");
	if (b->step == 0 || b->step > m->step)
		wrong(r, "blobs", "step", "is none that was committed by then");
	if (!take_hex(sum, &b->sum) || b->file >= m->files_nr ||
	    b->offset > m->files[b->file].bytes || b->bytes > m->files[b->file].bytes - b->offset)
		wrong(r, "blobs", "offset", "lies outside of its file, or its sum is none");
}

enum { GROUPS, TENSORS, FILES, BLOBS, CLIENT, LISTS };

/* The members of a manifest. Those after the lists are small. */
static const char *const keys[] = {[GROUPS] = "groups",
				   [TENSORS] = "tensors",
				   [FILES] = "files",
				   [BLOBS] = "blobs",
				   [CLIENT] = "client",
				   "format",
				   "version",
				   "release",
				   "created",
				   "name",
				   "run_id",
				   "id",
				   "line",
				   "step",
				   "applied",
				   "skipped_in_row",
				   "scaler",
				   "tune",
				   "owner",
				   "mode",
				   "settings",
				   "optimizer",
				   "image",
				   "grad",
				   "kinds"};

static void take_lists(struct reader *r, struct manifest *m, const struct scan_member *list)
{
	take_list(r, &list[GROUPS], MANIFEST_GROUPS_MAX, sizeof(*m->groups), (void **)&m->groups,
		  take_group, m);
	if (r->st == SHARD_OK)
		take_list(r, &list[TENSORS], MANIFEST_TENSORS_MAX, sizeof(*m->tensors),
			  (void **)&m->tensors, take_tensor, m);
	if (m->tensors_nr == 0)
		wrong(r, "", "tensors", "is empty");
	if (r->st == SHARD_OK)
		take_list(r, &list[FILES], MANIFEST_FILES_MAX, sizeof(*m->files),
			  (void **)&m->files, take_file, m);
	if (r->st == SHARD_OK)
		take_list(r, &list[BLOBS], MANIFEST_BLOBS_MAX, sizeof(*m->blobs),
			  (void **)&m->blobs, take_blob, m);
	if (r->st == SHARD_OK && list[CLIENT].value.at != NULL)
		take_list(r, &list[CLIENT], CLIENT_FILES_MAX, sizeof(*m->client),
			  (void **)&m->client, take_client, m);
}

/* Collects the small members in one object. NULL: one of them is wrong. */
static json_t *small_members(struct reader *r, const struct scan_member *members)
{
	json_t *root = json_object();

	for (uint32_t i = LISTS; i < NR(keys) && r->st == SHARD_OK; i++)
		if (members[i].value.at != NULL)
			json_object_set_new(root, keys[i], json_of(r, keys[i], &members[i].value));
	if (root == NULL)
		no_memory(r);
	if (r->st == SHARD_OK)
		return root;
	json_decref(root);
	return NULL;
}

static void take_all(struct reader *r, struct manifest *m, const json_t *root,
		     const struct scan_member *lists)
{
	const char *format = take_text(r, root, "", "format", 64);
	int64_t version = take_i64(r, root, "", "version", 0, INT64_MAX);

	if (r->st == SHARD_OK && strcmp(format, MANIFEST_FORMAT) != 0)
		wrong(r, "", "format", "says that this is no checkpoint");
	if (r->st == SHARD_OK && version != MANIFEST_VERSION)
		r->st = err_set(r->e, SHARD_PROTOCOL,
				"%s: is of version %lld of the format, this release (" SHARD_RELEASE
				") reads version %d",
				r->path, (long long)version, MANIFEST_VERSION);
	if (r->st == SHARD_OK)
		take_counters(r, m, root);
	if (r->st == SHARD_OK)
		take_types(r, m, root);
	if (r->st == SHARD_OK)
		take_lists(r, m, lists);
}

enum shard_status manifest_parse(struct manifest **out, const char *text, size_t bytes,
				 const char *path, struct err *e)
{
	struct reader r = {.path = path, .e = e, .st = SHARD_OK};
	struct scan_member members[NR(keys)];
	char tail[MANIFEST_TAIL_BYTES + 1];
	struct manifest *m = NULL;
	json_t *root;
	uint64_t sum;

	*out = NULL;
	if (bytes < MANIFEST_TAIL_BYTES || bytes > MANIFEST_BYTES_MAX)
		return err_set(e, SHARD_PROTOCOL, "%s: damaged: it has %zu bytes", path, bytes);
	sum = xxh_sum(text, bytes - MANIFEST_TAIL_BYTES, 0);
	snprintf(tail, sizeof(tail), MANIFEST_TAIL, sum);
	if (memcmp(text + bytes - MANIFEST_TAIL_BYTES, tail, MANIFEST_TAIL_BYTES) != 0)
		return err_set(e, SHARD_PROTOCOL,
			       "%s: damaged: its end is not the sum of its %zu bytes", path, bytes);
	for (uint32_t i = 0; i < NR(keys); i++)
		members[i].key = keys[i];
	if (!scan_object(text, bytes, members, NR(keys)))
		return err_set(e, SHARD_PROTOCOL, "%s: is no JSON, or names a member twice", path);
	root = small_members(&r, members);
	if (root != NULL && !(m = calloc(1, sizeof(*m))))
		no_memory(&r);
	else if (root != NULL)
		take_all(&r, m, root, members);
	json_decref(root);
	if (r.st != SHARD_OK) {
		manifest_free(&m);
		return r.st;
	}
	m->sum = sum;
	if (m->run.line == 0)
		m->run.line = sum; /* Only this very file has that line. */
	*out = m;
	return SHARD_OK;
}

/* --- files --- */

static enum shard_status read_text(const char *path, char **text, size_t *bytes, struct stat *of,
				   struct err *e)
{
	enum shard_status st;
	size_t got = 0;
	struct stat s;
	int fd;

	*text = NULL;
	st = plain_open(&fd, AT_FDCWD, path, O_RDONLY, 0, e);
	if (st == SHARD_NOT_FOUND)
		return err_set(e, SHARD_NOT_FOUND,
			       "%s: is not there: no checkpoint, or one that was not finished",
			       path);
	if (st != SHARD_OK)
		return st;
	if (fstat(fd, &s) != 0)
		st = err_sys(e, errno, "%s: cannot be read: %s", path, strerror(errno));
	else if (s.st_size > (off_t)MANIFEST_BYTES_MAX)
		st = err_set(e, SHARD_PROTOCOL, "%s: is no file of at most %u bytes", path,
			     MANIFEST_BYTES_MAX);
	else if (!(*text = malloc((size_t)s.st_size + 1)))
		st = part_no_memory(e, "a checkpoint's manifest");
	while (st == SHARD_OK && got < (size_t)s.st_size) {
		ssize_t n = read(fd, *text + got, (size_t)s.st_size - got);

		if (n == 0)
			break;
		if (n < 0 && errno != EINTR)
			st = err_sys(e, errno, "%s: cannot be read: %s", path, strerror(errno));
		got += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	*bytes = got;
	if (st == SHARD_OK)
		*of = s;
	return st;
}

static bool is_ours(const struct stat *s)
{
	return s->st_uid == geteuid() || s->st_uid == 0;
}

/* A manifest's own statement about its owner counts only where nobody but this daemon's user or
 * root could write it. Otherwise the owner of the file or folder is the owner. */
static void believe(struct manifest *m, const struct stat *file, const struct stat *folder)
{
	const struct stat *s = is_ours(file) ? folder : file;

	if (is_ours(file) && is_ours(folder))
		return;
	m->foreign = m->owner_known = true;
	m->owner_uid = s->st_uid;
	m->owner_gid = s->st_gid;
	m->owner_node[0] = 0;
}

enum shard_status manifest_read(const char *dir, struct manifest **out, struct err *e)
{
	char path[PART_PATH_BYTES], *text;
	struct stat file, folder;
	size_t bytes = 0;
	enum shard_status st;

	*out = NULL;
	part_path(path, dir, MANIFEST_NAME);
	st = read_text(path, &text, &bytes, &file, e);
	if (st == SHARD_OK && stat(dir, &folder) != 0)
		st = err_sys(e, errno, "%s: cannot be looked at: %s", dir, strerror(errno));
	if (st == SHARD_OK)
		st = manifest_parse(out, text, bytes, path, e);
	free(text);
	if (st == SHARD_OK)
		believe(*out, &file, &folder);
	return st;
}

enum shard_status manifest_blob(const char *dir, const struct manifest *m, uint32_t blob, void *to,
				struct err *e)
{
	const struct manifest_blob *b = &m->blobs[blob];
	struct part_fd f = {.fd = -1};
	enum shard_status st;
	size_t got = 0;

	CHECK(blob < m->blobs_nr && b->bytes <= PART_BLOB_BYTES);
	if ((st = part_open_file(&f, dir, &m->files[b->file], e)) != SHARD_OK)
		return st;
	(void)fcntl(f.fd, F_SETFL, 0); /* The blob is not aligned, so O_DIRECT is off. */
	while (got < b->bytes) {
		ssize_t n = pread(f.fd, (char *)to + got, b->bytes - got, (off_t)(b->offset + got));

		if (n == 0 || (n < 0 && errno != EINTR))
			break;
		got += n > 0 ? (size_t)n : 0;
	}
	part_close(&f);
	if (got < b->bytes || xxh_sum(to, b->bytes, 0) != b->sum)
		st = err_set(e, SHARD_PROTOCOL,
			     "%s/%s: damaged: the blob of rank %u at offset %" PRIu64
			     " is not what the manifest says",
			     dir, m->files[b->file].name, b->rank, b->offset);
	return st;
}

void manifest_free(struct manifest **m)
{
	struct manifest *x = *m;

	*m = NULL;
	if (!x)
		return;
	for (uint32_t i = 0; i < x->tensors_nr; i++)
		free((char *)(uintptr_t)x->tensors[i].name);
	for (uint32_t i = 0; i < x->groups_nr; i++) {
		free((char *)(uintptr_t)x->groups[i].name);
		free((char *)(uintptr_t)x->groups[i].settings);
	}
	for (uint32_t i = 0; i < x->files_nr; i++)
		part_file_free(&x->files[i]);
	for (uint32_t i = 0; i < x->client_nr; i++)
		part_file_free(&x->client[i]);
	free(x->settings);
	free(x->optimizer);
	free(x->tensors);
	free(x->groups);
	free(x->files);
	free(x->blobs);
	free(x->client);
	free(x);
}
