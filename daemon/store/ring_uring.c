/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of io_uring, for ring.c. The memory and the file are registered once, so that the kernel
 * looks up no page and no descriptor per request. An eventfd says that something is done. Only
 * opening fails, where the kernel is too old, a container forbids it, or too little memory may be
 * locked. */
#include "base/check.h"
#include "store/ring_impl.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct self {
	struct io_uring ring;
};

static bool failed(char why[128], const char *what, int rc)
{
	snprintf(why, 128, "%s: %s%s", what, strerror(-rc),
		 rc == -ENOMEM ? " (LimitMEMLOCK= of the service, `ulimit -l`)" : "");
	return false;
}

static bool uring_open(void **out, const struct ring_conf *conf, int event, char why[128])
{
	struct self *u = calloc(1, sizeof(*u));
	const char *what;
	int rc;

	if (u == NULL)
		return failed(why, "io_uring", -ENOMEM);
	if ((rc = io_uring_queue_init(conf->entries, &u->ring, 0)) != 0) {
		free(u);
		return failed(why, "io_uring_setup", rc);
	}
	what = "registering buffers";
	if ((rc = io_uring_register_buffers(&u->ring, conf->buffer, conf->buffers_nr)) != 0)
		goto err_ring;
	what = "registering the file";
	if ((rc = io_uring_register_files(&u->ring, &conf->fd, 1)) != 0)
		goto err_ring;
	what = "registering an eventfd";
	if ((rc = io_uring_register_eventfd(&u->ring, event)) != 0)
		goto err_ring;
	*out = u;
	return true;
err_ring:
	io_uring_queue_exit(&u->ring);
	free(u);
	return failed(why, what, rc);
}

static void uring_submit(void *self, const struct ring_io *io)
{
	struct self *u = self;
	struct io_uring_sqe *q = io_uring_get_sqe(&u->ring);
	int rc;

	CHECK(q != NULL);
	if (io->what == RING_READ)
		io_uring_prep_read_fixed(q, 0, io->at, io->bytes, io->offset, (int)io->buffer);
	else if (io->what == RING_WRITE)
		io_uring_prep_write_fixed(q, 0, io->at, io->bytes, io->offset, (int)io->buffer);
	else
		io_uring_prep_fsync(q, 0, IORING_FSYNC_DATASYNC);
	q->flags |= IOSQE_FIXED_FILE;
	q->user_data = io->nr;
	do
		rc = io_uring_submit(&u->ring);
	while (rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
	CHECK(rc >= 0);
}

static void uring_reap(void *self, struct ring *r, bool wait)
{
	struct self *u = self;
	struct io_uring_cqe *e;
	int rc = 0;

	if (wait) {
		do
			rc = io_uring_wait_cqe(&u->ring, &e);
		while (rc == -EINTR);
		CHECK(rc == 0);
	}
	while (io_uring_peek_cqe(&u->ring, &e) == 0) {
		uint32_t nr = (uint32_t)e->user_data;
		int64_t result = e->res;

		io_uring_cqe_seen(&u->ring, e);
		ring_moved(r, nr, result);
	}
}

static void uring_close(void *self)
{
	struct self *u = self;

	io_uring_queue_exit(&u->ring);
	free(u);
}

const struct ring_row ring_uring = {.name = "io_uring",
				    .open = uring_open,
				    .submit = uring_submit,
				    .reap = uring_reap,
				    .close = uring_close};
