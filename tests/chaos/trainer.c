// SPDX-License-Identifier: Apache-2.0
/* A trainer of `make chaos`. It uses libshard as a user's program would, connects again whenever
 * its connection ends, and computes nothing. Its gradients are a function of a random nonce that it
 * draws for each begin. It logs what it does before it acts, with one write() per line, so that
 * kill -9 loses no line. replay.py computes the weights from the logs of all trainers. It exits
 * with 0 after SIGTERM or its last step, and with 3 and an F line at a status that no fault
 * explains. Started as `trainer read` it writes the weights and moments of a model into a file. */
#include "shard.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { TENSORS_MAX = 32, ID_ELEMS = 8 };

/* The command line. */
struct plan {
	const char *address, *secret, *name, *settings, *log, *save_dir, *out;
	uint32_t tensors_nr, slot, save_every, pause_ms;
	struct shard_tensor tensor[TENSORS_MAX];
	uint64_t numel[TENSORS_MAX], last; /* last: the step after which it leaves. 0: none. */
	enum shard_dtype image, grad;
	bool ahead, overflow, own_lr;
};

/* A step in hand. */
struct hand {
	struct shard_step step;
	uint64_t nonce;
	shard_ticket ticket;
	bool begun, committed;
};

struct trainer {
	struct plan plan;
	int log;
	shard_client *client;
	shard_model *model;
	struct shard_world world;
	/* `before` is committed, and its result is still to come (max_staleness = 1). */
	struct hand now, before;
	shard_ticket save;
	uint64_t save_step;
	char *scratch;
};

static shard_client *_Atomic interrupted; /* The signal handler wakes it. */
static volatile sig_atomic_t stopping;

static void on_term(int signal)
{
	shard_client *c = interrupted;

	(void)signal;
	stopping = 1;
	if (c != NULL)
		shard_interrupt(c);
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

__attribute__((format(printf, 3, 4))) static void say(struct trainer *t, char kind, const char *fmt,
						      ...)
{
	char line[1024];
	int n = snprintf(line, 64, "%c %" PRIu64 " ", kind, now_ns());
	va_list ap;

	va_start(ap, fmt);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	for (int i = 0; i < n; i++)
		if (line[i] == '\n')
			line[i] = ' ';
	line[n++] = '\n';
	if (write(t->log, line, (size_t)n) != n) {
		perror("trainer: its log");
		_exit(4);
	}
}

static _Noreturn void unexpected(struct trainer *t, const char *what, enum shard_status rc)
{
	say(t, 'F', "%s %s: %s", what, shard_name(rc), shard_error());
	_exit(3);
}

static uint64_t random64(void)
{
	uint64_t x;

	if (getrandom(&x, sizeof(x), 0) != sizeof(x))
		_exit(4);
	return x;
}

static void pause_ms(uint64_t ms)
{
	struct timespec ts = {.tv_sec = (time_t)(ms / 1000),
			      .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&ts, NULL);
}

/* --- values, which replay.py computes with the same functions --- */

static uint32_t mix(uint32_t nonce, uint32_t i)
{
	uint32_t x = i * 0x9e3779b9u + nonce;

	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	x *= 0x846ca68bu;
	return x ^ x >> 16;
}

/* An fp16 number with that exponent field. It is infinite if the exponent is too large. */
static uint16_t half_of(uint32_t x, int exponent)
{
	uint32_t sign = x >> 16 & 0x8000;

	if (exponent > 30)
		return (uint16_t)(sign | 0x7c00);
	return (uint16_t)(sign | (uint32_t)(exponent < 1 ? 1 : exponent) << 10 | (x & 0x3ff));
}

/* Fills in elements [first, first + count) of the model in the gradient's type. They are plain
 * numbers around 1/64. In fp16 they are multiplied by the loss scale (a power of two), and overflow
 * when that is too large. */
static void fill(void *to, enum shard_dtype type, uint32_t nonce, uint64_t first, uint64_t count,
		 double scale)
{
	for (uint64_t i = 0; i < count; i++) {
		uint32_t x = mix(nonce, (uint32_t)(first + i));
		uint32_t bits = (x & 0x807fffffu) | (118 + (x >> 20 & 7)) << 23;

		if (type == SHARD_F32)
			((uint32_t *)to)[i] = bits;
		else if (type == SHARD_BF16)
			((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
		else
			((uint16_t *)to)[i] = half_of(x, (int)(x >> 20 & 7) + 5 + ilogb(scale));
	}
}

static bool absent(uint64_t nonce, uint32_t tensor)
{
	return (mix((uint32_t)(nonce >> 32), tensor) & 3) == 0;
}

static uint64_t weight_of(uint64_t nonce)
{
	return 1 + (nonce >> 32 & 3);
}

static uint32_t bytes_of(enum shard_dtype type)
{
	return type == SHARD_F32 ? 4 : 2;
}

static double lr_of(uint64_t step)
{
	return 0.0625 / (double)(1 + step % 5);
}

/* --- one step --- */

/* Returns the id that was written when the model was made. It is eight small whole numbers in the
 * frozen tensor at the end, which every type holds exactly. */
static uint64_t image_id(const struct trainer *t, const void *image)
{
	uint64_t id = 0;

	for (uint32_t i = 0; i < ID_ELEMS; i++) {
		float f;

		if (t->plan.image == SHARD_F32) {
			memcpy(&f, (const char *)image + 4 * i, 4);
		} else if (t->plan.image == SHARD_BF16) {
			uint32_t bits = (uint32_t)((const uint16_t *)image)[i] << 16;

			memcpy(&f, &bits, 4);
		} else { /* It is 0, or a normal number of at least 1. */
			uint32_t h = ((const uint16_t *)image)[i];
			uint32_t bits = h == 0 ? 0 : (h >> 10 & 31) + 112;

			bits = bits << 23 | (h & 0x3ff) << 13;
			memcpy(&f, &bits, 4);
		}
		id = id << 6 | ((uint64_t)f & 63);
	}
	return id;
}

static void log_begin(struct trainer *t, double lr)
{
	const struct plan *p = &t->plan;
	XXH3_state_t sum;
	uint64_t id = 0;

	XXH3_64bits_reset(&sum);
	for (uint32_t i = 0; i < p->tensors_nr; i++) {
		const void *image = shard_image(t->model, i);

		if (image == NULL) {
			say(t, 'K', "image: none");
			return; /* The connection has ended, and commit will say so. */
		}
		XXH3_64bits_update(&sum, image, p->numel[i] * bytes_of(p->image));
		if (i == p->tensors_nr - 1)
			id = image_id(t, image);
	}
	t->now.begun = true;
	say(t, 'B',
	    "%" PRIu64 " %" PRIu64 " %" PRIu64 " %u %u %" PRIu64 " %.17g %016" PRIx64 " %.17g", id,
	    t->now.step.step, t->now.step.attempt, t->now.step.rank, t->now.step.world_size,
	    t->now.nonce, t->now.step.loss_scale, (uint64_t)XXH3_64bits_digest(&sum), lr);
}

static enum shard_status push_tensor(struct trainer *t, uint32_t i, uint64_t first)
{
	const struct plan *p = &t->plan;
	uint64_t nonce = t->now.nonce;
	bool arena = nonce >> 62 & 1;
	void *to = arena ? shard_grad(t->model, i) : t->scratch;
	enum shard_status rc;
	shard_ticket ticket;

	if (p->tensor[i].flags & SHARD_FROZEN)
		return SHARD_OK;
	if (absent(nonce, i))
		return shard_push_none(t->model, i);
	if (to == NULL)
		return SHARD_CLOSED;
	fill(to, p->grad, (uint32_t)nonce, first, p->numel[i], t->now.step.loss_scale);
	if (i == 0 && p->overflow && (nonce >> 50 & 63) == 0)
		memset(to, 0xff, bytes_of(p->grad)); /* A NaN. */
	do
		rc = shard_push(t->model, i, 0, p->numel[i], arena ? NULL : to, p->grad, 0,
				&ticket);
	while (rc == SHARD_AGAIN);
	return rc;
}

static enum shard_status push_all(struct trainer *t)
{
	const struct plan *p = &t->plan;
	uint64_t first = 0;

	for (uint32_t i = 0; i < p->tensors_nr; i++) {
		enum shard_status rc = push_tensor(t, i, first);

		if (rc != SHARD_OK)
			return rc;
		first += (p->numel[i] + 63) / 64 * 64;
	}
	return SHARD_OK;
}

static void log_result(struct trainer *t, const struct hand *h, const struct shard_result *r)
{
	say(t, 'R', "%" PRIu64 " %d %" PRIu64 " %u %" PRIu64 " %a %a %a %.17g %.17g %.17g",
	    h->step.step, (int)r->outcome, r->applied, r->world_size, r->skipped_in_row,
	    r->grad_norm, r->clip_factor, r->weight_sum, r->loss_scale, r->next_loss_scale, r->lr);
}

/* Gets the result of a commit. A wait that times out is repeated. */
static enum shard_status settle(struct trainer *t, struct hand *h)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	enum shard_status rc;

	while ((rc = shard_result(t->model, h->ticket, SHARD_DEFAULT, &r)) == SHARD_TIMEOUT)
		say(t, 'K', "result %s", shard_error());
	if (rc == SHARD_OK)
		log_result(t, h, &r);
	else if (rc == SHARD_WORLD_CHANGED || rc == SHARD_ROLLED_BACK || rc == SHARD_MISMATCH)
		say(t, 'E', "%" PRIu64 " %s %s", h->step.step, shard_name(rc), shard_error());
	h->committed = false;
	return rc;
}

static enum shard_status step_begin(struct trainer *t)
{
	struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
	uint64_t expect = t->world.step;
	enum shard_status rc;
	double lr;

	t->now = (struct hand){.step = SHARD_INIT(struct shard_step), .nonce = random64()};
	if (t->before.committed)
		expect = t->before.step.step + 1;
	/* Another step may begin meanwhile. Then ranks differ in lr, and all begin again. */
	lr = lr_of(expect);
	b.weight = (double)weight_of(t->now.nonce);
	if (t->plan.own_lr)
		b.lr = &lr;
	while ((rc = shard_begin(t->model, &b, &t->now.step)) == SHARD_TIMEOUT)
		say(t, 'K', "begin %s", shard_error());
	if (rc == SHARD_OK)
		log_begin(t, t->plan.own_lr ? lr : -1);
	return rc;
}

static enum shard_status step_commit(struct trainer *t)
{
	enum shard_status rc;

	if (t->plan.pause_ms > 0)
		pause_ms(random64() % (2 * t->plan.pause_ms));
	if ((t->now.nonce >> 56 & 63) == 0) {
		if ((rc = shard_vote_skip(t->model, "chaos")) == SHARD_OK)
			t->now.ticket = 0;
	} else if ((rc = push_all(t)) == SHARD_OK) {
		rc = shard_commit(t->model, &t->now.ticket);
	}
	t->now.committed = rc == SHARD_OK;
	if (rc == SHARD_WORLD_CHANGED || rc == SHARD_ROLLED_BACK)
		say(t, 'E', "%" PRIu64 " %s %s", t->now.step.step, shard_name(rc), shard_error());
	return rc;
}

/* Begins, pushes and commits. Then it gets the result of this step, or of the one before if it goes
 * ahead. */
static enum shard_status step(struct trainer *t)
{
	enum shard_status rc = step_begin(t), before;
	bool ahead;

	if (rc == SHARD_OK)
		rc = step_commit(t);
	if (t->before.committed) {
		before = settle(t, &t->before);
		rc = rc == SHARD_OK ? before : rc;
	}
	ahead = t->plan.ahead && t->now.ticket != 0 && (t->now.nonce >> 63) != 0;
	if (t->now.committed && rc == SHARD_OK && ahead)
		t->before = t->now;
	else if (t->now.committed && (before = settle(t, &t->now)) != SHARD_OK)
		rc = before;
	return rc;
}

/* --- saves --- */

static void save_look(struct trainer *t)
{
	enum shard_status rc;

	if (t->save == 0 || (rc = shard_test(t->model, t->save)) == SHARD_AGAIN)
		return;
	if (rc == SHARD_OK)
		rc = shard_wait(t->model, t->save, 0);
	say(t, 'S', "%" PRIu64 " %s %s", t->save_step, shard_name(rc),
	    rc == SHARD_OK ? "" : shard_error());
	t->save = 0;
}

static void save_start(struct trainer *t)
{
	uint64_t done = t->now.step.step;
	char tag[32];

	save_look(t);
	if (t->plan.save_every == 0 || done % t->plan.save_every != 0 || t->save != 0)
		return;
	snprintf(tag, sizeof(tag), "turn%" PRIu64, done / t->plan.save_every % 3);
	if (shard_save(t->model, t->plan.save_dir, tag, &t->save) != SHARD_OK) {
		say(t, 'S', "%" PRIu64 " refused %s", done, shard_error());
		t->save = 0;
	} else {
		t->save_step = done;
		say(t, 's', "%" PRIu64 " %s", done, tag);
	}
}

/* --- a connection --- */

static enum shard_status write_weights(struct trainer *t)
{
	const struct plan *p = &t->plan;
	uint64_t id = random64() >> (64 - 6 * ID_ELEMS), first = 0;
	enum shard_status rc = SHARD_OK;

	say(t, 'C', "%" PRIu64, id);
	for (uint32_t i = 0; i < p->tensors_nr && rc == SHARD_OK; i++) {
		float small[ID_ELEMS],
			*w = i == p->tensors_nr - 1 ? small : (float *)(void *)t->scratch;

		if (w != small)
			fill(w, SHARD_F32, (uint32_t)id, first, p->numel[i], 1);
		for (uint32_t k = 0; w == small && k < ID_ELEMS; k++)
			w[k] = (float)(id >> 6 * (ID_ELEMS - 1 - k) & 63);
		rc = shard_write(t->model, SHARD_MASTER, i, 0, p->numel[i], SHARD_F32, w);
		first += (p->numel[i] + 63) / 64 * 64;
	}
	if (rc == SHARD_OK && (rc = shard_seal(t->model, 0)) == SHARD_OK)
		say(t, 'D', "%" PRIu64, id);
	return rc;
}

static enum shard_status join(struct trainer *t)
{
	const struct plan *p = &t->plan;
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	enum shard_status rc;
	int created = 0;

	o.address = p->address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.secret = p->secret;
	o.timeout_ms = 2000;
	s.name = p->name;
	s.tensors = p->tensor;
	s.tensors_nr = p->tensors_nr;
	s.image = p->image;
	s.grad = p->grad;
	s.settings = p->settings;
	if ((rc = shard_connect(&t->client, &o)) != SHARD_OK)
		return rc;
	interrupted = t->client;
	rc = shard_define(t->client, &s, &t->model, &created);
	if (rc == SHARD_OK && created)
		rc = write_weights(t);
	if (rc == SHARD_OK)
		rc = shard_join(t->model, (int)p->slot, 3000, &t->world);
	if (rc == SHARD_OK)
		say(t, 'J', "%" PRIu64 " %u %u", t->world.step, t->world.rank, t->world.world_size);
	return rc;
}

static void part(struct trainer *t)
{
	interrupted = NULL;
	shard_disconnect(&t->client);
	t->model = NULL;
	t->before.committed = t->now.committed = false;
	t->save = 0;
}

/* Returns whether the trainer connects again after this status. False: no fault explains it. */
static bool comes_again(enum shard_status rc, bool joined)
{
	switch ((int)rc) {
	case SHARD_CLOSED:
	case SHARD_UNREACHABLE:
	case SHARD_NOT_FOUND: /* The model was dropped. */
	case SHARD_LOST:
	case SHARD_INTERRUPTED:
		return true;
	case SHARD_TIMEOUT:
	case SHARD_BUSY:
	case SHARD_BAD_STATE: /* Another trainer has sealed it or become its writer meanwhile. */
	case SHARD_EXISTS:
	case SHARD_MISSING:
		return !joined;
	default:
		return false;
	}
}

static enum shard_status train(struct trainer *t)
{
	enum shard_status rc = SHARD_OK;

	while (!stopping && (t->plan.last == 0 || t->world.step <= t->plan.last)) {
		rc = step(t);
		if (rc == SHARD_OK)
			save_start(t);
		else if (rc != SHARD_WORLD_CHANGED && rc != SHARD_ROLLED_BACK &&
			 (rc != SHARD_MISMATCH || !t->plan.own_lr))
			return rc;
		else
			t->before.committed = false;
		if (rc == SHARD_ROLLED_BACK)
			say(t, 'G', "%s", shard_error());
		if (t->before.committed)
			continue; /* It goes ahead, so it must count steps itself. */
		if ((rc = shard_world_get(t->model, &t->world)) != SHARD_OK)
			return rc;
	}
	if (t->before.committed)
		settle(t, &t->before);
	(void)!shard_leave(t->model, 2000);
	stopping = 1;
	return SHARD_OK;
}

static void live(struct trainer *t)
{
	while (!stopping) {
		enum shard_status rc = join(t);
		bool joined = rc == SHARD_OK;

		if (joined)
			rc = train(t);
		if (rc != SHARD_OK)
			say(t, 'K', "%s %s %s", joined ? "train" : "join", shard_name(rc),
			    shard_error());
		if (rc != SHARD_OK && !comes_again(rc, joined))
			unexpected(t, joined ? "train" : "join", rc);
		part(t);
		if (!stopping)
			pause_ms(20 + random64() % 60);
	}
}

/* --- `trainer read` --- */

static int read_model(struct trainer *t)
{
	static const enum shard_kind kinds[] = {SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ,
						SHARD_MOMENTUM};
	static const char *const names[] = {"master", "exp_avg", "exp_avg_sq", "momentum"};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	FILE *f = fopen(t->plan.out, "we");
	uint64_t step = 0;

	o.address = t->plan.address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.secret = t->plan.secret;
	if (f == NULL || shard_connect(&t->client, &o) != SHARD_OK ||
	    shard_attach(t->client, t->plan.name, &t->model) != SHARD_OK)
		goto wrong;
	for (uint32_t k = 0; k < 4; k++) {
		for (uint32_t i = 0; i < shard_tensors(t->model); i++) {
			struct shard_info info = SHARD_INIT(struct shard_info);
			enum shard_status rc = shard_tensor_info(t->model, i, &info);
			float *w = malloc(info.numel * sizeof(*w));

			if (rc == SHARD_OK)
				rc = shard_read(t->model, kinds[k], i, 0, info.numel, SHARD_F32, w,
						&step);
			if (rc == SHARD_OK) {
				fprintf(f, "%s %s %" PRIu64 " %" PRIu64 "\n", names[k], info.name,
					info.numel, step);
				fwrite(w, sizeof(*w), info.numel, f);
			}
			free(w);
			if (rc != SHARD_OK && rc != SHARD_NOT_FOUND)
				goto wrong;
		}
	}
	if (fclose(f) != 0)
		return 1;
	shard_disconnect(&t->client);
	return 0;
wrong:
	fprintf(stderr, "trainer read: %s\n", shard_error());
	return 1;
}

/* --- command line --- */

static enum shard_dtype dtype_of(const char *s)
{
	return strcmp(s, "f32") == 0 ? SHARD_F32 : strcmp(s, "bf16") == 0 ? SHARD_BF16 : SHARD_F16;
}

/* Parses "wte=3000 bias=70", which are tensors of one dimension. The tensor for the id is added. */
static void tensors_of(struct plan *p, char *text)
{
	char *save = NULL;

	for (char *w = strtok_r(text, " ", &save); w != NULL && p->tensors_nr < TENSORS_MAX - 1;
	     w = strtok_r(NULL, " ", &save)) {
		char *at = strchr(w, '=');

		if (at == NULL)
			exit(2);
		*at = 0;
		p->numel[p->tensors_nr] = strtoull(at + 1, NULL, 10);
		p->tensor[p->tensors_nr].name = w;
		p->tensor[p->tensors_nr].ndim = 1;
		p->tensor[p->tensors_nr].shape[0] = p->numel[p->tensors_nr];
		p->tensors_nr++;
	}
	p->numel[p->tensors_nr] = ID_ELEMS;
	p->tensor[p->tensors_nr++] = (struct shard_tensor){
		.name = "id", .ndim = 1, .flags = SHARD_FROZEN, .shape = {ID_ELEMS}};
}

static bool option(struct plan *p, const char *name, char *value)
{
	if (strcmp(name, "address") == 0)
		p->address = value;
	else if (strcmp(name, "secret") == 0)
		p->secret = value;
	else if (strcmp(name, "name") == 0)
		p->name = value;
	else if (strcmp(name, "settings") == 0)
		p->settings = value;
	else if (strcmp(name, "log") == 0)
		p->log = value;
	else if (strcmp(name, "out") == 0)
		p->out = value;
	else if (strcmp(name, "save-dir") == 0)
		p->save_dir = value;
	else if (strcmp(name, "save-every") == 0)
		p->save_every = (uint32_t)atoi(value);
	else if (strcmp(name, "slot") == 0)
		p->slot = (uint32_t)atoi(value);
	else if (strcmp(name, "pause-ms") == 0)
		p->pause_ms = (uint32_t)atoi(value);
	else if (strcmp(name, "last") == 0)
		p->last = strtoull(value, NULL, 10);
	else if (strcmp(name, "image") == 0)
		p->image = dtype_of(value);
	else if (strcmp(name, "grad") == 0)
		p->grad = dtype_of(value);
	else if (strcmp(name, "tensors") == 0)
		tensors_of(p, value);
	else if (strcmp(name, "does") == 0) {
		p->ahead = strstr(value, "ahead") != NULL;
		p->overflow = strstr(value, "overflow") != NULL;
		p->own_lr = strstr(value, "own_lr") != NULL;
	} else
		return false;
	return true;
}

int main(int argc, char **argv)
{
	struct trainer t = {.world = SHARD_INIT(struct shard_world)};
	struct sigaction sa = {.sa_handler = on_term};
	uint64_t most = ID_ELEMS;

	for (int i = 2; i < argc; i++) { /* NAME=VALUE. */
		char *at = strchr(argv[i], '=');

		if (at == NULL)
			return 2;
		*at = 0;
		if (!option(&t.plan, argv[i], at + 1))
			return 2;
	}
	if (argc < 2 || t.plan.address == NULL)
		return 2;
	if (strcmp(argv[1], "read") == 0)
		return read_model(&t);
	for (uint32_t i = 0; i < t.plan.tensors_nr; i++)
		most = most > t.plan.numel[i] ? most : t.plan.numel[i];
	t.scratch = aligned_alloc(64, (most * 4 + 63) / 64 * 64);
	t.log = open(t.plan.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (t.log < 0 || t.scratch == NULL)
		return 4;
	sigaction(SIGTERM, &sa, NULL);
	live(&t);
	free(t.scratch);
	return 0;
}
