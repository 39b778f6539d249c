/* SPDX-License-Identifier: Apache-2.0 */
/* Runs another program and keeps what it prints. stdout comes through a pipe, which is read until
 * its end. stderr goes to a file in memory that is read afterwards, so that neither can stop the
 * other. It fails (-1) where there are no descriptors or processes, or if a signal ended the
 * program. */
#include "ctl/child.h"

#include "base/check.h"
#include "ctl/ctl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* All that f has, or "". */
static char *whole(FILE *f)
{
	char *text = NULL;
	size_t bytes = 0;

	if (f == NULL || getdelim(&text, &bytes, 0, f) < 0) {
		free(text);
		text = strdup("");
	}
	if (f != NULL)
		fclose(f);
	CHECK(text);
	return text;
}

int child_run(int (*become)(const char *const *), const char *const *args, char **out, char **err)
{
	int ends[2], said = -1, status = -1;
	pid_t pid;

	*out = NULL;
	if (err != NULL)
		*err = NULL;
	fflush(NULL);
	if (pipe2(ends, O_CLOEXEC) != 0)
		return -1;
	if (err != NULL)
		said = memfd_create("stderr", MFD_CLOEXEC);
	pid = err == NULL || said >= 0 ? fork() : -1;
	if (pid == 0) {
		if (dup2(ends[1], 1) < 0 || dup2(err != NULL ? said : ends[1], 2) < 0)
			_exit(1);
		_exit(become(args));
	}
	close(ends[1]);
	*out = whole(pid > 0 ? fdopen(ends[0], "re") : NULL);
	if (pid < 0) {
		close(ends[0]);
		close(said);
	} else if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
		status = -1;
	}
	if (err != NULL) {
		if (pid > 0 && lseek(said, 0, SEEK_SET) == 0)
			*err = whole(fdopen(said, "re"));
		else
			*err = whole(NULL);
	}
	return pid < 0 || status < 0 ? -1 : WEXITSTATUS(status);
}

int child_shardd(const char *const *args)
{
	const struct ctl_options plain = {.json = false};

	return (int)ctl_shardd(&plain, args);
}
