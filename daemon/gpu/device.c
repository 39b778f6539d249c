// SPDX-License-Identifier: Apache-2.0
/* One GPU: its opening, its thread, and the way of a job. Happy path: gpu_submit() copies the job
 * into a free slot and puts the slot's number into the todo ring. The thread of the device begins
 * it on a free lane (lanes.c). When no lane is free, or nothing is to begin, it waits for the lane
 * that began first, and puts the number into the done ring, which the loop empties to call done().
 * Both rings have room for every slot. A call of the driver that fails makes the device lost, and
 * the thread answers all jobs with that. If the thread does not come back from a call, the loop
 * gives the device up and answers in its place; the thread touches nothing more if it comes back.
 */
#include "gpu/device_impl.h"

#include "base/check.h"
#include "base/clock.h"
#include "gpu/fatbin.h"
#include "optim/ftz.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COMPUTE_MAJOR_MIN = 8 };
#define DEADLINE_NS (60 * NS_PER_SEC)
#define IMAGE_MAX   ((off_t)256 << 20)

typedef unsigned long long ull;

/* --- the thread --- */

/* With the lock. */
static void wake(struct gpu *g)
{
	if (g->wake_fd >= 0 && !g->loop_gone)
		CHECK(eventfd_write(g->wake_fd, 1) == 0);
}

static void answer(struct gpu *g, uint32_t slot, enum shard_status st)
{
	g->slot[slot].status = st;
	fifo_push(&g->done, slot, g->jobs_max);
	wake(g);
}

/* Takes the lane that began its piece first out of those that are under way. With the lock. */
static uint32_t oldest_out(struct gpu *g)
{
	uint32_t lane = g->busy[0];

	CHECK(g->busy_nr > 0);
	g->busy_nr--;
	memmove(g->busy, g->busy + 1, g->busy_nr * sizeof(g->busy[0]));
	return lane;
}

/* The jobs of all lanes end without results. With the lock. */
static void answer_busy(struct gpu *g)
{
	while (g->busy_nr > 0) {
		uint32_t lane = oldest_out(g);

		g->idle[g->idle_nr++] = lane;
		answer(g, g->lane[lane].slot, SHARD_SYSTEM);
	}
}

static void answer_all(struct gpu *g)
{
	answer_busy(g);
	while (g->todo.nr > 0)
		answer(g, fifo_pop(&g->todo, g->jobs_max), SHARD_SYSTEM);
	wake(g);
}

/* Ends what is under way when the device is lost. */
static void settle(struct gpu *g)
{
	for (uint32_t i = 0; i < GPU_LANES; i++)
		gpu_lane_settle(g, &g->lane[i]);
	pthread_mutex_lock(&g->lock);
	answer_busy(g);
	pthread_mutex_unlock(&g->lock);
}

/* Waits for a lane. */
static void go_on(struct gpu *g, uint32_t lane)
{
	struct gpu_lane *l = &g->lane[lane];
	const struct gpu_job *j = &g->slot[l->slot].job;
	bool more = false;

	if (!gpu_lane_go_on(g, l, &more)) {
		settle(g);
		return;
	}
	if (!more && j->after != NULL)
		j->after(j->owner, j->tag);
	pthread_mutex_lock(&g->lock);
	CHECK(oldest_out(g) == lane);
	if (more) {
		g->busy[g->busy_nr++] = lane; /* Behind the others. */
	} else {
		g->idle[g->idle_nr++] = lane;
		answer(g, l->slot, SHARD_OK);
	}
	pthread_mutex_unlock(&g->lock);
}

/* One thing that is to be done, with the lock, which it gives up meanwhile. False: there is none.
 */
static bool turn(struct gpu *g)
{
	uint32_t lane, slot;

	if (g->lost && g->todo.nr > 0) {
		while (g->todo.nr > 0)
			answer(g, fifo_pop(&g->todo, g->jobs_max), SHARD_SYSTEM);
		return true;
	}
	if (g->todo.nr > 0 && g->idle_nr > 0) {
		slot = fifo_pop(&g->todo, g->jobs_max);
		lane = g->idle[--g->idle_nr];
		g->busy[g->busy_nr++] = lane;
		g->lane[lane].slot = slot;
		pthread_mutex_unlock(&g->lock);
		if (!gpu_lane_begin(g, &g->lane[lane], slot))
			settle(g);
	} else if (g->busy_nr > 0) {
		lane = g->busy[0];
		pthread_mutex_unlock(&g->lock);
		go_on(g, lane);
	} else {
		return false;
	}
	pthread_mutex_lock(&g->lock);
	return true;
}

/* Gives back all that the driver gave, but for pins. With the context current. */
static void give_back(struct gpu *g)
{
	for (uint32_t i = 0; i < GPU_LANES; i++)
		gpu_lane_deinit(g, &g->lane[i]);
	if (g->memory_stream != NULL)
		(void)DRIVE(g, g->d.stream_destroy(g->memory_stream));
	if (g->module != NULL)
		(void)DRIVE(g, g->d.module_unload(g->module));
	g->memory_stream = NULL;
	g->module = NULL;
}

static void free_memory(struct gpu *g)
{
	pthread_cond_destroy(&g->work);
	pthread_cond_destroy(&g->ask);
	pthread_cond_destroy(&g->answered);
	pthread_mutex_destroy(&g->lock);
	pthread_mutex_destroy(&g->pins_lock);
	free(g->pins);
	free(g->todo.at);
	free(g->done.at);
	free(g->unused);
	free(g->batch);
	free(g->slot);
	free(g);
}

void gpu_less(struct gpu *g)
{
	bool last;

	pthread_mutex_lock(&g->lock);
	last = --g->users == 0;
	pthread_mutex_unlock(&g->lock);
	if (last)
		gpu_calls_end(g);
}

void gpu_more(struct gpu *g)
{
	pthread_mutex_lock(&g->lock);
	g->users++;
	pthread_mutex_unlock(&g->lock);
}

static void *thread_main(void *arg)
{
	struct gpu *g = arg;
	cu_context was;
	cu_result rc;
	char name[16];

	snprintf(name, sizeof(name), "shardd-gpu%d", (int)g->device);
	pthread_setname_np(pthread_self(), name);
	ftz_on(); /* For after(). */
	if ((rc = DRIVE(g, g->d.ctx_push(g->ctx))) != CU_SUCCESS)
		gpu_lose(g, rc, "cuCtxPushCurrent");
	pthread_mutex_lock(&g->lock);
	while (!g->given_up) {
		if (turn(g))
			continue;
		if (g->stop)
			break;
		pthread_cond_wait(&g->work, &g->lock);
	}
	if (!g->given_up) { /* Otherwise nobody knows what still runs: it stays the driver's. */
		pthread_mutex_unlock(&g->lock);
		if (rc != CU_SUCCESS) /* Nothing can be given back without. */
			rc = DRIVE(g, g->d.ctx_push(g->ctx));
		give_back(g);
		gpu_unpin_all(g);
		if (rc == CU_SUCCESS)
			(void)DRIVE(g, g->d.ctx_pop(&was));
		pthread_mutex_lock(&g->lock);
	}
	g->gone = true;
	wake(g);
	pthread_mutex_unlock(&g->lock);
	gpu_less(g);
	return NULL;
}

/* --- the loop --- */

static void on_closed(uv_handle_t *h)
{
	struct gpu *g = h->data;
	void (*closed)(void *) = g->closed;
	void *arg = g->closed_arg;

	if (--g->handles_nr > 0)
		return;
	gpu_less(g);
	if (closed)
		closed(arg);
}

static void close_if_idle(struct gpu *g)
{
	bool gone, given_up;

	if (!g->closing || g->pending > 0 || uv_is_closing((uv_handle_t *)&g->wake))
		return;
	pthread_mutex_lock(&g->lock);
	gone = g->gone;
	given_up = g->given_up;
	g->loop_gone = gone || given_up;
	pthread_mutex_unlock(&g->lock);
	if (!gone && !given_up)
		return;
	if (gone)
		pthread_join(g->thread, NULL);
	else
		pthread_detach(g->thread);
	close(g->wake_fd);
	g->handles_nr = 2;
	uv_close((uv_handle_t *)&g->wake, on_closed);
	uv_close((uv_handle_t *)&g->watch, on_closed);
}

/* Calls done() of what is done. */
static void take_done(struct gpu *g)
{
	uint32_t nr = 0;

	pthread_mutex_lock(&g->lock);
	while (g->done.nr > 0)
		g->batch[nr++] = fifo_pop(&g->done, g->jobs_max);
	pthread_mutex_unlock(&g->lock);
	for (uint32_t i = 0; i < nr; i++) {
		/* Copies, because done() may submit a job that takes the slot. */
		const struct slot *s = &g->slot[g->batch[i]];
		void (*done)(void *, uint64_t, enum shard_status, uint64_t) = s->job.done;
		void *owner = s->job.owner;
		uint64_t tag = s->job.tag, kept = s->status == SHARD_OK ? s->kept : 0;
		enum shard_status st = s->status;

		g->unused[g->unused_nr++] = g->batch[i];
		g->pending--;
		done(owner, tag, st, kept);
	}
	if (g->pending == 0 && !g->closing)
		uv_timer_stop(&g->watch);
	close_if_idle(g);
}

static void on_wake(uv_poll_t *h, int status, int events)
{
	struct gpu *g = h->data;
	eventfd_t count;

	CHECK(status == 0 && events == UV_READABLE);
	(void)eventfd_read(g->wake_fd, &count);
	take_done(g);
}

/* Has a thread been in one call of the driver for too long? */
static void on_watch(uv_timer_t *h)
{
	struct gpu *g = h->data;
	bool late;

	pthread_mutex_lock(&g->lock);
	late = gpu_watch(g, &g->watched);
	pthread_mutex_unlock(&g->lock);
	if (late)
		take_done(g);
}

static void watch(struct gpu *g)
{
	uint64_t ms = g->deadline_ns / NS_PER_MS / 4 + 1;

	CHECK(uv_timer_start(&g->watch, on_watch, ms, ms) == 0);
}

static void check_job(const struct gpu_job *j)
{
	const struct gpu_update *u = &j->update;

	CHECK(j->done != NULL);
	if (j->what == GPU_ADD) {
		CHECK(j->add->layout && j->add->chunk < j->add->layout->chunks_nr && j->add->to &&
		      j->add->copy && dtype_ok(j->add->dtype) && j->add->pre > 0 &&
		      j->add->operands_nr > 0 && j->add->operands_nr <= GPU_OPERANDS_MAX &&
		      j->add->up_nr <= GPU_OPERANDS_MAX);
		return;
	}
	if (j->what != GPU_UPDATE) {
		CHECK(j->copies_nr <= GPU_COPIES_MAX && (!j->written || j->what == GPU_TO_HOST));
		return;
	}
	CHECK(u->layout && u->chunk < u->layout->chunks_nr && u->optim && u->args && u->zero &&
	      (u->grad || u->grad_at) && u->image && dtype_ok(u->grad_dtype) &&
	      dtype_ok(u->image_dtype));
	for (uint32_t i = 0; i < NR(u->from); i++)
		CHECK((u->from[i] != 0) == (u->to[i] != 0) &&
		      (u->from[i] != 0) == (i <= u->optim->states_nr));
}

enum shard_status gpu_submit(struct gpu *g, const struct gpu_job *job)
{
	uint32_t slot;

	CHECK(!g->closing);
	check_job(job);
	if (g->unused_nr == 0)
		return SHARD_AGAIN;
	slot = g->unused[--g->unused_nr];
	g->slot[slot] = (struct slot){.job = *job, .status = SHARD_OK};
	if (g->pending++ == 0)
		watch(g);
	pthread_mutex_lock(&g->lock);
	if (g->given_up) {
		answer(g, slot, SHARD_SYSTEM);
	} else {
		fifo_push(&g->todo, slot, g->jobs_max);
		pthread_cond_signal(&g->work);
	}
	pthread_mutex_unlock(&g->lock);
	return SHARD_OK;
}

uint32_t gpu_lanes(const struct gpu *g)
{
	CHECK(g != NULL);
	return GPU_LANES;
}

void gpu_tell(const struct gpu *g, struct gpu_about *about)
{
	*about = (struct gpu_about){.ordinal = g->device,
				    .total_bytes = g->total_bytes,
				    .limit_bytes = g->limit_bytes,
				    .mapped_bytes = g->mapped_bytes,
				    .host_bytes = GPU_LANES * gpu_lane_host_bytes(),
				    .to_device_bytes = g->to_device_bytes,
				    .to_host_bytes = g->to_host_bytes,
				    .updates = g->updates,
				    .sums = g->sums};
	memcpy(about->uuid, g->uuid, sizeof(about->uuid));
	memcpy(about->name, g->name, sizeof(about->name));
}

/* --- opening --- */

/* The kernels of a file. They are freed when the driver has loaded them. */
static enum shard_status read_kernels(const char *path, void **kernels, struct err *e)
{
	FILE *f = fopen(path, "re");
	struct stat st;
	char *image;

	if (f == NULL || fstat(fileno(f), &st) != 0 || st.st_size <= 0 || st.st_size > IMAGE_MAX)
		goto wrong;
	image = malloc((size_t)st.st_size + 1);
	if (image != NULL && fread(image, 1, (size_t)st.st_size, f) == (size_t)st.st_size) {
		image[st.st_size] = 0;
		*kernels = image;
		fclose(f);
		return SHARD_OK;
	}
	free(image);
wrong:
	if (f != NULL)
		fclose(f);
	return err_set(e, SHARD_UNSUPPORTED,
		       "kernels for GPUs cannot be read from %.200s (SHARDD_GPU_KERNELS)", path);
}

static enum shard_status load_kernels(struct gpu *g, struct err *e)
{
	const char *path = secure_getenv("SHARDD_GPU_KERNELS");
	void *mine = NULL;
	const void *image = gpu_fatbin();
	enum shard_status st;
	cu_result rc;

	if (path != NULL && (st = read_kernels(path, &mine, e)) != SHARD_OK)
		return st;
	image = mine ? mine : image;
	CHECK(image != NULL); /* gpu_open() has asked. */
	rc = ASK(g, g->d.module_load(&g->module, image));
	free(mine);
	if (rc != CU_SUCCESS) {
		g->module = NULL;
		return gpu_fail(g, e, rc, "cuModuleLoadData", "of the kernels for GPUs");
	}
	for (int id = 0; id < OPTIM_NR; id++)
		for (int pair = 0; pair < DTYPE_NR * DTYPE_NR; pair++) {
			enum shard_dtype grad = (enum shard_dtype)(1 + pair / DTYPE_NR);
			enum shard_dtype to = (enum shard_dtype)(1 + pair % DTYPE_NR);
			char name[64];

			snprintf(name, sizeof(name), "apply_%s_%s_%s",
				 optim_row((enum optim_id)id)->name, dtype_name(grad),
				 dtype_name(to));
			rc = ASK(g, g->d.module_function(&g->apply[id][grad][to], g->module, name));
			if (rc != CU_SUCCESS)
				return gpu_fail(g, e, rc, "cuModuleGetFunction", name);
		}
	for (int dt = 1; dt <= DTYPE_NR; dt++) {
		char name[64];

		snprintf(name, sizeof(name), "sum_%s", dtype_name((enum shard_dtype)dt));
		if ((rc = ASK(g, g->d.module_function(&g->sum[dt], g->module, name))) != CU_SUCCESS)
			return gpu_fail(g, e, rc, "cuModuleGetFunction", name);
	}
	return SHARD_OK;
}

/* Which device it is. */
static enum shard_status find_device(struct gpu *g, const struct gpu_conf *conf, struct err *e)
{
	int nr = 0;
	cu_result rc;

	if ((rc = ASK(g, g->d.device_count(&nr))) != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuDeviceGetCount", "");
	for (int i = 0; i < nr; i++) {
		struct cu_uuid uuid;

		if (conf->uuid == NULL && i != conf->ordinal)
			continue;
		if ((rc = ASK(g, g->d.device_get(&g->device, i))) != CU_SUCCESS)
			return gpu_fail(g, e, rc, "cuDeviceGet", "");
		if ((rc = ASK(g, g->d.device_uuid(&uuid, g->device))) != CU_SUCCESS)
			return gpu_fail(g, e, rc, "cuDeviceGetUuid", "");
		memcpy(g->uuid, uuid.bytes, sizeof(g->uuid));
		gpu_uuid_text(g->uuid, g->uuid_text);
		if (conf->uuid == NULL || memcmp(conf->uuid, g->uuid, GPU_UUID_BYTES) == 0)
			return SHARD_OK;
	}
	if (conf->uuid == NULL)
		return err_set(e, SHARD_NOT_FOUND, "there is no GPU %d: the driver shows %d",
			       conf->ordinal, nr);
	gpu_uuid_text(conf->uuid, g->uuid_text);
	return err_set(
		e, SHARD_NOT_FOUND,
		"there is no %s among the %d GPUs that the driver shows: nvidia-smi -L lists "
		"them, and CUDA_VISIBLE_DEVICES may hide some",
		g->uuid_text, nr);
}

/* What it is, and whether it can do what is needed. */
static enum shard_status judge_device(struct gpu *g, struct err *e)
{
	static const struct {
		int attribute, least;
		const char *lacks;
	} needs[] = {
		{CU_COMPUTE_MAJOR, COMPUTE_MAJOR_MIN,
		 "is too old: the kernels need compute capability 8.0 or newer"},
		{CU_VIRTUAL_MEMORY, 1, "has no virtual memory management"},
		{CU_MEMORY_DESCRIPTORS, 1, "cannot give memory as a descriptor"},
	};
	cu_result rc = ASK(g, g->d.device_name(g->name, sizeof(g->name) - 1, g->device));

	if (rc != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuDeviceGetName", "");
	for (size_t i = 0; i < NR(needs); i++) {
		int value = 0;

		rc = ASK(g, g->d.device_attribute(&value, needs[i].attribute, g->device));
		if (rc != CU_SUCCESS)
			return gpu_fail(g, e, rc, "cuDeviceGetAttribute", "");
		if (value < needs[i].least)
			return err_set(e, SHARD_UNSUPPORTED, "%s (%s) %s", g->uuid_text, g->name,
				       needs[i].lacks);
	}
	return SHARD_OK;
}

/* With the context current. */
static enum shard_status take_device(struct gpu *g, uint64_t limit_bytes, struct err *e)
{
	const struct cu_memory_prop prop = {.type = CU_MEMORY_PINNED,
					    .handle_types = CU_MEMORY_DESCRIPTOR,
					    .location = {CU_LOCATION_DEVICE, g->device}};
	size_t left = 0, total = 0, granularity = 0;
	enum shard_status st;
	cu_result rc;

	if ((st = load_kernels(g, e)) != SHARD_OK)
		return st;
	rc = ASK(g, g->d.granularity(&granularity, &prop, CU_GRANULARITY_MINIMUM));
	if (rc != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemGetAllocationGranularity", "");
	CHECK(granularity > 0);
	g->granularity = granularity;
	if ((rc = ASK(g, g->d.stream_create(&g->memory_stream, CU_STREAM_OWN))) != CU_SUCCESS) {
		g->memory_stream = NULL;
		return gpu_fail(g, e, rc, "cuStreamCreate", "");
	}
	for (uint32_t i = 0; i < GPU_LANES; i++)
		if ((st = gpu_lane_init(g, &g->lane[i], e)) != SHARD_OK)
			return st;
	if ((rc = ASK(g, g->d.memory_info(&left, &total))) !=
	    CU_SUCCESS) /* After all that takes some. */
		return gpu_fail(g, e, rc, "cuMemGetInfo", "");
	g->total_bytes = total;
	g->limit_bytes = limit_bytes ? limit_bytes : left / 10 * 9;
	return SHARD_OK;
}

static enum shard_status make_memory(struct gpu *g, struct err *e)
{
	g->slot = calloc(g->jobs_max, sizeof(*g->slot));
	g->todo.at = calloc(g->jobs_max, sizeof(uint32_t));
	g->done.at = calloc(g->jobs_max, sizeof(uint32_t));
	g->unused = calloc(g->jobs_max, sizeof(uint32_t));
	g->batch = calloc(g->jobs_max, sizeof(uint32_t));
	if (!g->slot || !g->todo.at || !g->done.at || !g->unused || !g->batch)
		return err_sys(e, ENOMEM, "no memory for %u jobs of a GPU", g->jobs_max);
	for (uint32_t i = 0; i < g->jobs_max; i++)
		g->unused[i] = g->jobs_max - 1 - i;
	g->unused_nr = g->jobs_max;
	return SHARD_OK;
}

static void stop_thread(struct gpu *g)
{
	pthread_mutex_lock(&g->lock);
	g->stop = true;
	pthread_cond_signal(&g->work);
	pthread_mutex_unlock(&g->lock);
}

/* After a failure the thread may have given all back: g->gone. */
static enum shard_status start(struct gpu *g, uv_loop_t *loop, struct err *e)
{
	enum shard_status st;
	int rc;

	g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (g->wake_fd < 0)
		return err_sys(e, errno, "no descriptor to wake the loop with: %s",
			       strerror(errno));
	gpu_more(g);
	st = gpu_start_thread(&g->thread, thread_main, g, e);
	if (st != SHARD_OK)
		gpu_less(g);
	/* Last, because it can only be undone through the loop. */
	if (st == SHARD_OK && (rc = uv_poll_init(loop, &g->wake, g->wake_fd)) != 0) {
		st = err_set(e, SHARD_SYSTEM, "the loop cannot be woken: %s", uv_strerror(rc));
		stop_thread(g);
		pthread_join(g->thread, NULL);
	}
	if (st != SHARD_OK) {
		close(g->wake_fd);
		return st;
	}
	CHECK(uv_timer_init(loop, &g->watch) == 0);
	g->wake.data = g->watch.data = g;
	CHECK(uv_poll_start(&g->wake, UV_READABLE, on_wake) == 0);
	return SHARD_OK;
}

static uint64_t deadline(void)
{
	const char *ms = secure_getenv("SHARDD_GPU_DEADLINE_MS");

	return ms != NULL && atoi(ms) > 0 ? (uint64_t)atoi(ms) * NS_PER_MS : DEADLINE_NS;
}

static struct gpu *new_gpu(const struct gpu_conf *conf)
{
	struct gpu *g = calloc(1, sizeof(*g));
	pthread_condattr_t monotonic;

	if (g == NULL)
		return NULL;
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->pins_lock, NULL);
	pthread_cond_init(&g->work, NULL);
	pthread_cond_init(&g->ask, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&g->answered, &monotonic);
	pthread_condattr_destroy(&monotonic);
	list_init(&g->asked);
	g->on_given_up = answer_all;
	g->on_unused = free_memory;
	g->users = 1;
	strcpy(g->uuid_text, "a GPU");
	g->jobs_max = conf->jobs_max;
	g->deadline_ns = conf->deadline_ns ? conf->deadline_ns : deadline();
	g->wake_fd = -1;
	for (uint32_t i = 0; i < GPU_LANES; i++)
		g->idle[g->idle_nr++] = GPU_LANES - 1 - i;
	return g;
}

static enum shard_status find_driver(struct gpu *g, struct err *e)
{
	enum shard_status st;

	if (!gpu_asks(g))
		return gpu_fail(g, e, GPU_GIVEN_UP, "", "");
	st = driver_open(&g->d, DRIVER_DAEMON, e);
	return gpu_asked(g, CU_SUCCESS) == CU_SUCCESS ? st : gpu_fail(g, e, GPU_GIVEN_UP, "", "");
}

struct counting {
	int nr;
	enum shard_status st;
	struct err e;
};

static void run_count(struct gpu *g, void *arg)
{
	struct counting *c = arg;
	cu_result rc;

	if ((c->st = find_driver(g, &c->e)) == SHARD_OK &&
	    (rc = ASK(g, g->d.device_count(&c->nr))) != CU_SUCCESS)
		c->st = gpu_fail(g, &c->e, rc, "cuDeviceGetCount", "");
}

enum shard_status gpu_count(uint32_t *nr, struct err *e)
{
	const struct gpu_conf conf = {.jobs_max = 1};
	struct gpu *g = new_gpu(&conf);
	struct counting c = {.nr = 0};
	enum shard_status st;

	*nr = 0;
	if (g == NULL)
		return err_sys(e, ENOMEM, "no memory for a GPU");
	if ((st = gpu_calls_init(g, e)) == SHARD_OK &&
	    (st = gpu_ask(g, run_count, &c, sizeof(c), e)) == SHARD_OK && c.st != SHARD_OK) {
		st = c.st;
		*e = c.e;
	}
	if (st == SHARD_OK)
		*nr = c.nr > 0 ? (uint32_t)c.nr : 0;
	gpu_less(g);
	return st;
}

struct opening {
	struct gpu_conf conf;
	uint8_t uuid[GPU_UUID_BYTES];
	enum shard_status st;
	struct err e;
};

static void run_open(struct gpu *g, void *arg)
{
	struct opening *o = arg;
	struct err *e = &o->e;
	cu_result rc;

	if (o->conf.uuid != NULL)
		o->conf.uuid = o->uuid;
	if ((o->st = find_driver(g, e)) != SHARD_OK ||
	    (o->st = find_device(g, &o->conf, e)) != SHARD_OK ||
	    (o->st = judge_device(g, e)) != SHARD_OK ||
	    (o->st = gpu_judge_direct(g, e)) != SHARD_OK)
		return;
	if ((rc = ASK(g, g->d.primary_retain(&g->ctx, g->device))) != CU_SUCCESS) {
		g->ctx = NULL;
		o->st = gpu_fail(g, e, rc, "cuDevicePrimaryCtxRetain", "");
		return;
	}
	/* It stays current for all that is asked later. */
	if ((rc = ASK(g, g->d.ctx_push(g->ctx))) != CU_SUCCESS) {
		o->st = gpu_fail(g, e, rc, "cuCtxPushCurrent", "");
		return;
	}
	o->st = take_device(g, o->conf.bytes, e);
	if (o->st != SHARD_OK && !gpu_hangs(g))
		give_back(g);
}

static void run_give_back(struct gpu *g, void *arg)
{
	(void)arg;
	give_back(g);
}

enum shard_status gpu_open(struct gpu **out, const struct gpu_conf *conf, uv_loop_t *loop,
			   struct err *e)
{
	struct opening o = {.conf = *conf};
	struct gpu *g;
	enum shard_status st;
	struct err none;

	CHECK(conf->jobs_max > 0);
	if (gpu_fatbin() == NULL && secure_getenv("SHARDD_GPU_KERNELS") == NULL)
		return err_set(e, SHARD_UNSUPPORTED,
			       "this shardd was built without kernels for GPUs: `make nvcc` "
			       "fetches the compiler for them, then build it again");
	g = new_gpu(conf);
	if (g == NULL)
		return err_sys(e, ENOMEM, "no memory for a GPU");
	if (conf->uuid != NULL)
		memcpy(o.uuid, conf->uuid, sizeof(o.uuid));
	if ((st = make_memory(g, e)) != SHARD_OK || (st = gpu_calls_init(g, e)) != SHARD_OK ||
	    (st = gpu_ask(g, run_open, &o, sizeof(o), e)) != SHARD_OK)
		goto err;
	if ((st = o.st) != SHARD_OK) {
		*e = o.e;
		goto err;
	}
	st = start(g, loop, e);
	if (st == SHARD_OK) {
		*out = g;
		return SHARD_OK;
	}
	if (!g->gone)
		(void)gpu_ask(g, run_give_back, &o, sizeof(o), &none);
err:
	gpu_less(g);
	return st;
}

void gpu_close(struct gpu **gp, void (*closed)(void *arg), void *arg)
{
	struct gpu *g = *gp;

	*gp = NULL;
	CHECK(g != NULL && !g->closing);
	g->closing = true;
	g->closed = closed;
	g->closed_arg = arg;
	watch(g);
	stop_thread(g);
	close_if_idle(g);
}
