// SPDX-License-Identifier: Apache-2.0
/* Files with secrets, and clients that connect with one of them. Tests of the cluster's secret call
 * it. What is not as it should be fails the test. */
#include "lib/secrets.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void secrets_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

int secrets_make(struct secrets *f)
{
	strcpy(f->dir, "/tmp/shardd-secret.XXXXXX");
	if (mkdtemp(f->dir) == NULL)
		return 1;
	snprintf(f->right, sizeof(f->right), "%s/right", f->dir);
	snprintf(f->wrong, sizeof(f->wrong), "%s/wrong", f->dir);
	snprintf(f->other, sizeof(f->other), "%s/other", f->dir);
	snprintf(f->used, sizeof(f->used), "%s/used", f->dir);
	snprintf(f->node, sizeof(f->node), "%s/node", f->dir);
	snprintf(f->line, sizeof(f->line), "secret = %s\nnode_secret = %s", f->used, f->node);
	secrets_put(f->right, SECRETS_RIGHT);
	secrets_put(f->wrong, SECRETS_WRONG);
	secrets_put(f->used, SECRETS_RIGHT);
	secrets_put(f->node, SECRETS_NODES);
	unsetenv("SHARD_SECRET");
	return 0;
}

int secrets_remove(struct secrets *f)
{
	unlink(f->right);
	unlink(f->wrong);
	unlink(f->other);
	unlink(f->used);
	unlink(f->node);
	return rmdir(f->dir);
}

void secrets_meet(enum shard_status want, const char *address, const char *secret, const char *part)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = NULL;
	enum shard_status got;

	o.address = address;
	o.secret = secret;
	got = shard_connect(&c, &o);
	shard_disconnect(&c);
	if (got != want || (want != SHARD_OK && strstr(shard_error(), part) == NULL))
		fail_msg("%s with %s: %s %s, not %s with \"%s\"", address,
			 secret != NULL ? secret : "none", shard_name(got), shard_error(),
			 shard_name(want), part);
}
