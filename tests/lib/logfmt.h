/* SPDX-License-Identifier: Apache-2.0 */
/* logfmt.h: what a program that reads the log of a daemon relies on. A line is key=value pairs with
 * one blank between them. A value has no blank, quote, backslash or '=', or it is in quotes with
 * the escapes of log.c. */
#ifndef SHARD_TESTS_LOGFMT_H
#define SHARD_TESTS_LOGFMT_H

#include <stdbool.h>
#include <stddef.h>

/* One line, without its newline. If it does not parse, `why` says at which place. */
bool logfmt_parses(const char *line, char *why, size_t bytes);
/* All lines of a log. One that does not parse fails the test. Lines that do not begin with "ts="
 * are not of the log: a program writes what is wrong with its arguments there, too. */
void logfmt_check(const char *text, const char *whose);

#endif
