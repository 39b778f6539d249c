/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's state as Prometheus metrics and its health as text; scrape_model.c has the metrics
 * of models, and status.c the JSON. http.c asks for a snapshot on the loop, at most once a second,
 * and models tell it of decided and applied steps. Each node tells only of itself: its links, its
 * models and its local ranks. The sum over all nodes shows the cluster. Names end in their unit,
 * and those of counters in _total. If there is no memory, the text is NULL and that request fails.
 */
#include "obs/scrape.h"

#include "base/check.h"
#include "base/clock.h"
#include "gpu/device.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/watch.h"
#include "obs/cluster.h"
#include "obs/events.h"
#include "obs/health.h"
#include "obs/metrics.h"
#include "obs/scrape_model.h"
#include "obs/status.h"
#include "warm/warm.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* --- counting --- */

static void scrape_decided(struct model *m, const struct record *r)
{
	struct metrics_model *x = m->metrics;
	const struct contrib *g = &m->contrib;
	uint64_t now = clock_ns(), first = UINT64_MAX;

	CHECK(m->metrics != NULL);
	if (r->outcome == RECORD_APPLIED)
		x->applied++;
	else if (r->outcome == RECORD_NONFINITE || r->outcome == RECORD_SKIP)
		x->skipped[r->outcome == RECORD_SKIP ? METRICS_SKIP_VOTE
						     : METRICS_SKIP_NONFINITE]++;
	x->contrib_in_bytes += m->contrib_in.bytes;
	x->grad_in_bytes += m->reduced.in.bytes;
	x->ranks_nr = 0;
	if (core_id_cmp(&r->id, &m->attempt.id) != 0 || m->attempt.began_ns == 0)
		/* The step was decided in another view, so this attempt's times are not its own. */
		return;
	histogram_add(&x->step, x->step_ns = now - m->attempt.began_ns);
	histogram_add(&x->reduce, g->reduce_ns);
	for (uint32_t i = 0; i < g->local_nr; i++)
		if (g->local[i].pushed_ns != 0 && g->local[i].pushed_ns < first)
			first = g->local[i].pushed_ns;
	if (first == UINT64_MAX)
		return; /* This node has no ranks. */
	histogram_add(&x->wait, x->wait_ns = now - first);
	for (uint32_t i = 0; i < g->local_nr && i < METRICS_RANKS; i++)
		if (g->local[i].pushed_ns != 0)
			x->rank[x->ranks_nr++] = (struct metrics_rank){
				g->local[i].rank, g->local[i].pushed_ns - first};
}

static void scrape_applied(struct model *m)
{
	if (m->record.outcome == RECORD_APPLIED)
		histogram_add(&m->metrics->apply, m->img.apply_ns);
}

static enum shard_status scrape_made(struct model *m, struct err *e)
{
	CHECK(m->metrics == NULL);
	m->metrics = calloc(1, sizeof(*m->metrics));
	return m->metrics != NULL
		       ? SHARD_OK
		       : err_set(e, SHARD_SYSTEM, "no memory for the figures of a model");
}

static void scrape_going(struct model *m)
{
	free(m->metrics);
	m->metrics = NULL;
}

const struct model_watch scrape_watch = {
	.made = scrape_made,
	.decided = scrape_decided,
	.applied = scrape_applied,
	.going = scrape_going,
};

/* --- the process --- */

static uint64_t resident_bytes(void)
{
	unsigned long all, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (f == NULL)
		return 0;
	if (fscanf(f, "%lu %lu", &all, &resident) != 2)
		resident = 0;
	fclose(f);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	const struct dirent *entry;
	uint64_t nr = 0;

	if (d == NULL)
		return 0;
	while ((entry = readdir(d)) != NULL)
		nr += entry->d_name[0] != '.';
	closedir(d);
	return nr - 1; /* Without the folder's own. */
}

static void cpu(FILE *f, const char *name, const struct server *s)
{
	struct rusage u;

	(void)s;
	getrusage(RUSAGE_SELF, &u);
	metrics_sample(f, name, NULL,
		       (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
			       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
}

static void max_descriptors(FILE *f, const char *name, const struct server *s)
{
	struct rlimit r;

	(void)s;
	if (getrlimit(RLIMIT_NOFILE, &r) == 0)
		metrics_count(f, name, NULL, r.rlim_cur);
}

/* --- other nodes --- */

void scrape_peer_bytes(const struct peer *p, uint64_t *in, uint64_t *out)
{
	rdma_link_bytes(p, in, out);
	*in += p->past_in_bytes;
	*out += p->past_out_bytes;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		if (p->conns[i].conn == NULL)
			continue;
		*in += conn_stats(p->conns[i].conn)->bytes_in;
		*out += conn_stats(p->conns[i].conn)->bytes_out;
	}
}

#define EACH_PEER(fn, sample)                                                                      \
	static void fn(FILE *f, const char *name, const struct server *s)                          \
	{                                                                                          \
		for (uint16_t n = 0; n < s->nodes_nr; n++)                                         \
			if (s->peer[n] != NULL)                                                    \
				sample(f, name, s, n);                                             \
	}

static void sample_link(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	if (!s->peer[n]->up && server_gone(s, n))
		return; /* Nothing is wrong with it. */
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}), s->peer[n]->up);
}

static void sample_downs(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}), s->peer[n]->downs);
}

static void sample_bytes(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	uint64_t in, out;

	CHECK(n < s->nodes_nr && n != s->self);
	scrape_peer_bytes(s->peer[n], &in, &out);
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}, {"direction", "in"}),
		      in);
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}, {"direction", "out"}),
		      out);
}

static void sample_transport(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	const char *why;
	bool rdma = s->peer[n]->up && rdma_link_carries(s->peer[n], &why);

	CHECK(n < s->nodes_nr && n != s->self);
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}, {"transport", "rdma"}),
		      rdma);
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}, {"transport", "tcp"}),
		      s->peer[n]->up && !rdma);
}

static void sample_tensor_bytes(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	static const char *const transports[] = {"rdma", "tcp"};
	uint64_t in[2], out[2];

	rdma_link_bytes(s->peer[n], &in[0], &out[0]);
	peer_tensor_bytes(s->peer[n], &in[1], &out[1]);
	for (int i = 0; i < 2; i++) {
		metrics_count(f, name,
			      METRICS_LABELS({"peer", members_name(s, n)},
					     {"transport", transports[i]}, {"direction", "in"}),
			      in[i]);
		metrics_count(f, name,
			      METRICS_LABELS({"peer", members_name(s, n)},
					     {"transport", transports[i]}, {"direction", "out"}),
			      out[i]);
	}
}

static void sample_rdma_failures(FILE *f, const char *name, const struct server *s, uint16_t n)
{
	metrics_count(f, name, METRICS_LABELS({"peer", members_name(s, n)}),
		      s->peer[n]->rdma.failures);
}

EACH_PEER(links, sample_link)
EACH_PEER(downs, sample_downs)
EACH_PEER(peer_bytes, sample_bytes)
EACH_PEER(transports, sample_transport)
EACH_PEER(tensor_bytes, sample_tensor_bytes)
EACH_PEER(rdma_failures, sample_rdma_failures)

/* --- the daemon --- */

/* Bytes of all connections that were no links, that is, of trainers and tools. */
static void session_bytes(const struct server *s, uint64_t *in, uint64_t *out)
{
	*in = s->past.in_bytes;
	*out = s->past.out_bytes;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		*in -= s->peer[n] != NULL ? s->peer[n]->past_in_bytes : 0;
		*out -= s->peer[n] != NULL ? s->peer[n]->past_out_bytes : 0;
	}
	list_each(it, (struct list *)(uintptr_t)&s->conns.sessions) {
		const struct stream_stats *st = conn_stats(list_of(it, struct session, link)->conn);

		*in += st->bytes_in;
		*out += st->bytes_out;
	}
}

static void build_info(FILE *f, const char *name, const struct server *s)
{
	metrics_count(f, name,
		      METRICS_LABELS({"release", SHARD_RELEASE}, {"isa", isa_name(s->isa)},
				     {"node", members_name(s, s->self)}),
		      1);
}

/* What a requester over HTTP is: nobody that is known, or everybody (http_private_models). */
static const Shard__Cred *reader(const struct server *s, Shard__Cred *all)
{
	shard__cred__init(all);
	all->known = all->root = true;
	return s->conf->http_private_models ? all : NULL;
}

static void health_is(FILE *f, const char *name, const struct server *s)
{
	Shard__Cred all;
	enum health_level now = health_lines(NULL, s, reader(s, &all)); /* As of /healthz. */

	for (enum health_level i = HEALTH_OK; i <= HEALTH_ILL; i++)
		metrics_count(f, name, METRICS_LABELS({"level", health_level_name(i)}), i == now);
}

static void log_lines(FILE *f, const char *name, const struct server *s)
{
	uint64_t lines[LOG_LEVEL_NR];

	events_lines(s, lines);
	for (enum log_level i = 0; i < LOG_LEVEL_NR; i++)
		metrics_count(f, name, METRICS_LABELS({"level", log_level_name(i)}), lines[i]);
}

static void connections(FILE *f, const char *name, const struct server *s)
{
	metrics_count(f, name, METRICS_LABELS({"state", "greeted"}), s->conns.sessions_nr);
	metrics_count(f, name, METRICS_LABELS({"state", "greeting"}), s->conns.openings_nr);
}

static void trainer_bytes(FILE *f, const char *name, const struct server *s)
{
	uint64_t in, out;

	session_bytes(s, &in, &out);
	metrics_count(f, name, METRICS_LABELS({"direction", "in"}), in);
	metrics_count(f, name, METRICS_LABELS({"direction", "out"}), out);
}

static uint64_t refused_frames(const struct server *s)
{
	uint64_t refused, copied;

	status_counts(s, &refused, &copied);
	return refused;
}

static uint64_t copied_bytes(const struct server *s)
{
	uint64_t refused, copied;

	status_counts(s, &refused, &copied);
	return copied;
}

#define COUNT(fn, value)                                                                           \
	static void fn(FILE *f, const char *name, const struct server *s)                          \
	{                                                                                          \
		(void)s;                                                                           \
		metrics_count(f, name, NULL, (value));                                             \
	}

COUNT(incarnation, s->incarnation)
COUNT(starts, s->start)
COUNT(warm_starts, s->warm != NULL ? warm_counted(s->warm) : 0)
COUNT(parked, s->warm != NULL ? warm_bytes(s->warm) : 0)
COUNT(coordinator, server_leads(s))
COUNT(budget, s->budget.total)
COUNT(budget_used, s->budget.used)
COUNT(queued, s->conns.queued.bytes)
COUNT(places_refused, s->conns.refused)
COUNT(auth_refused, s->secret.refused)
COUNT(frames_refused, refused_frames(s))
COUNT(copied, copied_bytes(s))
COUNT(reload_good, !s->reload.failed)
COUNT(reload_at, (uint64_t)s->reload.at)
COUNT(started_at, (uint64_t)s->reload.started_at)
COUNT(resident, resident_bytes())
COUNT(descriptors, open_descriptors())

/* Without a certificate there is no sample. */
static void cert_expiry(FILE *f, const char *name, const struct server *s)
{
	if (tls_expires(s->secret.tls) != 0)
		metrics_count(f, name, NULL, (uint64_t)tls_expires(s->secret.tls));
}

static void uptime(FILE *f, const char *name, const struct server *s)
{
	metrics_sample(f, name, NULL, (double)(clock_ns() - s->started_ns) / NS_PER_SEC);
}

/* --- GPUs --- */

#define EACH_GPU(fn, sample)                                                                       \
	static void fn(FILE *f, const char *name, const struct server *s)                          \
	{                                                                                          \
		for (uint32_t i = 0; i < s->gpus_nr; i++) {                                        \
			struct gpu_about about;                                                    \
			char uuid[GPU_UUID_TEXT];                                                  \
                                                                                                   \
			gpu_tell(s->gpu[i], &about);                                               \
			gpu_uuid_text(about.uuid, uuid);                                           \
			sample(f, name, s->gpu[i], &about, uuid);                                  \
		}                                                                                  \
	}
#define GPU_COUNT(fn, value)                                                                       \
	static void sample_##fn(FILE *f, const char *name, const struct gpu *g,                    \
				const struct gpu_about *about, const char *uuid)                   \
	{                                                                                          \
		(void)g;                                                                           \
		(void)about;                                                                       \
		metrics_count(f, name, METRICS_LABELS({"gpu", uuid}), (value));                    \
	}                                                                                          \
	EACH_GPU(fn, sample_##fn)

static void sample_gpu_bytes(FILE *f, const char *name, const struct gpu *g,
			     const struct gpu_about *about, const char *uuid)
{
	(void)g;
	metrics_count(f, name, METRICS_LABELS({"gpu", uuid}, {"direction", "in"}),
		      about->to_device_bytes);
	metrics_count(f, name, METRICS_LABELS({"gpu", uuid}, {"direction", "out"}),
		      about->to_host_bytes);
}

EACH_GPU(gpu_bytes, sample_gpu_bytes)
GPU_COUNT(gpu_limit, about->limit_bytes)
GPU_COUNT(gpu_used, about->mapped_bytes)
GPU_COUNT(gpu_updates, about->updates)
GPU_COUNT(gpu_sums, about->sums)
GPU_COUNT(gpu_is_lost, gpu_lost(g, NULL))

static const struct family {
	const char *name;
	enum metrics_type type;
	const char *help;
	void (*sample)(FILE *f, const char *name, const struct server *s);
} families[] = {
	{"shardd_build_info", METRICS_GAUGE, "Always 1; labels say what runs.", build_info},
	{"shardd_health", METRICS_GAUGE, "1 for the level of what this node finds wrong.",
	 health_is},
	{"shardd_uptime_seconds", METRICS_GAUGE, "Time since the daemon started.", uptime},
	{"shardd_incarnation", METRICS_GAUGE, "Number of the start that began without memory.",
	 incarnation},
	{"shardd_starts_total", METRICS_COUNTER, "Starts of this node, ever.", starts},
	{"shardd_warm_starts_total", METRICS_COUNTER,
	 "Starts since shardd_incarnation that took up the models of the one before.", warm_starts},
	{"shardd_config_last_reload_successful", METRICS_GAUGE,
	 "1: the configuration was taken when it was last read; 0: the file or a key is wrong.",
	 reload_good},
	{"shardd_config_last_reload_success_timestamp_seconds", METRICS_GAUGE,
	 "When the configuration was last read and taken.", reload_at},
	{"shardd_tls_cert_expiry_timestamp_seconds", METRICS_GAUGE,
	 "When the certificate in [net] tls_cert expires.", cert_expiry},
	{"shardd_log_lines_total", METRICS_COUNTER, "Lines written to the log, by level.",
	 log_lines},
	{"shardd_parked_bytes", METRICS_GAUGE, "Memory that outlives this process.", parked},
	{"shardd_coordinator", METRICS_GAUGE, "1 on the node that coordinates.", coordinator},
	{"shardd_budget_bytes", METRICS_GAUGE, "Memory that models may take on this node.", budget},
	{"shardd_budget_used_bytes", METRICS_GAUGE,
	 "Memory that models and queues have reserved on this node.", budget_used},
	{"shardd_connections", METRICS_GAUGE,
	 "Accepted connections of trainers, tools and who has not said HELLO yet.", connections},
	{"shardd_connections_refused_total", METRICS_COUNTER,
	 "Connections of trainers and tools for which there was no place.", places_refused},
	{"shardd_refused_frames_total", METRICS_COUNTER, "Frames refused: header, sum or legality.",
	 frames_refused},
	{"shardd_queued_bytes", METRICS_GAUGE,
	 "Bytes in memory that wait to be taken by trainers, tools and nodes.", queued},
	{"shardd_auth_refused_total", METRICS_COUNTER,
	 "Connections whose other end did not prove that it knows the cluster's secret.",
	 auth_refused},
	{"shardd_copied_bytes_total", METRICS_COUNTER,
	 "Tensor bytes copied once more on the way: of weights written or read, never of a step.",
	 copied},
	{"shardd_trainer_bytes_total", METRICS_COUNTER,
	 "Bytes from and to trainers and tools over sockets, not shared memory.", trainer_bytes},
	{"shardd_peer_bytes_total", METRICS_COUNTER,
	 "Bytes from and to each other node, by any transport.", peer_bytes},
	{"shardd_link_up", METRICS_GAUGE, "1: the link to that node is up.", links},
	{"shardd_link_downs_total", METRICS_COUNTER, "Times that the link to that node was lost.",
	 downs},
	{"shardd_transport", METRICS_GAUGE, "1 for what carries tensors from and to that node.",
	 transports},
	{"shardd_tensor_bytes_total", METRICS_COUNTER,
	 "Tensor bytes from and to each other node, by what carried them.", tensor_bytes},
	{"shardd_rdma_failures_total", METRICS_COUNTER,
	 "Times that RDMA with that node failed, or was not to be had.", rdma_failures},
	{"shardd_gpu_memory_bytes", METRICS_GAUGE, "Memory of that GPU that models may take.",
	 gpu_limit},
	{"shardd_gpu_memory_used_bytes", METRICS_GAUGE, "Memory of that GPU that models take.",
	 gpu_used},
	{"shardd_gpu_copied_bytes_total", METRICS_COUNTER,
	 "Bytes copied to that GPU (in) and from it (out).", gpu_bytes},
	{"shardd_gpu_updates_total", METRICS_COUNTER, "Updates of chunks that it has done.",
	 gpu_updates},
	{"shardd_gpu_sums_total", METRICS_COUNTER,
	 "Sums of gradients that it has made of what lies in its memory.", gpu_sums},
	{"shardd_gpu_lost", METRICS_GAUGE, "1: that GPU failed, until the daemon starts again.",
	 gpu_is_lost},
	{"process_cpu_seconds_total", METRICS_COUNTER,
	 "User and system time of the daemon, all threads.", cpu},
	{"process_resident_memory_bytes", METRICS_GAUGE, "Resident memory of the daemon.",
	 resident},
	{"process_open_fds", METRICS_GAUGE, "Descriptors that the daemon has open.", descriptors},
	{"process_max_fds", METRICS_GAUGE, "Descriptors that it may have open.", max_descriptors},
	{"process_start_time_seconds", METRICS_GAUGE, "When the daemon started.", started_at},
};

static void server_metrics(FILE *f, const struct server *s)
{
	for (size_t i = 0; i < NR(families); i++) {
		metrics_family(f, families[i].name, families[i].type, families[i].help);
		families[i].sample(f, families[i].name, s);
	}
}

/* --- the snapshot --- */

/* Fills one text of the snapshot in. It stays NULL without memory. */
static void written(char **out, struct http_snapshot *to, const struct server *s,
		    void (*write)(FILE *f, const struct server *s, struct http_snapshot *to))
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	bool ok;

	if (f == NULL)
		return;
	write(f, s, to);
	ok = !ferror(f);
	if (fclose(f) == 0 && ok)
		*out = text;
	else
		free(text);
}

static void health(FILE *f, const struct server *s, struct http_snapshot *to)
{
	Shard__Cred all;

	to->ill = health_lines(f, s, reader(s, &all)) == HEALTH_ILL;
}

static void all_metrics(FILE *f, const struct server *s, struct http_snapshot *to)
{
	(void)to;
	server_metrics(f, s);
	scrape_models(f, s);
}

/* What the charts of the page begin with. */
static json_t *all_samples(const struct server *s)
{
	json_t *models = json_object();

	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (!m->defining && scrape_shown(m))
			json_object_set_new(models, m->name, progress_samples_json(m));
	}
	return json_pack("{s:i, s:f, s:o}", "format", STATUS_FORMAT, "every_s",
			 (double)PROGRESS_SAMPLE_NS / NS_PER_SEC, "models", models);
}

void scrape_render(void *server, struct http_snapshot *out)
{
	struct server *s = server;
	Shard__Cred all;
	json_t *events = json_pack("{s:i, s:o}", "format", STATUS_FORMAT, "events",
				   events_json(s, reader(s, &all))),
	       *samples = out->due ? all_samples(s) : NULL;

	written(&out->metrics, out, s, all_metrics);
	out->status = status_json(s, reader(s, &all), STATUS_WHOLE);
	if (out->whole) {
		cluster_ask(s, (Shard__Cred *)(uintptr_t)reader(s, &all));
		out->cluster = cluster_json(s, reader(s, &all));
	}
	out->events = json_dumps(events, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(events);
	if (out->due)
		out->samples = json_dumps(samples, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(samples);
	written(&out->health, out, s, health);
	health_ready(s, out->unready, sizeof(out->unready));
}
