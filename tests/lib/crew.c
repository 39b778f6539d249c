// SPDX-License-Identifier: Apache-2.0
/* The trainers and the reference of crew.h. Tests call it. A member connects, defines the model
 * (the member that created it writes and seals it), joins, and makes steps until the last one.
 * After WORLD_CHANGED or ROLLED_BACK it goes on with the step that the world is at. A member that
 * may reconnect begins all of it again after a dead connection. Anything else ends the process. Of
 * an elastic crew every call is compared with what its members were told before: no step that is
 * committed is begun again, and the results of one step are the same. The
 * reference follows wire/ARITHMETIC.md for adamw without clipping: it takes node sums, then the
 * primary's sum, one element after the other. */
#include "lib/crew.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "ref/refcode.h"
#include "wire/dtype.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct shard_tensor tensors[CREW_TENSORS] = {
	{.name = "wte", .ndim = 2, .shape = {37, 64}},
	{.name = "bias", .ndim = 1, .shape = {50}},
	{.name = "proj", .ndim = 2, .shape = {64, 50}},
	{.name = "scale", .ndim = 0},
};
#define LR    0.01
#define BETA1 0.9
#define BETA2 0.95
#define EPS   1e-6
#define DECAY 0.1

void crew_must(enum shard_status got, enum shard_status want, const char *what)
{
	if (got == want)
		return;
	fprintf(stderr, "%s: %s: %s, expected %s\n", what, shard_name(got), shard_error(),
		shard_name(want));
	abort();
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
	return x ^ (x >> 32);
}

static float weight(uint32_t i)
{
	return (float)(int64_t)(mix(i + 77) % 2001) / 500.0f - 2.0f;
}

/* A gradient element in bf16. In half of the elements two large values of opposite sign meet a
 * small one, so a sum in a wrong order has other bits. */
static uint16_t gradient(uint64_t step, uint32_t rank, uint32_t i)
{
	uint64_t r = mix(step * 1000003 + rank * 10007 + i * 17 + 5), all = mix(step * 7919 + i);
	uint32_t role = (uint32_t)((rank + all) % 3);

	if (all >> 20 & 1 || role == 2)
		return dtype_to_bf16(((float)(r % 255) + 1) / 128.0f *
				     (r >> 40 & 1 ? -1.0f : 1.0f));
	return dtype_to_bf16(role == 0 ? 0x1p20f : -0x1p20f);
}

/* The same of an elastic crew. It is a multiple of 1/16, so that up to CREW_MAX of them have an
 * exact sum in any order. */
static uint16_t small_gradient(uint64_t step, uint32_t rank, uint32_t i)
{
	return dtype_to_bf16((float)((int)((i * 5 + i / 64 + step * 7 + rank * 3) % 31) - 15) /
			     16.0f);
}

void crew_gradient(const struct crew *c, uint64_t step, uint32_t rank, uint32_t tensor,
		   uint16_t *to)
{
	uint32_t at = 0;

	for (uint32_t t = 0; t < tensor; t++)
		at += c->numel[t];
	for (uint32_t i = 0; i < c->numel[tensor]; i++)
		to[i] = gradient(step, rank, at + i);
}

void crew_spec(struct shard_spec *s, const char *name, char *settings, size_t bytes, uint32_t world)
{
	snprintf(settings, bytes,
		 "optimizer=adamw lr=0.01 beta1=0.9 beta2=0.95 eps=1e-6 weight_decay=0.1 "
		 "chunk_elems=1024 min_world=%u "
		 "max_world=%u timeout=20s",
		 world, world);
	*s = (struct shard_spec){.size = sizeof(*s),
				 .name = name,
				 .tensors = tensors,
				 .tensors_nr = CREW_TENSORS,
				 .image = SHARD_BF16,
				 .grad = SHARD_BF16,
				 .settings = settings};
}

static void spec_of(const struct crew *c, struct shard_spec *s, char *settings, size_t bytes)
{
	const char *extra = c->extra ? c->extra : "";
	char *end, *min;

	crew_spec(s, c->name, settings, bytes, c->nr);
	s->tensors = c->tensors;
	if (c->elastic) {
		min = strstr(settings, "min_world=");
		CHECK(min != NULL);
		min[strlen("min_world=")] = '1'; /* CREW_MAX has one digit. */
	}
	if (strstr(extra, "chunk_elems=") != NULL) { /* A setting may not be there twice. */
		char *at = strstr(settings, "chunk_elems=");

		end = at + strcspn(at, " ");
		memmove(at, end, strlen(end) + 1);
	}
	end = settings + strlen(settings);
	snprintf(end, bytes - (size_t)(end - settings), " %s", extra);
}

/* --- the right result --- */

static float node_sum(const struct crew *c, uint64_t step, uint32_t node, uint32_t i, bool *any)
{
	float sum = 0;
	uint32_t nr = 0;

	for (uint32_t r = 0; r < c->nr; r++) {
		if (c->member[r].node != node)
			continue;
		float g = dtype_from_bf16(gradient(step, r, i));

		sum = nr++ == 0 ? g : sum + g;
	}
	*any = nr > 0;
	return dtype_from_bf16(dtype_to_bf16(sum)); /* A sum of one operand keeps its bits. */
}

static float reduced(const struct crew *c, uint64_t step, uint32_t i)
{
	uint32_t seen = 0, nr = 0;
	float sum = 0;

	for (uint32_t r = 0; r < c->nr; r++) { /* Nodes come in the order of their lowest rank. */
		uint32_t node = c->member[r].node;
		bool any;

		if (seen >> node & 1)
			continue;
		seen |= 1u << node;
		float g = node_sum(c, step, node, i, &any);

		sum = nr++ == 0 ? g : sum + g;
	}
	return dtype_from_bf16(dtype_to_bf16(sum));
}

static float exact_sum(uint64_t step, uint32_t size, uint32_t i)
{
	float sum = 0;

	for (uint32_t r = 0; r < size; r++)
		sum += dtype_from_bf16(small_gradient(step, r, i));
	return sum;
}

/* The members of the world of that step. If nobody was told of it, as when all who made it died, it
 * was the last attempt at it. */
static uint32_t size_of(const struct crew *c, uint64_t step)
{
	uint32_t size = c->nr;

	if (!c->elastic)
		return size;
	size = atomic_load(&c->told_size[step]);
	if (size == 0)
		size = atomic_load(&c->begun_size[step]);
	if (size == 0)
		fail_msg("step %lu was begun by nobody", (unsigned long)step);
	return size;
}

/* What the extra settings say behind "key=". NULL: nothing. */
static const char *setting(const struct crew *c, const char *key)
{
	const char *at = c->extra != NULL ? strstr(c->extra, key) : NULL;

	return at != NULL ? at + strlen(key) : NULL;
}

/* The largest code of a codec. 0: there is none. */
static float most_of(const struct crew *c, const char *codec)
{
	const char *kind = setting(c, codec);

	if (kind == NULL || strncmp(kind, "int", 3) != 0)
		return 0;
	return kind[3] == '8' ? 127 : 7;
}

static uint32_t number(const struct crew *c, const char *key, uint32_t otherwise)
{
	const char *is = setting(c, key);

	return is != NULL ? (uint32_t)strtoul(is, NULL, 10) : otherwise;
}

/* Do several nodes give gradients to a step? Each node has one member of an elastic crew. */
static bool several_nodes(const struct crew *c, uint32_t size)
{
	for (uint32_t r = 1; r < size; r++)
		if (c->elastic || c->member[r].node != c->member[0].node)
			return true;
	return false;
}

/* Each element becomes what its code stands for. A tensor begins at a multiple of 64 elements, and
 * a segment is its part of one chunk. */
static void code_segments(const struct crew *c, float *x, uint16_t *lost, float most)
{
	uint32_t at = 0, start = 0, chunk = number(c, "chunk_elems=", 1024), n;
	uint32_t block = number(c, "codec_block=", 256);

	for (uint32_t t = 0; t < CREW_TENSORS; t++, start = (start + n + 63) / 64 * 64, at += n) {
		n = c->numel[t];
		for (uint32_t i = 0, run; i < n; i += run) {
			run = chunk - (start + i) % chunk;
			run = run < n - i ? run : n - i;
			refcode(x + at + i, lost != NULL ? lost + at + i : NULL, run, most, block);
		}
	}
}

/* The reduced gradient of a step with a grad_codec. */
static void coded_sum(struct crew *c, uint64_t step, float *sum)
{
	static float x[CREW_NUMEL_MAX];
	bool feedback = setting(c, "error_feedback=no") == NULL, any;
	uint32_t seen = 0, nr = 0;

	for (uint32_t r = 0; r < c->nr; r++) {
		uint32_t node = c->member[r].node;
		uint16_t *lost = c->lost[node];

		if (seen >> node & 1)
			continue;
		seen |= 1u << node;
		for (uint32_t i = 0; i < c->total; i++)
			x[i] = node_sum(c, step, node, i, &any) +
			       (feedback ? dtype_from_bf16(lost[i]) : 0);
		code_segments(c, x, lost, most_of(c, "grad_codec="));
		for (uint32_t i = 0; i < c->total; i++)
			sum[i] = nr == 0 ? x[i] : sum[i] + x[i];
		nr++;
	}
	for (uint32_t i = 0; i < c->total; i++)
		sum[i] = dtype_from_bf16(dtype_to_bf16(sum[i]));
}

/* The image after the seal, and with most = 0 after each step: the master, rounded. With codes it
 * is the image before, and what the codes of the difference stand for. */
static void reference_image(struct crew *c, float most)
{
	static float before[CREW_NUMEL_MAX];

	for (uint32_t i = 0; i < c->total; i++) {
		before[i] = most > 0 ? c->image[i] : 0;
		c->image[i] = c->p[i] - before[i];
	}
	if (most > 0)
		code_segments(c, c->image, NULL, most);
	for (uint32_t i = 0; i < c->total; i++)
		c->image[i] = dtype_from_bf16(dtype_to_bf16(before[i] + c->image[i]));
}

static void reference_step(struct crew *c)
{
	static float coded[CREW_NUMEL_MAX];
	uint64_t t = ++c->ref_step;
	uint32_t size = size_of(c, t);
	float mult = (float)(1.0 / (double)size), decay = (float)(1 - LR * DECAY),
	      b2 = (float)BETA2;
	float one1 = (float)(1 - BETA1), one2 = (float)(1 - BETA2), eps = (float)EPS;
	bool codes = most_of(c, "grad_codec=") > 0 && several_nodes(c, size);
	float step_size = (float)(LR / (1 - pow(BETA1, (double)t))),
	      bc2 = (float)sqrt(1 - pow(BETA2, (double)t));

	if (t == 1 || atomic_load(&c->sealed[t - 1]))
		reference_image(c, 0);
	if (codes)
		coded_sum(c, t, coded);
	for (uint32_t i = 0; i < c->total; i++) {
		float sum = codes        ? coded[i]
			    : c->elastic ? exact_sum(t, size, i)
					 : reduced(c, t, i);
		float g = sum * mult, m = fmaf(one1, g - c->m[i], c->m[i]);
		float v = fmaf(one2 * g, g, b2 * c->v[i]), d = sqrtf(v) / bc2 + eps;

		c->p[i] = fmaf(-step_size, m / d, c->p[i] * decay);
		c->m[i] = m;
		c->v[i] = v;
	}
	reference_image(c, several_nodes(c, size) ? most_of(c, "image_codec=") : 0);
}

static void compare(const struct crew *c, shard_model *m, enum shard_kind kind, const char *what,
		    const float *want, uint64_t step)
{
	float *got = malloc(c->total * sizeof(*got));
	uint32_t at = 0;

	CHECK(got != NULL);
	for (uint32_t t = 0; t < CREW_TENSORS; at += c->numel[t++]) {
		uint32_t image = c->tensors[t].image ? c->tensors[t].image : SHARD_BF16;
		enum shard_dtype dt = kind == SHARD_IMAGE ? (enum shard_dtype)image : SHARD_F32;
		uint64_t is = step;

		MUST(shard_read(m, kind, t, 0, c->numel[t], SHARD_F32, got, &is));
		for (uint32_t i = 0; i < c->numel[t]; i++) {
			float w = want[at + i];
			uint32_t rounded;

			dtype_convert(&rounded, dt, &w, SHARD_F32, 1);
			dtype_convert(&w, SHARD_F32, &rounded, dt, 1);
			if (memcmp(&w, &got[i], sizeof(w)) != 0)
				fail_msg("%s of \"%s\"[%u] after step %lu: %a, not %a", what,
					 tensors[t].name, i, (unsigned long)step, (double)got[i],
					 (double)w);
		}
	}
	free(got);
}

shard_client *crew_connect(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *client;

	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	MUST(shard_connect(&client, &o));
	return client;
}

enum shard_status crew_define(struct crew *c, const char *address, char error[512])
{
	shard_client *client = crew_connect(address);
	enum shard_status st;
	shard_model *m;
	struct shard_spec s;
	char settings[256];
	int created;

	spec_of(c, &s, settings, sizeof(settings));
	st = shard_define(client, &s, &m, &created);
	snprintf(error, 512, "%s", shard_error());
	shard_disconnect(&client);
	return st;
}

void crew_check(struct crew *c, const char *address, uint64_t step)
{
	shard_client *client = crew_connect(address);
	shard_model *m;
	struct shard_spec s;
	char settings[256];
	int created;

	spec_of(c, &s, settings, sizeof(settings));
	MUST(shard_define(client, &s, &m, &created));
	assert_int_equal(created, 0);
	while (c->ref_step < step)
		reference_step(c);
	assert_int_equal(c->ref_step, step);
	compare(c, m, SHARD_MASTER, "master", c->p, step);
	compare(c, m, SHARD_EXP_AVG, "exp_avg", c->m, step);
	compare(c, m, SHARD_EXP_AVG_SQ, "exp_avg_sq", c->v, step);
	if (step == 0 || atomic_load(&c->sealed[step]))
		reference_image(c, 0);
	compare(c, m, SHARD_IMAGE, "image", most_of(c, "image_codec=") > 0 ? c->image : c->p, step);
	shard_disconnect(&client);
}

/* --- trainers --- */

/* False: connect again. */
static bool went_on(struct crew_member *b, enum shard_status st, const char *what)
{
	if (st == SHARD_ROLLED_BACK)
		atomic_fetch_add(&b->rolled_back, 1);
	if (st == SHARD_OK || st == SHARD_WORLD_CHANGED || st == SHARD_ROLLED_BACK)
		return true;
	if (b->reconnects && (st >= SHARD_UNREACHABLE || st == SHARD_TIMEOUT || st == SHARD_BUSY) &&
	    st != SHARD_LOST)
		return false;
	crew_must(st, SHARD_OK, what);
	return false;
}

#define GO(call)                                                                                   \
	do {                                                                                       \
		st = (call);                                                                       \
		if (!went_on(b, st, #call))                                                        \
			return false;                                                              \
	} while (0)

static bool push_all(struct crew_member *b, shard_model *m, const struct shard_step *s,
		     enum shard_status *out)
{
	enum shard_status st = SHARD_OK;
	const struct crew *c = b->crew;
	uint32_t at = c->total;

	for (uint32_t t = CREW_TENSORS; t-- > 0 && st == SHARD_OK;) {
		uint16_t *g = shard_grad(m, t);

		at -= c->numel[t];
		if (g == NULL) {
			st = SHARD_WORLD_CHANGED;
			break;
		}
		for (uint32_t i = 0; i < c->numel[t]; i++)
			g[i] = c->elastic ? small_gradient(s->step, s->rank, at + i)
					  : gradient(s->step, b->rank, at + i);
		GO(shard_push(m, t, 0, c->numel[t], NULL, SHARD_BF16, 0, NULL));
	}
	*out = st;
	return true;
}

/* The weights are back as of the step before this one, and so is the image that is made of them.
 * What came after it does not count. */
static void rolled_back_to(struct crew *c, uint64_t step)
{
	CHECK(step > 0 && step <= CREW_STEPS_MAX);
	atomic_store(&c->sealed[step - 1], 1);
	for (uint64_t t = step; t < CREW_STEPS_MAX; t++)
		atomic_store(&c->sealed[t], 0);
}

/* In any thread. */
static void must_be(bool is, const char *what, uint64_t step, uint64_t other)
{
	if (is)
		return;
	fprintf(stderr, "step %lu, and %lu: %s\n", (unsigned long)step, (unsigned long)other, what);
	abort();
}

/* A member begins a step. `told` is what was committed before it asked. A node that stood still
 * may not know yet that the others have gone on. */
static void elastic_begun(struct crew_member *b, const struct shard_step *s, uint64_t told)
{
	struct crew *c = b->crew;

	CHECK(s->step < CREW_STEPS_MAX && s->rank < s->world_size && s->world_size <= c->nr);
	if (atomic_load(&c->away) >> b->node & 1)
		return;
	must_be(s->step > told, "it is begun again, and a trainer was told of the other one",
		s->step, told);
	atomic_store(&c->begun_size[s->step], (uint8_t)s->world_size);
}

static void elastic_told(struct crew *c, const struct shard_result *r)
{
	uint64_t told = atomic_load(&c->told);
	uint8_t none = 0, size = (uint8_t)r->world_size;

	must_be(atomic_compare_exchange_strong(&c->told_size[r->step], &none, size) || none == size,
		"its world had another size by another result", r->step, size);
	must_be(r->applied == r->step, "so many are applied after it", r->step, r->applied);
	while (told < r->step && !atomic_compare_exchange_weak(&c->told, &told, r->step))
		;
}

static bool one_step(struct crew_member *b, shard_model *m, struct shard_world *w)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_step s = SHARD_INIT(struct shard_step);
	uint64_t told = atomic_load(&b->crew->told);
	uint32_t back = atomic_load(&b->rolled_back);
	enum shard_status st;
	shard_ticket ticket;

	atomic_store(&b->step, w->step);
	GO(shard_begin(m, NULL, &s));
	if (st == SHARD_OK) {
		if (b->crew->elastic)
			elastic_begun(b, &s, told);
		else
			CHECK(s.rank == b->rank && s.world_size == b->crew->nr);
		if (b->crew->pause_us > 0)
			usleep(b->crew->pause_us);
		if (!push_all(b, m, &s, &st))
			return false;
	}
	if (st == SHARD_OK)
		GO(shard_commit(m, &ticket));
	if (st == SHARD_OK)
		GO(shard_result(m, ticket, SHARD_DEFAULT, &r));
	if (st == SHARD_OK)
		CHECK(r.outcome == SHARD_APPLIED && r.step == s.step);
	else
		atomic_fetch_add(&b->retries, 1);
	if (st == SHARD_OK && b->crew->elastic) {
		CHECK(r.world_size == s.world_size);
		elastic_told(b->crew, &r);
	}
	GO(shard_world_get(m, w));
	if (most_of(b->crew, "image_codec=") > 0 && atomic_load(&b->rolled_back) != back)
		rolled_back_to(b->crew, w->step);
	return true;
}

static bool write_weights(struct crew_member *b, shard_model *m)
{
	const struct crew *c = b->crew;
	float *w = malloc(c->total * sizeof(*w));
	enum shard_status st = SHARD_OK;
	uint32_t at = 0;

	CHECK(w != NULL);
	for (uint32_t i = 0; i < c->total; i++)
		w[i] = weight(i);
	for (uint32_t t = 0; t < CREW_TENSORS && st == SHARD_OK; at += c->numel[t++])
		st = shard_write(m, SHARD_MASTER, t, 0, c->numel[t], SHARD_F32, w + at);
	free(w);
	if (st == SHARD_OK)
		st = shard_seal(m, 0);
	if (st == SHARD_UNREACHABLE) /* The coordinator changed: define it again. */
		return false;
	return went_on(b, st, "writing the weights");
}

/* True: the last step is done. */
static bool session(struct crew_member *b, shard_client **client)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	struct shard_spec s;
	char settings[256];
	enum shard_status st;
	shard_model *m;
	int created;

	o.address = b->address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	GO(shard_connect(client, &o));
	spec_of(b->crew, &s, settings, sizeof(settings));
	GO(shard_define(*client, &s, &m, &created));
	if (created && !write_weights(b, m))
		return false;
	GO(shard_join(m, (int)b->rank, pace_ms(20000), &w));
	while (w.step <= atomic_load(&b->crew->last))
		if (!one_step(b, m, &w))
			return false;
	GO(shard_leave(m, pace_ms(10000)));
	return true;
}

/* Its node does not come back, and the others end. */
static bool left_behind(const struct crew_member *b)
{
	return atomic_load(&b->crew->away) >> b->node & 1 &&
	       atomic_load(&b->crew->last) != UINT64_MAX;
}

static void *member(void *arg)
{
	struct crew_member *b = arg;
	bool done = false;

	while (!done) {
		shard_client *client = NULL;

		done = session(b, &client);
		shard_disconnect(&client);
		if (!done) {
			uint32_t n = atomic_fetch_add(&b->reconnected, 1);

			CHECK(n < 1000000);
			done = atomic_load(&b->step) >
			       /* The connection ended while it was leaving. */
			       atomic_load(&b->crew->last);
			done = done || left_behind(b);
			usleep(b->crew->elastic ? 3000 : 200);
		}
	}
	return NULL;
}

/* --- all of them --- */

void crew_init(struct crew *c, const char *name)
{
	memset(c, 0, sizeof(*c));
	c->name = name;
	crew_larger(c, 1);
}

void crew_larger(struct crew *c, uint32_t scale)
{
	CHECK(scale >= 1 && scale <= CREW_SCALE_MAX && c->ref_step == 0);
	memcpy(c->tensors, tensors, sizeof(tensors));
	c->total = 0;
	for (uint32_t t = 0; t < CREW_TENSORS; t++) {
		if (tensors[t].ndim == 2)
			c->tensors[t].shape[0] *= scale;
		c->numel[t] = 1;
		for (uint32_t d = 0; d < tensors[t].ndim; d++)
			c->numel[t] *= (uint32_t)c->tensors[t].shape[d];
		c->total += c->numel[t];
	}
	for (uint32_t i = 0; i < c->total; i++)
		c->p[i] = weight(i);
}

void crew_own_types(struct crew *c)
{
	static const enum shard_dtype own[CREW_TENSORS] = {SHARD_BF16, SHARD_F32, SHARD_F32,
							   SHARD_F16};

	for (uint32_t t = 0; t < CREW_TENSORS; t++)
		c->tensors[t].image = own[t];
}

struct crew_member *crew_add(struct crew *c, const char *address, uint32_t node)
{
	struct crew_member *b = &c->member[c->nr];

	CHECK(c->nr < CREW_MAX);
	b->crew = c;
	b->address = address;
	b->node = node;
	b->rank = c->nr++;
	return b;
}

void crew_start(struct crew *c, uint64_t last)
{
	atomic_store(&c->last, last);
	for (uint32_t i = 0; i < c->nr; i++)
		CHECK(pthread_create(&c->member[i].thread, NULL, member, &c->member[i]) == 0);
}

void crew_run(struct crew *c, uint32_t rank, uint64_t last)
{
	CHECK(rank < c->nr);
	atomic_store(&c->last, last);
	(void)member(&c->member[rank]);
}

uint64_t crew_step(struct crew *c)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < c->nr; i++) {
		uint64_t step = atomic_load(&c->member[i].step);

		most = step > most ? step : most;
	}
	return most;
}

void crew_wait_step(struct crew *c, uint64_t step)
{
	uint64_t until = pace_by(15);

	while (crew_step(c) < step) {
		if (clock_ns() > until)
			fail_msg("step %lu of \"%s\" has not begun in time, it is at %lu",
				 (unsigned long)step, c->name, (unsigned long)crew_step(c));
		usleep(500);
	}
}

void crew_wait_told(struct crew *c, uint64_t step, uint32_t size, uint64_t until_ns)
{
	uint64_t told;

	CHECK(c->elastic);
	while ((told = atomic_load(&c->told)) < step ||
	       (size != 0 && atomic_load(&c->told_size[told]) != size)) {
		if (clock_ns() > until_ns)
			fail_msg(
				"no member was told of step %lu in time, the last one was %lu in a "
				"world of %u",
				(unsigned long)step, (unsigned long)told,
				atomic_load(&c->told_size[told]));
		usleep(500);
	}
}

uint64_t crew_finish(struct crew *c)
{
	uint64_t last = atomic_load(&c->last);

	if (last == UINT64_MAX) { /* The members are at most one step apart. */
		last = crew_step(c) + 3;
		atomic_store(&c->last, last);
	}
	for (uint32_t i = 0; i < c->nr; i++)
		pthread_join(c->member[i].thread, NULL);
	return last;
}
