// SPDX-License-Identifier: Apache-2.0
/* Failures of the driver that a test plans while the process that has them runs: by a file that
 * both have mapped, with a struct fake_control. Happy path: the test arms it, a call that is due
 * fails or hangs, and the test reads which one it was. Without the file nothing is planned. */
#include "fake_cuda.h"
#include "fake_impl.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HANG = -1 };

static struct fake_control *control;
static uint32_t seen, left; /* The number of .armed, and the calls until the failure. */

__attribute__((constructor)) static void from_file(void)
{
	const char *path = getenv("FAKE_CUDA_CONTROL");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (path == NULL)
		return;
	if (fd < 0)
		abort();
	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (control == MAP_FAILED)
		abort();
	close(fd);
}

static void hang(void)
{
	pthread_mutex_unlock(&fake.lock);
	while (control->let_go == 0)
		(void)syscall(SYS_futex, &control->let_go, FUTEX_WAIT, 0, NULL, NULL, 0);
	pthread_mutex_lock(&fake.lock);
}

int fake_controlled(const char *call)
{
	uint32_t armed;
	int error;

	if (control == NULL || (armed = control->armed) == 0)
		return 0;
	if (armed != seen) {
		seen = armed;
		left = control->nth;
	}
	if (strcmp(control->call, "*") != 0 && strcmp(control->call, call) != 0)
		return 0;
	control->calls++;
	if (left == 0 || --left > 0)
		return 0;
	error = control->error;
	snprintf(control->was, sizeof(control->was), "%s", call);
	control->failed = 1;
	if (error != HANG)
		return error;
	hang();
	return 0;
}
