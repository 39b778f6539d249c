/* SPDX-License-Identifier: Apache-2.0 */
/* The process: options, configuration, signals, and one server on one loop. Happy path: the command
 * line and the configuration are read, server_init() starts the server, and the loop runs until
 * SIGTERM or SIGINT. Then server_stop() runs and the exit status is 0. A second signal ends the
 * process at once. SIGHUP reads the configuration and the secret again. Exit status 2 is a usage
 * error, 4 a configuration error, and 1 any other failure. --help, --version, --check and --explain
 * print on stdout, and everything else goes to stderr. */
#include "base/check.h"
#include "base/output.h"
#include "cluster/static.h"
#include "config/cluster.h"
#include "journal.h"
#include "linger.h"
#include "link/enrol.h"
#include "node/limits.h"
#include "notify.h"
#include "replay.h"
#include "warm/warm.h"
#include "wire/control.h"
#include "server.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_CONFIG = 4 };

#define SET_MAX      128
#define HELD_S       30
#define PIPE_NS      (5ull * 1000000000)  /* For a configuration out of a pipe, to look at. */
#define STOP_MORE_NS (10ull * 1000000000) /* To close everything, once nothing is waited for. */

struct options {
	const char *file, *folder;
	const char *set[SET_MAX];
	char *made[SET_MAX]; /* Those of set that add_set() made, to be freed. */
	uint32_t set_nr;
	const char *forget_path; /* Of another node's memory. NULL: this node's own is meant. */
	bool check, explain, json, forget, list;
};

enum {
	OPT_LOG_LEVEL = 256,
	OPT_CHECK,
	OPT_EXPLAIN,
	OPT_JSON,
	OPT_SET,
	OPT_SOCKET,
	OPT_STATE,
	OPT_LISTEN,
	OPT_NODE,
	OPT_LINGER,
	OPT_FORGET,
	OPT_FOLDER,
	OPT_LIST
};

static const struct argp_option argp_rows[] = {
	{"config", 'c', "FILE", 0,
	 "configuration file (default: /etc/shardd/shardd.conf if it is there)", 1},
	{"config-dir", OPT_FOLDER, "DIR", 0,
	 "the files *.conf in DIR are read after it (default: /etc/shardd/conf.d, after "
	 "/etc/shardd/shardd.conf)",
	 1},
	{"set", OPT_SET, "SECTION.KEY=VALUE", 0,
	 "any option of the configuration file; may be repeated", 1},
	{"node", OPT_NODE, "NAME", 0, "this node's name in [nodes]", 2},
	{"listen", OPT_LISTEN, "HOST:PORT", 0,
	 "where nodes and remote trainers connect; off: nowhere", 2},
	{"linger", OPT_LINGER, "TIME", 0,
	 "stop when nothing has been connected for this long, as in 2s", 2},
	{"socket", OPT_SOCKET, "PATH", 0, "unix socket for trainers on this node", 2},
	{"state", OPT_STATE, "DIR", 0, "identity, incarnation, views", 2},
	{"log-level", OPT_LOG_LEVEL, "LEVEL", 0, "error, warn, info or debug", 2},
	{"check", OPT_CHECK, NULL, 0, "print the effective configuration and exit", 3},
	{"explain", OPT_EXPLAIN, NULL, 0, "print each option with who set it and exit", 3},
	{"json", OPT_JSON, NULL, 0, "with --explain or --list: as JSON", 3},
	{"forget-memory", OPT_FORGET, "FOLDER", OPTION_ARG_OPTIONAL,
	 "of a node that is stopped: give back what warm_restart = tmpfs keeps for its next start, "
	 "or what a node that is not there any more left in FOLDER",
	 3},
	{"list", OPT_LIST, NULL, 0,
	 "with --forget-memory: give nothing back, but list whose memory there is, how much and "
	 "how old",
	 3},
	{"version", 'V', NULL, 0, "print the version and exit", 3},
	{0},
};

static const struct {
	int option;
	const char *key;
} shorthands[] = {
	{OPT_NODE, "daemon.node"},           {OPT_LISTEN, "daemon.listen"},
	{OPT_SOCKET, "daemon.socket"},       {OPT_STATE, "daemon.state"},
	{OPT_LOG_LEVEL, "daemon.log_level"}, {OPT_LINGER, "daemon.linger"},
};

static void add_set(struct options *o, struct argp_state *state, const char *key, const char *value)
{
	size_t bytes = strlen(key) + strlen(value) + 2;
	char *text;

	if (o->set_nr == SET_MAX)
		argp_error(state, "more than %d options", SET_MAX);
	text = malloc(bytes);
	CHECK(text);
	snprintf(text, bytes, "%s%s%s", key, key[0] ? "=" : "", value);
	o->made[o->set_nr] = text;
	o->set[o->set_nr++] = text;
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	for (size_t i = 0; i < NR(shorthands); i++) {
		if (shorthands[i].option == key) {
			add_set(o, state, shorthands[i].key, arg);
			return 0;
		}
	}
	switch (key) {
	case 'c':
		o->file = arg;
		return 0;
	case OPT_FOLDER:
		o->folder = arg;
		return 0;
	case OPT_SET:
		add_set(o, state, "", arg);
		return 0;
	case OPT_CHECK:
		o->check = true;
		return 0;
	case OPT_EXPLAIN:
		o->explain = true;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case OPT_FORGET:
		o->forget = true;
		o->forget_path = arg;
		return 0;
	case OPT_LIST:
		o->list = true;
		return 0;
	case ARGP_KEY_END:
		if (o->list && (!o->forget || o->forget_path))
			argp_error(state, "--list: write --forget-memory --list");
		return 0;
	case 'V':
		printf("shardd %s\n", SHARD_RELEASE);
		exit(EXIT_OK);
	case ARGP_KEY_ARG:
		argp_error(state, "%s: no arguments are expected", arg);
		return EINVAL;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Appends the table's part of --help. argp frees what this returns. */
static char *help_filter(int key, const char *text, void *input)
{
	char *out = NULL;
	size_t bytes = 0;
	FILE *f;

	(void)input;
	if (key != ARGP_KEY_HELP_EXTRA || !(f = open_memstream(&out, &bytes)))
		return (char *)(uintptr_t)text;
	config_help(f);
	fprintf(f, "\nExit status: 0 stopped as asked, 1 failed, 2 usage, 4 configuration.");
	fclose(f);
	return out;
}

struct daemon {
	uv_loop_t loop;
	uv_work_t pool;
	uv_signal_t term, interrupt, hangup;
	struct server *server;
	struct linger_watch linger;
	struct notify notify;
	struct log log;
	struct config *conf;
	const struct config_args *args;
	bool stopping;
};

static void close_signals(struct daemon *d)
{
	uv_close((uv_handle_t *)&d->term, NULL);
	uv_close((uv_handle_t *)&d->interrupt, NULL);
	uv_close((uv_handle_t *)&d->hangup, NULL);
}

static void on_stopped(void *arg)
{
	struct daemon *d = arg;

	close_signals(d);
	linger_close(&d->linger);
	notify_close(&d->notify);
}

static void on_signal(uv_signal_t *h, int number)
{
	struct daemon *d = h->data;
	const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";

	if (d->stopping || d->server == NULL) { /* NULL: the start has failed. */
		log_line(&d->log, LOG_LEVEL_WARN, "event=killed signal=%s", name);
		_exit(EXIT_FAILED);
	}
	d->stopping = true;
	server_stop(d->server, name, on_stopped, d);
	notify_stopping(&d->notify, d->conf->stop_timeout_ns + STOP_MORE_NS);
}

/* An error is logged and changes nothing: a daemon never ends because of a file. */
static void on_hangup(uv_signal_t *h, int number)
{
	struct daemon *d = h->data;
	struct config_changes what;
	struct err e = {.status = SHARD_OK, .text = ""};
	bool ok;

	(void)number;
	if (d->stopping || d->server == NULL)
		return;
	notify_reloading(&d->notify);
	ok = config_reload(d->conf, d->args, &what, &e) == SHARD_OK;
	if (!ok) {
		log_line(&d->log, LOG_LEVEL_ERROR, "event=reload_failed why=%s", e.text);
	} else {
		d->log.level = d->conf->log_level;
		log_line(&d->log, LOG_LEVEL_INFO, "event=reload taken=%s",
			 what.taken[0] ? what.taken : "nothing has changed");
		if (what.left[0])
			log_line(&d->log, LOG_LEVEL_WARN, "event=reload_left options=%s why=%s",
				 what.left, "they are taken at a start only: restart shardd");
		ok = server_reload_secret(d->server, &e) == SHARD_OK;
		if (!ok)
			log_line(&d->log, LOG_LEVEL_ERROR, "event=reload_failed why=%s", e.text);
	}
	server_reloaded(d->server, ok);
	notify_reloaded(&d->notify);
}

static void on_fault(void *arg, const char *why)
{
	struct daemon *d = arg;

	if (d->stopping)
		return;
	d->stopping = true;
	server_stop(d->server, why, on_stopped, d);
	notify_stopping(&d->notify, d->conf->stop_timeout_ns + STOP_MORE_NS);
}

static void on_unused(void *arg)
{
	on_fault(arg, "linger: nothing is connected");
}

static void catch_signal(struct daemon *d, uv_signal_t *h, int number, uv_signal_cb cb)
{
	CHECK(uv_signal_init(&d->loop, h) == 0);
	h->data = d;
	CHECK(uv_signal_start(h, cb, number) == 0);
}

static enum shard_status open_loop(uv_loop_t *loop, struct err *e)
{
	int rc = uv_loop_init(loop);

	return rc == 0 ? SHARD_OK : err_set(e, SHARD_SYSTEM, "no event loop: %s", uv_strerror(rc));
}

/* Loads with what is kept of the cluster, which it takes over. */
static enum shard_status load_with(struct config *conf, struct config_args *args, char *text,
				   struct err *e)
{
	config_free(conf);
	free((void *)(uintptr_t)args->cluster);
	args->cluster = text;
	return config_load(conf, args, e);
}

/* What the state folder has of the cluster is a source of the configuration, and the configuration
 * says where the state folder is. */
static enum shard_status load(struct config *conf, struct config_args *args, struct err *e)
{
	enum shard_status st = config_load(conf, args, e);
	char *text = NULL;

	if (st == SHARD_OK && (st = static_cluster(conf->state, &text, e)) != SHARD_OK)
		config_free(conf);
	return st == SHARD_OK && text != NULL ? load_with(conf, args, text, e) : st;
}

static enum shard_status keep(const struct config *conf, const char *text, struct err *e)
{
	struct static_dir *dir = NULL;
	enum shard_status st = static_open(&dir, conf->state, e);

	if (st == SHARD_OK)
		st = static_set_cluster(dir, text, e);
	static_close(&dir);
	return st;
}

/* [cluster] join, and this node is in no list yet. What the cluster says is kept if a start can use
 * it. */
static enum shard_status join(struct daemon *d, struct config_args *args, struct err *e)
{
	char *text = calloc(1, CONFIG_CLUSTER_BYTES);
	enum shard_status st;

	if (text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to join a cluster");
	if ((st = enrol(d->conf, &d->log, &d->loop, text, e)) != SHARD_OK) {
		free(text);
		return st;
	}
	if ((st = load_with(d->conf, args, text, e)) == SHARD_OK && d->conf->joins)
		st = err_set(e, SHARD_BAD_ARG, "[cluster] join = %s: that list is without node %s",
			     d->conf->join.text, d->conf->node);
	return st == SHARD_OK ? keep(d->conf, text, e) : st;
}

static int run(struct config *conf, struct config_args *args, struct err *e)
{
	struct daemon d = {.conf = conf, .args = args};
	const char *failed;

	log_init(&d.log, STDERR_FILENO, conf->log_level, conf->node);
	(void)journal_use(&d.log);
	signal(SIGPIPE, SIG_IGN);
	if (limits_open(conf, &d.log, e) != SHARD_OK || open_loop(&d.loop, e) != SHARD_OK) {
		log_line(&d.log, LOG_LEVEL_ERROR, "event=start_failed status=%s why=%s",
			 status_name(e->status), e->text);
		return EXIT_FAILED;
	}
	signal(SIGHUP, SIG_IGN); /* Until there is something to read again, which may be a while. */
	if (conf->joins && join(&d, args, e) != SHARD_OK) {
		log_line(&d.log, LOG_LEVEL_ERROR, "event=start_failed status=%s why=%s",
			 status_name(e->status), e->text);
		uv_loop_close(&d.loop);
		return e->status == SHARD_BAD_ARG ? EXIT_CONFIG : EXIT_FAILED;
	}
	limits_start_pool(&d.loop, &d.pool);
	/* Before anybody can connect: a signal in a start is answered when the loop runs. */
	catch_signal(&d, &d.term, SIGTERM, on_signal);
	catch_signal(&d, &d.interrupt, SIGINT, on_signal);
	catch_signal(&d, &d.hangup, SIGHUP, on_hangup);
	if (server_init(&d.server, conf, &d.log, &d.loop, e) != SHARD_OK) {
		log_line(&d.log, LOG_LEVEL_ERROR, "event=start_failed status=%s why=%s",
			 status_name(e->status), e->text);
		uv_run(&d.loop, UV_RUN_NOWAIT); /* Answers a signal that came meanwhile. */
		close_signals(&d);
		uv_run(&d.loop, UV_RUN_DEFAULT); /* Ends what a failed start closes. */
		uv_loop_close(&d.loop);
		return e->status == SHARD_BAD_ARG ? EXIT_CONFIG : EXIT_FAILED;
	}
	notify_start(&d.notify, d.server, &d.loop, &d.log);
	server_on_fault(d.server, on_fault, &d);
	linger_start(&d.linger, conf, d.server, &d.loop, on_unused, &d);
	uv_run(&d.loop, UV_RUN_DEFAULT);
	failed = server_failed(d.server);
	if (failed)
		err_set(e, SHARD_SYSTEM, "%s", failed);
	server_free(&d.server);
	CHECK(uv_loop_close(&d.loop) == 0);
	return failed ? EXIT_FAILED : EXIT_OK;
}

/* systemd gives up a unit that fails five times in two minutes or for its configuration, and with
 * it the memory of models that it keeps for the next start. So a start that fails while there is
 * such memory waits before it ends, and ends with a status after which systemd tries again. */
static int fail_slowly(const struct err *e)
{
	notify_failed(e->text);
	fprintf(stderr,
		"shardd: the models in memory are kept: tried again in %d s, or at once by "
		"`systemctl restart shardd`\n",
		HELD_S);
	sleep(HELD_S);
	return EXIT_FAILED;
}

static void print_kept(void *list, const struct warm_kept *k)
{
	if (list) {
		json_array_append_new(
			list, json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:i}", "path",
					k->path, "verdict", k->verdict, "why", k->why, "whose",
					k->whose, "state", k->state, "bytes", (json_int_t)k->bytes,
					"models", (json_int_t)k->models, "age_s",
					(json_int_t)k->age_s, "uid", (int)k->uid));
		return;
	}
	if (!k->seen) {
		printf("%s: %s, of uid %u: %s\n", k->path, k->verdict, k->uid, k->why);
		return;
	}
	printf("%s: %s, %.1f MiB, %llu model%s, made %.1f h ago by uid %u%s%s%s%s\n", k->path,
	       k->verdict, (double)k->bytes / 1048576, (unsigned long long)k->models,
	       k->models == 1 ? "" : "s", (double)k->age_s / 3600, k->uid, k->whose[0] ? ", " : "",
	       k->whose, k->why[0] ? ": " : "", k->why);
}

static enum shard_status list_kept(const struct config *conf, bool json, struct err *e)
{
	json_t *list = json ? json_array() : NULL;
	enum shard_status st = warm_kept_list(conf, print_kept, list, e);

	if (st == SHARD_OK && json) {
		json_dumpf(list, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		printf("\n");
	}
	json_decref(list);
	return st;
}

static int forget(const struct config *conf, const struct options *o)
{
	struct static_dir *dir = NULL;
	enum shard_status st = SHARD_OK;
	struct err e;

	if (o->list)
		st = list_kept(conf, o->json, &e);
	else if (o->forget_path)
		st = warm_kept_forget(conf, o->forget_path, &e);
	else if ((st = static_open(&dir, conf->state, &e)) == SHARD_OK)
		st = warm_forget_all(conf, dir, &e);
	if (st != SHARD_OK)
		fprintf(stderr, "shardd: %s\n", e.text);
	static_close(&dir);
	return st == SHARD_OK ? EXIT_OK : EXIT_FAILED;
}

/* Says what is wrong in a configuration. shardctl runs this program under its own name for that. A
 * file may have bytes that a terminal would obey. */
static void say_wrong(void *told, const char *text)
{
	char plain[4 * sizeof(((struct err *)0)->text)];

	*(bool *)told = true;
	control_escape(plain, sizeof(plain), text);
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, plain);
}

static int explain(struct config_args *args, bool json, struct err *e)
{
	struct config conf;

	if (load(&conf, args, e) != SHARD_OK)
		return EXIT_CONFIG;
	config_free(&conf);
	return config_explain(args, json, stdout, e) == SHARD_OK ? EXIT_OK : EXIT_CONFIG;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
		argp_rows,
		on_option,
		NULL,
		"shardd holds a training job's weights and optimizer state. Trainers use it "
		"through libshard.",
		NULL,
		help_filter,
		NULL,
	};
	struct options o = {.file = NULL};
	struct config_args args;
	struct config conf;
	struct err e = {.status = SHARD_OK, .text = ""};
	bool parked = warm_parked(), told = false;
	int rc;

	/* Its threads allocate little. In an arena for each of them would lie memory that is of no
	 * use, that no budget knows, and that grows for hours. */
	mallopt(M_ARENA_MAX, 1);
	output_checked();
	if (argc > 1 && strcmp(argv[1], "--replay") == 0) /* For shardctl replay alone. */
		return replay_main(argc - 2, argv + 2);
	argp_err_exit_status = EXIT_USAGE;
	if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
		return EXIT_USAGE;
	args = (struct config_args){.file = o.file,
				    .folder = o.folder,
				    .pipe_ns = o.check || o.explain ? PIPE_NS : 0,
				    .wrong = o.check || o.explain ? say_wrong : NULL,
				    .wrong_arg = &told,
				    .set = o.set,
				    .set_nr = o.set_nr,
				    .environ_ = (const char *const *)environ};
	if (o.explain)
		rc = explain(&args, o.json, &e);
	else
		rc = load(&conf, &args, &e) == SHARD_OK ? EXIT_OK : EXIT_CONFIG;
	if (rc != EXIT_OK && !told)
		say_wrong(&told, e.text);
	if (rc == EXIT_OK && !o.explain) {
		if (o.check)
			config_print(&conf, stdout);
		else
			rc = o.forget ? forget(&conf, &o) : run(&conf, &args, &e);
		config_free(&conf);
	}
	if (rc != EXIT_OK && parked && !o.explain && !o.check && !o.forget)
		rc = fail_slowly(&e);
	for (uint32_t i = 0; i < o.set_nr; i++)
		free(o.made[i]);
	free((void *)(uintptr_t)args.cluster);
	return rc;
}
