/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at beyond this machine, and in its environment. doctor.c calls these
 * functions through the rows in checks.c. doctor_nodes() asks each other node of [nodes] for its
 * HELLO, one after the other, each within a second. The node must answer under its own name and
 * with the same shared options. One that was drained because it is gone is not asked. doctor_ntp()
 * looks whether the clock is synchronised, and doctor_environment() looks for SHARD_* variables
 * that nothing reads. The worst result counts, and the text names every node with a fault. */
#include "ctl/doctor.h"

#include "base/check.h"
#include "base/clock.h"
#include "ctl/greet.h"
#include "ctl/json.h"
#include "wire/frame.h"

#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>

#define ASK_NS NS_PER_SEC

struct probe {
	const struct doctor *d;
	const char *node;
	enum doctor_result result;
	char text[300];
	const char *remedy;
};

__attribute__((format(printf, 4, 5))) static void wrong(struct probe *p, enum doctor_result result,
							const char *remedy, const char *fmt, ...)
{
	va_list ap;

	if (p->result >= result) /* Of several equally bad results the first one is kept. */
		return;
	p->result = result;
	p->remedy = remedy;
	va_start(ap, fmt);
	vsnprintf(p->text, sizeof(p->text), fmt, ap);
	va_end(ap);
}

/* The n-th line of [nodes], counted from 0, in the form that every daemon writes it: "b =
 * 10.0.0.2:29700". */
static void node_line(const struct doctor *d, unsigned long n, char *out, size_t bytes)
{
	size_t i;
	json_t *o;

	out[0] = 0;
	json_array_foreach(json_object_get(d->config, "options"), i, o)
		if (strcmp(json_string_value(json_object_get(o, "section")), "nodes") == 0 &&
		    n-- == 0)
			snprintf(out, bytes, "%s = %s",
				 json_string_value(json_object_get(o, "key")),
				 json_string_value(json_object_get(o, "value")));
}

static void compare(struct probe *p, const char *key, const char *theirs)
{
	const char *dot = strchr(key, '.'), *mine;
	char section[64], line[256];

	if (strcmp(key, "the wire between nodes") == 0) {
		mine = WIRE_NODES;
	} else if (strncmp(key, "nodes[", 6) == 0) {
		node_line(p->d, strtoul(key + 6, NULL, 10), line, sizeof(line));
		mine = line;
	} else {
		snprintf(section, sizeof(section), "%.*s", dot ? (int)(dot - key) : 0, key);
		mine = dot ? doctor_value(p->d, section, dot + 1) : "";
	}
	if (strcmp(mine, theirs) != 0)
		wrong(p, DOCTOR_FAIL,
		      "make [cluster], [net] and [nodes] equal on all nodes, and restart the one "
		      "that is changed",
		      "%.60s is %.80s there, %.80s here", key, theirs, mine[0] ? mine : "not set");
}

static void heard(void *arg, const Shard__Hello *h)
{
	struct probe *p = arg;

	if (strcmp(h->node, p->node) != 0)
		wrong(p, DOCTOR_FAIL, "correct the address in [nodes], or [daemon] node over there",
		      "node %.64s answers there", h->node);
	for (size_t i = 0; i < h->n_config; i++)
		compare(p, h->config[i]->key, h->config[i]->value);
	if (strcmp(h->release, SHARD_RELEASE) != 0)
		wrong(p, DOCTOR_WARN, "install one release on all nodes",
		      "runs shardd %.40s, this is %s", h->release, SHARD_RELEASE);
}

static void ask_node(struct probe *p, const char *address)
{
	struct ctl_options o = *p->d->options;
	char how[DOCTOR_HOW_BYTES];
	struct err e;

	o.address = address;
	if (!o.secret && doctor_value(p->d, "cluster", "node_secret")[0])
		o.secret = doctor_value(p->d, "cluster",
					/* The node secret also opens what tools may do. */
					"node_secret");
	if (!o.secret && doctor_value(p->d, "cluster", "secret")[0])
		o.secret = doctor_value(p->d, "cluster", "secret");
	if (!o.tls)
		o.tls = doctor_tls_how(p->d, how, sizeof(how));
	o.timeout_ns = o.timeout_ns < ASK_NS ? o.timeout_ns : ASK_NS;
	if (ctl_greet(&o, heard, p, &e) == SHARD_OK)
		return;
	if (strstr(e.text, "(ECONNREFUSED)"))
		wrong(p, DOCTOR_WARN, "start shardd there: systemctl start shardd",
		      "no shardd runs at %.100s", address);
	else if (strncmp(e.text, "secret ", 7) == 0)
		wrong(p, DOCTOR_WARN,
		      "run doctor as who may read the secret, or give it with --secret FILE",
		      "%.250s", e.text);
	else if (strstr(e.text, "TLS") || strstr(e.text, "certificate"))
		wrong(p, DOCTOR_FAIL, "set the same [net] tls on all nodes, with one CA", "%.250s",
		      e.text);
	else if (e.status == SHARD_DENIED)
		wrong(p, DOCTOR_FAIL, "set the same [cluster] node_secret on all nodes", "%.250s",
		      e.text);
	else if (e.status == SHARD_UNREACHABLE)
		wrong(p, DOCTOR_FAIL,
		      "correct [nodes], or open the port in the firewall; `nc -vz HOST PORT` tries "
		      "it",
		      "%.250s", e.text);
	else
		wrong(p, DOCTOR_FAIL,
		      "`ss -ltnp` over there says what listens; shardd's log, why it does not "
		      "answer",
		      "%.250s", e.text);
}

/* Was the node drained while it was away, as the daemon here says, if it runs? */
static bool gone(const struct doctor *d, const char *node)
{
	size_t i;
	json_t *n;

	json_array_foreach(json_object_get(d->status, "nodes"), i, n)
		if (strcmp(ctl_text(n, "name"), node) == 0)
			return strcmp(ctl_text(n, "state"), "gone") == 0;
	return false;
}

void doctor_nodes(const struct doctor *d, struct finding *f)
{
	const char *self = doctor_value(d, "daemon", "node"), *remedy = NULL;
	enum doctor_result worst = DOCTOR_OK;
	int others = 0, answer = 0;
	char all[400] = "";
	size_t i, used = 0;
	json_t *o;

	json_array_foreach(json_object_get(d->config, "options"), i, o) {
		const char *name = json_string_value(json_object_get(o, "key"));
		struct probe p = {.d = d, .node = name, .result = DOCTOR_OK};

		if (strcmp(json_string_value(json_object_get(o, "section")), "nodes") != 0 ||
		    strcmp(name, self) == 0 || gone(d, name))
			continue;
		ask_node(&p, json_string_value(json_object_get(o, "value")));
		others++;
		answer += p.result == DOCTOR_OK;
		if (p.result > worst) {
			worst = p.result;
			remedy = p.remedy;
		}
		if (p.result != DOCTOR_OK && used < sizeof(all))
			used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s: %s",
						 used ? "; " : "", name, p.text);
	}
	if (worst != DOCTOR_OK) {
		doctor_found(f, worst, "%s", all);
		doctor_remedy(f, "%s", remedy);
	} else if (others == 0) {
		doctor_found(f, DOCTOR_OK, "no others in [nodes] to ask");
	} else {
		doctor_found(f, DOCTOR_OK, "%d of %d others answer, with the same shared options",
			     answer, others);
	}
}

/* What the running daemon finds wrong in the cluster, as `shardctl status` says it. */
void doctor_cluster(const struct doctor *d, struct finding *f)
{
	const json_t *health = json_object_get(d->status, "health"),
		     *list = json_object_get(health, "findings");
	const char *level = ctl_text(health, "level");
	char all[sizeof(f->found)] = "";
	size_t i, used = 0;
	json_t *x;

	if (health == NULL)
		return;
	/* The worst first, because the text may be cut. */
	for (int ill = 1; ill >= 0; ill--)
		json_array_foreach((json_t *)(uintptr_t)list, i, x)
			if ((strcmp(ctl_text(x, "level"), "ill") == 0) == ill && used < sizeof(all))
				used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s",
							 used > 0 ? "; " : "", ctl_text(x, "text"));
	if (used == 0) {
		doctor_found(f, DOCTOR_OK, "nodes and models are well");
		return;
	}
	doctor_found(f, strcmp(level, "ill") == 0 ? DOCTOR_FAIL : DOCTOR_WARN, "%s", all);
	doctor_remedy(f, "`shardctl status` says more, `shardctl events` what happened before");
}

/* Asks the kernel for its clock's status and largest error. A made-up machine (--root) has the
 * answer in a file: the status, and the error in microseconds. */
static bool kernel_clock(const struct doctor *d, int *status, long *error_us)
{
	struct timex t = {.modes = 0};
	char line[64];

	if (d->root[0])
		return doctor_line(d, "/adjtimex", line, sizeof(line)) &&
		       sscanf(line, "%d %ld", status, error_us) == 2;
	if (adjtimex(&t) < 0)
		return false;
	*status = t.status;
	*error_us = t.maxerror;
	return true;
}

void doctor_ntp(const struct doctor *d, struct finding *f)
{
	long error_us;
	int status;

	if (!kernel_clock(d, &status, &error_us)) {
		doctor_found(f, DOCTOR_WARN,
			     "the kernel does not say whether its clock is synchronised");
		doctor_remedy(f, "look with `timedatectl` or `chronyc tracking`");
	} else if (status & STA_UNSYNC) {
		doctor_found(f, DOCTOR_WARN,
			     "the clock is not synchronised: log lines of two nodes cannot be put "
			     "in order");
		doctor_remedy(f, "systemctl enable --now systemd-timesyncd, or chrony");
	} else {
		doctor_found(f, DOCTOR_OK, "synchronised, within %.1f ms", (double)error_us / 1e3);
	}
}

void doctor_environment(const struct doctor *d, struct finding *f)
{
	const char *unknown = json_string_value(json_object_get(d->config, "unknown_variables"));

	if (!unknown || !unknown[0]) {
		doctor_found(f, DOCTOR_OK, "no SHARD_* variable is unknown");
		return;
	}
	doctor_found(f, DOCTOR_WARN, "nothing reads %s", unknown);
	doctor_remedy(f, "unset it, or correct it: `shardd --help` says how variables are named");
}
