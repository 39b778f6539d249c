/* SPDX-License-Identifier: Apache-2.0 */
/* Pins for threads. part.c makes one for each share whose thread meets chunks that are away. Happy
 * path: the thread puts a request into the list and wakes the loop, the loop pins the chunk and
 * says so, the thread works and says so, the loop unpins, and the thread goes on. A thread holds
 * one pin at a time, so none waits for another. Nothing fails. */
#include "ckpt/borrow.h"

#include "base/check.h"
#include "data/model.h"

struct request {          /* On the stack of the thread. */
	struct list link; /* In .asked, while the loop has something to do for it. */
	struct borrow *of;
	struct tier_pin pin;
	enum { ASKED, PINNED, USED, OVER } at;
};

static void say(struct request *r, int at)
{
	struct borrow *b = r->of; /* The thread may be gone once it is told. */

	pthread_mutex_lock(&b->lock);
	r->at = at;
	pthread_cond_broadcast(&b->told);
	pthread_mutex_unlock(&b->lock);
}

static void pinned(struct tier_pin *p)
{
	say(list_of(p, struct request, pin), PINNED);
}

static void woken(uv_async_t *async)
{
	struct borrow *b = async->data;

	for (;;) {
		struct request *r = NULL;

		pthread_mutex_lock(&b->lock);
		if (!list_empty(&b->asked)) {
			r = list_of(b->asked.next, struct request, link);
			list_remove(&r->link);
		}
		pthread_mutex_unlock(&b->lock);
		if (r == NULL)
			return;
		if (r->at == USED) {
			tier_unpin(b->m->tier, &r->pin);
			say(r, OVER);
		} else if (tier_pin(b->m->tier, &r->pin)) {
			say(r, PINNED);
		}
	}
}

void borrow_init(struct borrow *b, struct model *m)
{
	b->m = m;
	list_init(&b->asked);
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->told, NULL);
	CHECK(uv_async_init(m->server->loop, &b->wake, woken) == 0);
	b->wake.data = b;
}

static void async_closed(uv_handle_t *h)
{
	struct borrow *b = h->data;

	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->told);
	b->closed(b);
}

void borrow_close(struct borrow *b, void (*closed)(struct borrow *b))
{
	CHECK(list_empty(&b->asked));
	b->closed = closed;
	uv_close((uv_handle_t *)&b->wake, async_closed);
}

/* Under the lock. */
static void ask(struct request *r, int until)
{
	struct borrow *b = r->of;

	list_push(&b->asked, &r->link);
	uv_async_send(&b->wake);
	while ((int)r->at != until)
		pthread_cond_wait(&b->told, &b->lock);
}

void borrow_use(struct borrow *b, uint32_t chunk, bool writes, void (*with)(void *ctx), void *ctx)
{
	struct request r = {
		.of = b, .pin = {.chunk = chunk, .writes = writes, .done = pinned}, .at = ASKED};

	pthread_mutex_lock(&b->lock);
	ask(&r, PINNED);
	pthread_mutex_unlock(&b->lock);
	with(ctx);
	pthread_mutex_lock(&b->lock);
	r.at = USED;
	ask(&r, OVER);
	pthread_mutex_unlock(&b->lock);
}
