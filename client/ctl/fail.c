/* SPDX-License-Identifier: Apache-2.0 */
/* Says what went wrong, for all subcommands: a sentence on stderr for people, and with --json an
 * object on stdout for programs, {"format", "error", "status"}. Each way out of a subcommand that
 * fails calls one of the two functions once, so that --json prints one object. */
#include "ctl/ctl.h"
#include "ctl/json.h"

#include "wire/control.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *exit_name(enum ctl_exit exit)
{
	switch (exit) {
	case CTL_USAGE:
		return "USAGE";
	case CTL_UNREACHABLE:
		return "UNREACHABLE";
	case CTL_CONFIG:
		return "CONFIG";
	case CTL_REFUSED:
		return "REFUSED";
	case CTL_OK:
	case CTL_FAILED:
	case CTL_INTERRUPTED:
		break;
	}
	return "FAILED";
}

/* Words of a command line may be in any text, and JSON has UTF-8 only. */
static void print_error(const char *text, const char *status)
{
	size_t bytes = 4 * strlen(text) + 1;
	char *plain = malloc(bytes);

	if (plain != NULL)
		control_escape(plain, bytes, text);
	ctl_print(json_pack("{s:s, s:s}", "error", plain != NULL ? plain : "no memory", "status",
			    status));
	free(plain);
}

void ctl_print_error(const char *text, enum ctl_exit exit)
{
	print_error(text, exit_name(exit));
}

enum ctl_exit ctl_fail(const struct ctl_options *o, enum ctl_exit exit, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return exit;
	fprintf(stderr, "shardctl: %s\n", text);
	if (o->json)
		ctl_print_error(text, exit);
	free(text);
	return exit;
}

enum ctl_exit ctl_fail_as(const struct ctl_options *o, enum shard_status st, const char *where,
			  const char *text)
{
	const char *colon = where[0] != 0 ? ": " : "";
	char *all;

	fprintf(stderr, "shardctl: %s%s%s: %s\n", where, colon, status_name(st), text);
	if (o->json) {
		all = NULL;
		if (asprintf(&all, "%s%s%s", where, colon, text) >= 0)
			print_error(all, status_name(st));
		free(all);
	}
	return ctl_exit_of(st);
}
