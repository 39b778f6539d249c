/* SPDX-License-Identifier: Apache-2.0 */
/* A build without liburing (URING=0, or no headers): ring.c takes threads. Nothing but open() is
 * ever called. */
#include "store/ring_impl.h"

#include <stdio.h>

static bool none_open(void **out, const struct ring_conf *conf, int event, char why[128])
{
	(void)out;
	(void)conf;
	(void)event;
	snprintf(why, 128, "io_uring is not in this build: liburing was not there");
	return false;
}

const struct ring_row ring_uring = {.name = "io_uring", .open = none_open};
