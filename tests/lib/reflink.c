/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the place of ioctl() in a test that links with --wrap=ioctl, and answers FICLONERANGE as
 * the test wants it. Other calls go through. A failure to copy ends the test. */
#include "lib/reflink.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define STRIDE (1u << 20)

int __wrap_ioctl(int fd, unsigned long request, ...);
int __real_ioctl(int fd, unsigned long request, ...);

static struct {
	_Atomic int how;
	_Atomic uint64_t bytes;
	_Atomic uint32_t calls;
	const char *_Atomic path;
	pthread_mutex_t lock;
	pthread_cond_t goes_on;
	uint32_t stops; /* The number of calls after which it stands still. */
} fs = {.lock = PTHREAD_MUTEX_INITIALIZER,
	.goes_on = PTHREAD_COND_INITIALIZER,
	.stops = UINT32_MAX};

void reflink_is(enum reflink how)
{
	fs.how = how;
	fs.bytes = 0;
	fs.calls = 0;
	pthread_mutex_lock(&fs.lock);
	fs.stops = UINT32_MAX;
	pthread_cond_broadcast(&fs.goes_on);
	pthread_mutex_unlock(&fs.lock);
}

void reflink_stops(uint32_t nr)
{
	pthread_mutex_lock(&fs.lock);
	fs.stops = nr;
	pthread_mutex_unlock(&fs.lock);
}

void reflink_removes(const char *path)
{
	fs.path = path;
}

uint64_t reflink_bytes(void)
{
	return fs.bytes;
}

uint32_t reflink_calls(void)
{
	return fs.calls;
}

/* Without O_DIRECT, so that any length can be copied. */
static int again(int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

static void copy(int fd, const struct file_clone_range *r, uint64_t bytes)
{
	int from = again((int)r->src_fd, O_RDONLY), to = again(fd, O_WRONLY);
	char *buffer = malloc(STRIDE);

	CHECK(from >= 0 && to >= 0 && buffer != NULL);
	for (uint64_t done = 0; done < bytes;) {
		size_t n = bytes - done < STRIDE ? (size_t)(bytes - done) : STRIDE;

		CHECK(pread(from, buffer, n, (off_t)(r->src_offset + done)) == (ssize_t)n);
		CHECK(pwrite(to, buffer, n, (off_t)(r->dest_offset + done)) == (ssize_t)n);
		done += n;
	}
	free(buffer);
	close(from);
	close(to);
}

static int share(int fd, const struct file_clone_range *r)
{
	const char *path = atomic_exchange(&fs.path, NULL);
	uint32_t before = fs.calls++;
	bool half = before > 0 && fs.how == REFLINK_ENDS;

	pthread_mutex_lock(&fs.lock);
	while (before >= fs.stops)
		pthread_cond_wait(&fs.goes_on, &fs.lock);
	pthread_mutex_unlock(&fs.lock);

	if (path != NULL)
		CHECK(unlink(path) == 0);
	if (fs.how != REFLINK_REFUSES)
		copy(fd, r, half ? r->src_length / 2 : r->src_length);
	if (fs.how == REFLINK_REFUSES || half) {
		errno = half ? EIO : EOPNOTSUPP;
		return -1;
	}
	fs.bytes += r->src_length;
	return 0;
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	return request == FICLONERANGE && fs.how != REFLINK_REAL ? share(fd, arg)
								 : __real_ioctl(fd, request, arg);
}
