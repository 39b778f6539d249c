/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of the fake library, and the faults that tests cause. The functions that a program
 * calls have the names of libibverbs, and the linker finds these first. */
#include "rdma/fake_impl.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void set_gid(union ibv_gid *g, const char *address)
{
	memset(g, 0, sizeof(*g));
	if (!address)
		return;
	if (inet_pton(AF_INET, address, g->raw + 12) == 1)
		g->raw[10] = g->raw[11] = 0xff;
	else if (inet_pton(AF_INET6, address, g->raw) != 1)
		fake_misuse("\"%s\" is no address", address);
}

static void set_devices(const struct fake_device *devices, uint32_t nr)
{
	fake.devs = nr;
	for (uint32_t i = 0; i < nr; i++) {
		struct fake_dev *d = &fake.dev[i];

		memset(d, 0, sizeof(*d));
		d->conf = devices[i];
		snprintf(d->name, sizeof(d->name), "%s",
			 devices[i].name ? devices[i].name : "fake0");
		d->lid = (uint16_t)(i + 1);
		for (uint32_t k = 0; k < FAKE_GIDS_MAX; k++)
			set_gid(&d->gid[k], devices[i].gid[k].address);
	}
}

static void defaults(void)
{
	static const struct fake_device fake0 = {.gid = {{"fe80::1", IBV_GID_TYPE_ROCE_V1},
							 {"fe80::1", IBV_GID_TYPE_ROCE_V2},
							 {"127.0.0.1", IBV_GID_TYPE_ROCE_V1},
							 {"127.0.0.1", IBV_GID_TYPE_ROCE_V2}}};

	set_devices(&fake0, 1);
}

void fake_lock(void)
{
	pthread_mutex_lock(&fake.lock);
	if (fake.next_qpn == 0) {
		fake.next_qpn = 17;
		fake.next_key = 0x1000;
		defaults();
	}
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&fake.lock);
}

void fake_misuse(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "fake verbs: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	abort();
}

static int planned(enum fake_call call)
{
	fake.calls[call]++;
	if (fake.always[call] != 0)
		return fake.always[call];
	return fake.fail_in[call] > 0 && --fake.fail_in[call] == 0 ? fake.fail_with[call] : 0;
}

int fake_enter(enum fake_call call)
{
	int any = planned(FAKE_ANY), rc = planned(call);

	return any ? any : rc;
}

size_t fake_place(const void *table, size_t bytes, const void *what)
{
	for (size_t i = 0; i < bytes / sizeof(what); i++)
		if (memcmp((const char *)table + i * sizeof(what), &what, sizeof(what)) == 0)
			return i;
	fake_misuse(what ? "freed twice" : "more objects than the fake has room for");
}

struct fake_context *fake_context_of(struct ibv_context *c)
{
	return (struct fake_context *)(void *)c;
}

struct fake_qp *fake_find_qp(uint32_t qpn)
{
	for (uint32_t i = 0; i < FAKE_QPS; i++)
		if (fake.qps[i] && fake.qps[i]->qp.qp_num == qpn)
			return fake.qps[i];
	return NULL;
}

/* --- for tests --- */

void fake_reset(void)
{
	const struct fake_live none = {0};

	fake_lock();
	if (memcmp(&fake.live, &none, sizeof(none)) != 0)
		fake_misuse("at a reset there are %u devices, %u domains, %u regions, %u channels, "
			    "%u queues, %u queue pairs",
			    fake.live.devices, fake.live.domains, fake.live.regions,
			    fake.live.channels, fake.live.queues, fake.live.qps);
	memset(fake.calls, 0, sizeof(fake.calls));
	memset(fake.fail_in, 0, sizeof(fake.fail_in));
	memset(fake.always, 0, sizeof(fake.always));
	fake.rnr = fake.work = fake.fail_work = 0;
	fake.next_qpn = 17;
	fake.memlock = 0;
	fake.hold = fake.cut_all = false;
	fake.hook = NULL;
	defaults();
	fake_unlock();
}

void fake_devices(const struct fake_device *devices, uint32_t nr)
{
	fake_lock();
	if (fake.live.devices > 0 || nr > FAKE_DEVICES_MAX)
		fake_misuse("devices are chosen before one is open, at most %d", FAKE_DEVICES_MAX);
	set_devices(devices, nr);
	fake_unlock();
}

void fake_fail(enum fake_call call, uint32_t nth, int error)
{
	fake_lock();
	fake.fail_in[call] = nth;
	fake.fail_with[call] = error;
	fake_unlock();
}

void fake_fail_always(enum fake_call call, int error)
{
	fake_lock();
	fake.always[call] = error;
	fake_unlock();
}

uint32_t fake_calls(enum fake_call call)
{
	uint32_t nr;

	fake_lock();
	nr = fake.calls[call];
	fake_unlock();
	return nr;
}

void fake_memlock(size_t bytes)
{
	fake_lock();
	fake.memlock = bytes;
	fake_unlock();
}

struct fake_live fake_live(void)
{
	struct fake_live l;

	fake_lock();
	l = fake.live;
	fake_unlock();
	return l;
}

uint32_t fake_rnr(void)
{
	uint32_t nr;

	fake_lock();
	nr = fake.rnr;
	fake_unlock();
	return nr;
}

uint32_t fake_work(void)
{
	uint32_t nr;

	fake_lock();
	nr = fake.work;
	fake_unlock();
	return nr;
}

void fake_fail_work(uint32_t nth, enum ibv_wc_status status)
{
	fake_lock();
	fake.fail_work = nth;
	fake.fail_status = status;
	fake_unlock();
}

void fake_cut(uint32_t qpn, bool cut)
{
	struct fake_qp *q;

	fake_lock();
	q = fake_find_qp(qpn);
	if (qpn == 0)
		fake.cut_all = cut;
	else if (q)
		q->cut = cut;
	fake_pump();
	fake_unlock();
}

void fake_hold(bool hold)
{
	fake_lock();
	fake.hold = hold;
	fake_pump();
	fake_unlock();
}

uint32_t fake_deliver(uint32_t nr, uint64_t *seed)
{
	uint32_t done = 0;

	fake_lock();
	for (bool any = true; done < nr && any;) {
		uint32_t from;

		*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
		from = (uint32_t)(*seed >> 33);
		any = false;
		for (uint32_t i = 0; i < FAKE_QPS && !any; i++) {
			struct fake_qp *q = fake.qps[(from + i) % FAKE_QPS];

			any = q && fake_one(q);
		}
		done += any;
	}
	fake_unlock();
	return done;
}

void fake_push_event(struct fake_context *c, const struct ibv_async_event *ev)
{
	uint64_t one = 1;

	if (c->nr == FAKE_EVENTS)
		return;
	c->events[(c->first + c->nr++) % FAKE_EVENTS] = *ev;
	if (write(c->c.async_fd, &one, sizeof(one)) != sizeof(one))
		fake_misuse("an event's descriptor is full");
}

static void device_event(const char *device, enum ibv_event_type type, bool removed)
{
	struct ibv_async_event ev = {.event_type = type, .element.port_num = 1};

	for (uint32_t i = 0; i < FAKE_CONTEXTS; i++) {
		struct fake_context *c = fake.contexts[i];

		if (!c || strcmp(c->dev->name, device) != 0)
			continue;
		c->dev->removed |= removed;
		for (uint32_t k = 0; removed && k < FAKE_QPS; k++)
			if (fake.qps[k] && fake.qps[k]->qp.context == &c->c)
				fake_flush(fake.qps[k]);
		fake_push_event(c, &ev);
	}
}

void fake_event(const char *device, enum ibv_event_type type)
{
	fake_lock();
	device_event(device, type, false);
	fake_unlock();
}

void fake_remove(const char *device)
{
	fake_lock();
	device_event(device, IBV_EVENT_DEVICE_FATAL, true);
	fake_pump();
	fake_unlock();
}

void fake_qp_event(uint32_t qpn, enum ibv_event_type type)
{
	struct ibv_async_event ev = {.event_type = type};
	struct fake_qp *q;

	fake_lock();
	q = fake_find_qp(qpn);
	if (q) {
		ev.element.qp = &q->qp;
		if (type == IBV_EVENT_CQ_ERR)
			ev.element.cq = q->qp.send_cq;
		fake_push_event(fake_context_of(q->qp.context), &ev);
	}
	fake_unlock();
}

void fake_break_qp(uint32_t qpn)
{
	struct fake_qp *q;

	fake_lock();
	q = fake_find_qp(qpn);
	if (q)
		fake_flush(q);
	fake_unlock();
}

void fake_set_gid(const char *device, uint32_t index, const char *address)
{
	fake_lock();
	for (uint32_t i = 0; i < fake.devs; i++)
		if (strcmp(fake.dev[i].name, device) == 0)
			set_gid(&fake.dev[i].gid[index], address);
	fake_unlock();
}

void fake_hook(fake_hook_fn fn, void *arg)
{
	fake_lock();
	fake.hook = fn;
	fake.hook_arg = arg;
	fake_unlock();
}

uint32_t fake_qps(uint32_t *qpn, uint32_t max)
{
	uint32_t nr = 0;

	fake_lock();
	for (uint32_t n = 17; n < fake.next_qpn && nr < max; n++)
		if (fake_find_qp(n))
			qpn[nr++] = n;
	fake_unlock();
	return nr;
}

struct ibv_qp *fake_qp(uint32_t qpn)
{
	struct fake_qp *q;

	fake_lock();
	q = fake_find_qp(qpn);
	fake_unlock();
	return q ? &q->qp : NULL;
}
