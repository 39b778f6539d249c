/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl doctor` says whether this machine is fit for shardd as it is configured. Happy path: it
 * asks shardd for its version and configuration, a running daemon for its status, and systemd for
 * the state of the service. Then each row of doctor_checks looks at one thing and says ok, warn or
 * fail with the remedy. Nothing is changed. The exit code is 0 without a fail, 1 with at least one,
 * and 4 where the configuration is wrong. The checks that do not need the configuration run in that
 * case, too. */
#include "ctl/doctor.h"
#include "ctl/child.h"
#include "ctl/json.h"
#include "ctl/palette.h"

#include "base/check.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG, ROOT, COLOR };

const struct argp_option ctl_doctor_options[] = {
	{"config", CTL_KEY + CONFIG, "FILE", 0,
	 "for this file (default: /etc/shardd/shardd.conf if it is there)", 0},
	PALETTE_OPTION(COLOR),
	{"root", CTL_KEY + ROOT, "DIR", OPTION_HIDDEN, "read DIR/proc and DIR/sys", 0},
	{0},
};

static const char *const result_words[DOCTOR_RESULTS] = {"ok", "warn", "fail", ""};

void doctor_found(struct finding *f, enum doctor_result result, const char *fmt, ...)
{
	va_list ap;

	f->result = result;
	va_start(ap, fmt);
	vsnprintf(f->found, sizeof(f->found), fmt, ap);
	va_end(ap);
}

void doctor_remedy(struct finding *f, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->remedy, sizeof(f->remedy), fmt, ap);
	va_end(ap);
}

/* --- sources --- */

const char *doctor_value(const struct doctor *d, const char *section, const char *key)
{
	size_t i;
	json_t *o;

	json_array_foreach(json_object_get(d->config, "options"), i, o) {
		const char *s = json_string_value(json_object_get(o, "section")),
			   *k = json_string_value(json_object_get(o, "key"));
		const char *value = json_string_value(json_object_get(o, "value"));

		if (s && k && value && strcmp(s, section) == 0 && strcmp(k, key) == 0)
			return value;
	}
	return "";
}

uint64_t doctor_memory(const struct doctor *d)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	char *end;
	double n = strtod(doctor_value(d, "daemon", "memory"), &end);

	for (size_t i = 0; i < NR(units); i++, n *= 1024)
		if (strcmp(units[i], end) == 0)
			return (uint64_t)n;
	return 0;
}

FILE *doctor_open(const struct doctor *d, const char *path)
{
	char whole[1200];

	snprintf(whole, sizeof(whole), "%s%s", d->root, path);
	return fopen(whole, "re");
}

bool doctor_line(const struct doctor *d, const char *path, char *line, size_t bytes)
{
	FILE *f = doctor_open(d, path);
	bool got = f && fgets(line, (int)bytes, f);

	if (f)
		fclose(f);
	line[got ? strcspn(line, "\n") : 0] = 0;
	return got;
}

static int as_systemctl(const char *const *args)
{
	execvp("systemctl", (char *const *)(uintptr_t)args);
	return 1;
}

static void ask_shardd(struct doctor *d, const char *file)
{
	char *text, *colon;

	if (child_run(child_shardd, (const char *[]){"--version", NULL}, &text, NULL) == 0)
		snprintf(d->shardd_version, sizeof(d->shardd_version), "%.*s",
			 (int)strcspn(text, "\n"), text);
	free(text);
	if (child_run(child_shardd,
		      (const char *[]){"--explain", "--json", file ? "--config" : NULL, file, NULL},
		      &text, NULL) == 0)
		d->config = json_loads(text, 0, NULL);
	colon = strstr(text, "shardctl: ");
	if (!d->config)
		snprintf(d->config_text, sizeof(d->config_text), "%.*s",
			 (int)strcspn(colon ? colon + 10 : text, "\n"), colon ? colon + 10 : text);
	free(text);
}

/* Asks for the memory that nodes have left on this machine. A made-up machine has none. */
static void ask_kept(struct doctor *d, const char *file)
{
	char *text = NULL;

	if (d->root[0] || !d->config)
		return;
	if (child_run(child_shardd,
		      (const char *[]){"--forget-memory", "--list", "--json",
				       file ? "--config" : NULL, file, NULL},
		      &text, NULL) == 0)
		d->kept = json_loads(text, 0, NULL);
	free(text);
}

static void ask_daemon(struct doctor *d)
{
	const char *address = d->options->address;
	const char *path = strncmp(address, "unix:", 5) == 0 ? address + 5 : address;
	struct err e;

	d->denied = path[0] == '/' && access(path, W_OK) != 0 && errno == EACCES;
	d->silent = ctl_ask_status(d->options, &d->status, &e) == SHARD_TIMEOUT;
}

/* Asks systemd about the service. A made-up machine (--root) has the answer in a file. */
static void ask_systemd(struct doctor *d)
{
	static const char *const show[] = {
		"systemctl", "show", "shardd.service",
		"--property=LoadState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,MainPID,"
		"UnitFileState,"
		"WatchdogUSec,FileDescriptorStoreMax,NFileDescriptorStore,LimitMEMLOCK,LimitNOFILE",
		NULL};
	FILE *f = d->root[0] ? doctor_open(d, "/systemctl") : NULL;
	size_t bytes = 0;

	if (!d->root[0] && access("/run/systemd/system", F_OK) == 0) {
		if (child_run(as_systemctl, show, &d->unit, NULL) != 0 && d->unit)
			d->unit[0] = 0;
	} else if (f && getdelim(&d->unit, &bytes, 0, f) < 0) {
		free(d->unit);
		d->unit = NULL;
	}
	if (f)
		fclose(f);
	if (!d->unit)
		d->unit = strdup("");
	CHECK(d->unit);
}

/* --- results --- */

static void print_finding(const char *name, const struct finding *f, const struct palette *p)
{
	const char *word = result_words[f->result];

	printf("%s%-4s%s  %-12s  %s\n", palette_of(p, word), word, p->end, name, f->found);
	if (f->result != DOCTOR_OK && f->remedy[0])
		printf("%20s%s\n", "-> ", f->remedy);
}

static json_t *finding_json(const char *name, const struct finding *f)
{
	return json_pack("{s:s, s:s, s:s, s:s}", "check", name, "result", result_words[f->result],
			 "found", f->found, "remedy", f->result == DOCTOR_OK ? "" : f->remedy);
}

static void examine(const struct doctor *d, const struct palette *p, int count[DOCTOR_RESULTS])
{
	json_t *list = json_array(), *root;

	for (size_t i = 0; i < doctor_checks_nr; i++) {
		struct finding f = {.result = DOCTOR_NOT_ASKED};

		if (!doctor_checks[i].needs_config || d->config)
			doctor_checks[i].look(d, &f);
		count[f.result]++;
		if (f.result == DOCTOR_NOT_ASKED)
			continue;
		if (d->options->json)
			json_array_append_new(list, finding_json(doctor_checks[i].name, &f));
		else
			print_finding(doctor_checks[i].name, &f, p);
	}
	root = json_pack("{s:o, s:i, s:i, s:i}", "checks", list, "ok", count[DOCTOR_OK], "warn",
			 count[DOCTOR_WARN], "fail", count[DOCTOR_FAIL]);
	CHECK(root);
	if (d->options->json) {
		ctl_print(json_incref(root));
	} else {
		printf("%d ok, %d warn, %d fail\n", count[DOCTOR_OK], count[DOCTOR_WARN],
		       count[DOCTOR_FAIL]);
	}
	json_decref(root);
}

enum ctl_exit ctl_doctor(const struct ctl_options *o)
{
	struct doctor d = {.options = o,
			   .root = o->value[ROOT] ? o->value[ROOT] : "",
			   .default_config = o->value[CONFIG] == NULL};
	int count[DOCTOR_RESULTS] = {0};
	enum ctl_exit rc;
	bool colour;

	if (!palette_wanted(o->value[COLOR], stdout, &colour))
		return ctl_fail(o, CTL_USAGE, PALETTE_WRONG, o->value[COLOR]);
	ask_shardd(&d, o->value[CONFIG]);
	ask_kept(&d, o->value[CONFIG]);
	ask_daemon(&d);
	ask_systemd(&d);
	examine(&d, colour ? &palette_colour : &palette_plain, count);
	rc = !d.config && d.shardd_version[0] ? CTL_CONFIG
	     : count[DOCTOR_FAIL] > 0         ? CTL_FAILED
					      : CTL_OK;
	json_decref(d.config);
	json_decref(d.status);
	json_decref(d.kept);
	free(d.unit);
	return rc;
}
