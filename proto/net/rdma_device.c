/* SPDX-License-Identifier: Apache-2.0 */
/* The device in the loop. This file owns the completion channel and the watchers of it and of
 * asynchronous events, and gives rails their turns. daemon/link opens and closes it, and libuv
 * calls it in between. Happy path: an event says that a completion queue has entries, and its rail
 * gets a turn. A rail that has more to do than one turn allows, polls busily, or failed outside of
 * a turn gets the next turn in the loop's following round. If the device or its port is gone, every
 * rail fails, and then gone() is called. */
#include "net/rdma_impl.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static void on_closed(uv_handle_t *h)
{
	struct rdma *r = h->data;

	CHECK(r->closing && r->handles > 0);
	if (--r->handles == 0)
		free(r);
}

static void on_turns(uv_idle_t *h);
static void on_timer(uv_timer_t *t);

void rdma_want_turn(struct rdma *r)
{
	if (!r->turning && !r->closing)
		CHECK(uv_idle_start(&r->turns, on_turns) == 0);
	r->turning = true;
}

/* The timer is set again only when it must fire earlier than it will. Frames that are completed in
 * time cost nothing. */
void rdma_want_timer(struct rdma *r, uint64_t due)
{
	uint64_t now;

	if (r->closing || (r->due_ns != 0 && r->due_ns <= due))
		return;
	now = clock_ns();
	r->due_ns = due;
	CHECK(uv_timer_start(&r->timer, on_timer, due > now ? (due - now) / NS_PER_MS + 1 : 1, 0) ==
	      0);
}

/* Gives every rail a turn. A rail that a handler frees meanwhile adjusts turn_next. */
static void turn_all(struct rdma *r)
{
	for (struct list *it = r->rails.next; it != &r->rails; it = r->turn_next) {
		r->turn_next = it->next;
		(void)rdma_rail_turn(list_of(it, struct rdma_rail, node), false);
	}
	r->turn_next = NULL;
}

static void on_turns(uv_idle_t *h)
{
	struct rdma *r = h->data;

	r->turning = false;
	turn_all(r);
	if (!r->turning && clock_ns() < r->spin_ns)
		r->turning = true;
	if (!r->turning)
		CHECK(uv_idle_stop(&r->turns) == 0);
}

static void on_timer(uv_timer_t *t)
{
	struct rdma *r = t->data;

	r->due_ns = 0;
	turn_all(r);
}

static void is_gone(struct rdma *r, const char *what, int error)
{
	if (r->over)
		return;
	r->over = true;
	err_set(&r->why, SHARD_UNREACHABLE, "RDMA device %s: %s%s%s", r->at.name, what,
		error ? ": " : "", error ? strerror(error) : "");
	/* A descriptor of a device that is gone is always ready. */
	CHECK(uv_poll_stop(&r->completions) == 0 && uv_poll_stop(&r->events) == 0);
	list_each(it, &r->rails)
		rdma_rail_fail(list_of(it, struct rdma_rail, node), SHARD_UNREACHABLE, "%s",
			       r->why.text);
	turn_all(r);
	if (r->conf.gone)
		r->conf.gone(r->conf.owner, &r->why);
}

static void on_completions(uv_poll_t *p, int status, int events)
{
	struct rdma *r = p->data;

	uint32_t nr = 0;

	(void)events;
	while (nr < RDMA_TURN &&
	       !r->over) { /* The descriptor stays readable for the events that are left. */
		struct ibv_cq *cq = NULL;
		void *rail = NULL;

		if (ibv_get_cq_event(r->channel, &cq, &rail) != 0) {
			if (errno != EAGAIN && errno != EINTR)
				is_gone(r, "its completion channel is over", errno);
			else if (status < 0)
				is_gone(r, "its completion channel is over", -status);
			return;
		}
		ibv_ack_cq_events(cq, 1);
		nr += rdma_rail_turn(rail, true) + 1;
	}
}

/* Handles the events that end something. What the others tell is seen elsewhere. */
static void on_event(struct rdma *r, const struct ibv_async_event *ev)
{
	const struct rdma_qp *q;
	struct rdma_rail *l;

	switch ((int)ev->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		q = ev->element.qp->qp_context;
		rdma_rail_fail(q->rail, SHARD_UNREACHABLE, "RDMA queue pair %u to %s: %s", q->index,
			       q->rail->there, ibv_event_type_str(ev->event_type));
		rdma_want_turn(r);
		break;
	case IBV_EVENT_CQ_ERR:
		l = ev->element.cq->cq_context;
		rdma_rail_fail(l, SHARD_SYSTEM, "RDMA completion queue of %s: %s", l->there,
			       ibv_event_type_str(ev->event_type));
		rdma_want_turn(r);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		is_gone(r, ibv_event_type_str(ev->event_type), 0);
		break;
	case IBV_EVENT_PORT_ERR:
		if (ev->element.port_num == r->at.port)
			is_gone(r, "its port is down", 0);
		break;
	case IBV_EVENT_GID_CHANGE:
		if (!rdma_place_holds(&r->at))
			is_gone(r, "its address changed", 0);
		break;
	default:
		break;
	}
}

static void on_events(uv_poll_t *p, int status, int events)
{
	struct rdma *r = p->data;
	struct ibv_async_event ev;

	(void)events;
	while (!r->over) {
		if (ibv_get_async_event(r->at.verbs, &ev) != 0) {
			if (errno != EAGAIN && errno != EINTR)
				is_gone(r, "removed", errno);
			else if (status < 0)
				is_gone(r, "removed", -status);
			return;
		}
		/* The queue pair or queue that the event names is destroyed on this thread only, so
		 * it exists until this returns. */
		ibv_ack_async_event(&ev);
		on_event(r, &ev);
	}
}

static bool nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static enum shard_status watch(struct rdma *r, uv_poll_t *p, int fd, uv_poll_cb cb, struct err *e)
{
	int rc = nonblocking(fd) ? uv_poll_init(r->loop, p, fd) : -errno;

	if (rc != 0)
		return err_set(e, SHARD_SYSTEM, "the loop cannot watch RDMA device %s: %s",
			       r->at.name, uv_strerror(rc));
	p->data = r;
	r->handles++;
	CHECK(uv_poll_start(p, UV_READABLE, cb) == 0);
	return SHARD_OK;
}

/* Registers a page, so that a lack of lockable memory shows now and not when the first peer
 * connects. */
static enum shard_status probe(struct rdma *r, struct err *e)
{
	struct rdma_domain *d = NULL;
	struct rdma_region *g = NULL;
	void *page = aligned_alloc(4096, 4096);
	enum shard_status rc = page ? rdma_domain_new(&d, r, e)
				    : err_set(e, SHARD_SYSTEM, "no memory to try RDMA");

	if (rc == SHARD_OK) {
		rc = rdma_register(&g, d, page, 4096, false, e);
		rdma_deregister(&g);
		rdma_domain_free(&d);
	}
	free(page);
	return rc;
}

enum shard_status rdma_open(struct rdma **out, uv_loop_t *loop, const struct rdma_conf *conf,
			    struct err *e)
{
	struct rdma *r = calloc(1, sizeof(*r));
	enum shard_status rc;

	*out = NULL;
	if (!r)
		return err_set(e, SHARD_SYSTEM, "no memory for RDMA");
	r->loop = loop;
	r->conf = *conf;
	r->conf.device = r->conf.address = NULL; /* The strings are the caller's. */
	list_init(&r->rails);
	rc = rdma_place_find(&r->at, conf, e);
	if (rc != SHARD_OK)
		goto err_memory;
	rc = probe(r, e);
	if (rc != SHARD_OK)
		goto err_device;
	r->channel = ibv_create_comp_channel(r->at.verbs);
	if (!r->channel) {
		rc = err_set(e, SHARD_SYSTEM, "RDMA device %s: no completion channel: %s",
			     r->at.name, strerror(errno));
		goto err_device;
	}
	CHECK(uv_idle_init(loop, &r->turns) == 0 && uv_timer_init(loop, &r->timer) == 0);
	r->turns.data = r->timer.data = r;
	r->handles = 2;
	*out = r;
	rc = watch(r, &r->completions, r->channel->fd, on_completions, e);
	if (rc == SHARD_OK)
		rc = watch(r, &r->events, r->at.verbs->async_fd, on_events, e);
	if (rc != SHARD_OK)
		rdma_close(out);
	return rc;
err_device:
	(void)ibv_close_device(r->at.verbs);
err_memory:
	free(r);
	return rc;
}

void rdma_close(struct rdma **rp)
{
	struct rdma *r = *rp;

	if (!r)
		return;
	*rp = NULL;
	CHECK(!r->closing && !r->turn_next && r->domains == 0 && list_empty(&r->rails));
	r->closing = true;
	uv_close((uv_handle_t *)&r->turns, on_closed);
	uv_close((uv_handle_t *)&r->timer, on_closed);
	if (r->completions.data) /* It was initialised. uv_close() stops watching at once. */
		uv_close((uv_handle_t *)&r->completions, on_closed);
	if (r->events.data)
		uv_close((uv_handle_t *)&r->events, on_closed);
	(void)ibv_destroy_comp_channel(r->channel);
	(void)ibv_close_device(r->at.verbs);
}

const char *rdma_name(const struct rdma *r)
{
	return r->at.name;
}
