/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program of this build once, with its output in a temporary file. tests/proc calls it. A
 * program that does not end in time fails the test. */
#include "lib/tool.h"

#include "base/check.h"
#include "lib/proc.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TOOL_MS    20000
#define TOOL_WORDS 32

struct tool {
	const char *name, *words;
	int fd;
	unsigned uid; /* 0: the user of the test. */
};

static int exec_tool(void *arg)
{
	const struct tool *t = arg;
	char *words = strdup(t->words), *argv[TOOL_WORDS + 1], path[600], *save = NULL;
	int n = 0, program;

	if (t->name[0] == '/')
		snprintf(path, sizeof(path), "%s", t->name);
	else
		proc_beside(path, sizeof(path), t->name);
	argv[n++] = path;
	for (char *w = strtok_r(words, " ", &save); w && n < TOOL_WORDS;
	     w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	argv[n] = NULL;
	if (dup2(t->fd, 1) < 0 || dup2(t->fd, 2) < 0)
		return 98;
	/* Another user may not reach this folder, as when it is below /root. */
	program = open(path, O_PATH | O_CLOEXEC);
	if (t->uid != 0 && setuid(t->uid) != 0)
		return 98;
	fexecve(program, argv, environ);
	return 97;
}

int tool_run(char **out, const char *name, const char *words)
{
	return tool_run_as(0, out, name, words);
}

int tool_run_as(unsigned uid, char **out, const char *name, const char *words)
{
	FILE *f = tmpfile();
	struct tool t = {name, words, f ? fileno(f) : -1, uid};
	size_t bytes = 0;
	pid_t pid;
	int status;

	CHECK(f);
	pid = proc_fork(exec_tool, &t);
	status = proc_wait(pid, TOOL_MS);
	if (status == -1) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		fail_msg("%s %s did not end in %d ms", name, words, TOOL_MS);
	}
	rewind(f);
	if (out) {
		*out = NULL;
		if (getdelim(out, &bytes, 0, f) < 0) {
			free(*out);
			*out = strdup("");
		}
		CHECK(*out);
	}
	fclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void tool_expect(int rc, const char *text, const char *name, const char *words)
{
	char *out;
	int got = tool_run(&out, name, words);

	if (got != rc || !strstr(out, text))
		fail_msg("%s %s: exit %d, expected %d with \"%s\":\n%s", name, words, got, rc, text,
			 out);
	free(out);
}
