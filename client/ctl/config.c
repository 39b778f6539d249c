/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl config check FILE` and `config explain` run the daemon's own parser, which means that
 * they run shardd with --check or --explain. They take the shardd that lies beside shardctl if
 * there is one, and otherwise the one from PATH. It is run under the name shardctl, with which its
 * messages begin, and its exit code (4: the configuration is wrong) becomes that of shardctl.
 * doctor.c and others run shardd through ctl_shardd(), too. It fails where shardd cannot be run. */
#include "ctl/child.h"
#include "ctl/ctl.h"
#include "ctl/json.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONFIG, SET, PRINT, FOLDER };

#define FOLDER_OPTION                                                                              \
	{                                                                                          \
		"config-dir", CTL_KEY + FOLDER, "DIR", 0,                                          \
			"with the files *.conf in DIR after it (default: /etc/shardd/conf.d, "     \
			"after /etc/shardd/shardd.conf)",                                          \
			0                                                                          \
	}

const struct argp_option ctl_check_options[] = {
	FOLDER_OPTION,
	{"print", CTL_KEY + PRINT, NULL, 0, "print the configuration that FILE makes, too", 0},
	{0},
};

const struct argp_option ctl_explain_options[] = {
	{"config", CTL_KEY + CONFIG, "FILE", 0,
	 "this file (default: /etc/shardd/shardd.conf if it is there)", 0},
	FOLDER_OPTION,
	{"set", CTL_KEY + SET, "SECTION.KEY=VALUE", 0, "as with shardd --set", 0},
	{0},
};

static bool beside(char *path, size_t bytes)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n <= 0)
		return false;
	self[n] = 0;
	snprintf(path, bytes, "%s/shardd", dirname(self));
	return access(path, X_OK) == 0;
}

enum ctl_exit ctl_shardd(const struct ctl_options *o, const char *const *args)
{
	/* execv() wants the arguments writable. */
	char path[PATH_MAX], *copy[CTL_SHARDD_WORDS], name[] = "shardctl";
	int n = 0;

	copy[n++] = name;
	for (; *args; args++) {
		CHECK(n < (int)NR(copy) - 1);
		copy[n] = strdup(*args);
		CHECK(copy[n]); /* Nothing has begun that could be undone. */
		n++;
	}
	copy[n] = NULL;
	if (beside(path, sizeof(path)))
		execv(path, copy);
	else
		execvp("shardd", copy);
	return ctl_fail(
		o, CTL_FAILED,
		"shardd cannot be run, which does this: %s: install it (Debian: the package "
		"shardd) beside shardctl or in PATH, or ask on a node that has it",
		strerror(errno));
}

/* The sentences of stderr, without the name that each begins with, joined by "; ". */
static void sentences(const char *said, char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = 0;
	while (*said != 0 && used < bytes) {
		size_t n = strcspn(said, "\n");
		const char *at = strncmp(said, "shardctl: ", 10) == 0 ? said + 10 : said;

		if (n > 0)
			used += (size_t)snprintf(out + used, bytes - used, "%s%.*s",
						 used > 0 ? "; " : "", (int)(said + n - at), at);
		said += n + (said[n] == '\n');
	}
}

enum ctl_exit ctl_shardd_json(const struct ctl_options *o, const char *const *args)
{
	char *out, *said, text[4096];
	int rc = child_run(child_shardd, args, &out, &said);
	json_t *answer = json_loads(out, 0, NULL);

	fputs(said, stderr);
	sentences(said, text, sizeof(text));
	if (json_is_object(answer)) {
		if (ctl_print(answer) != CTL_OK && rc == 0)
			rc = CTL_FAILED;
	} else {
		json_decref(answer);
		rc = rc == 0 ? CTL_FAILED : rc;
		ctl_print_error(text[0] != 0 ? text : "shardd did not end by itself",
				rc < 0 ? CTL_FAILED : (enum ctl_exit)rc);
	}
	(void)o;
	free(out);
	free(said);
	return rc < 0 ? CTL_FAILED : (enum ctl_exit)rc;
}

/* Adds an option of shardd's to args, which has nr words, if it has a value. Returns how many words
 * there are then. */
static int add(const char **args, int nr, const char *option, const char *value)
{
	if (value == NULL)
		return nr;
	args[nr++] = option;
	args[nr++] = value;
	return nr;
}

/* Becomes shardd, which prints the configuration, or nothing but what is wrong with it. */
static enum ctl_exit read_file(const struct ctl_options *o)
{
	const char *args[8] = {"--check", "--config", o->words[1]};
	int null = o->value[PRINT] ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);

	(void)add(args, 3, "--config-dir", o->value[FOLDER]);

	if (null >= 0 && dup2(null, STDOUT_FILENO) < 0)
		return CTL_FAILED;
	return ctl_shardd(o, args);
}

static enum ctl_exit check(const struct ctl_options *o)
{
	const char *args[8] = {"--explain", "--json", "--config", o->words[1]};
	int status = 0;
	pid_t pid;

	(void)add(args, 4, "--config-dir", o->value[FOLDER]);
	if (o->json)
		return ctl_shardd_json(o, args);
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit((int)read_file(o));
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return ctl_fail(o, CTL_FAILED, "shardd did not end by itself");
	/* What --print has printed before is a configuration, and stays one. */
	if (WEXITSTATUS(status) == 0)
		printf("%s%s: ok\n", o->value[PRINT] ? "; " : "", o->words[1]);
	return (enum ctl_exit)WEXITSTATUS(status);
}

static enum ctl_exit explain(const struct ctl_options *o)
{
	const char *args[10] = {"--explain"};
	const char *file = o->words_nr == 2 ? o->words[1] : o->value[CONFIG];
	int n = 1;

	if (o->json)
		args[n++] = "--json";
	n = add(args, n, "--config", file);
	n = add(args, n, "--config-dir", o->value[FOLDER]);
	(void)add(args, n, "--set", o->value[SET]);
	return o->json ? ctl_shardd_json(o, args) : ctl_shardd(o, args);
}

enum ctl_exit ctl_config(const struct ctl_options *o)
{
	return strcmp(o->words[0], "check") == 0 ? check(o) : explain(o);
}
