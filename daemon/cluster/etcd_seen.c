/* SPDX-License-Identifier: Apache-2.0 */
/* What was seen in etcd: the number of the cluster, and the revision, term and view of the newest
 * answer. The source asks it about each answer. An answer that was sent for before another one came
 * may be older than that one, but never older than what was known when it was sent for. The file is
 * written when term or view change, one write at a time. A full disk is tried again. A node that
 * has never written it must not lead. */
#include "cluster/etcd_seen.h"
#include "cluster/source_file.h"

#include "base/check.h"
#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_MS 250 /* Between two tries at a full disk. */
#define ETCD_WHAT_TO_DO                                                                            \
	"Start the etcd with its own data, or go on from checkpoints (\"etcd was wiped\" in "      \
	"deploy/README.md)"

struct seen { /* The body of the file. */
	uint64_t cluster_id, revision, term, seq;
	uint8_t writer[MEMBER_UUID_BYTES];
};
static_assert(sizeof(struct seen) == 48, "frozen");

struct etcd_seen {
	struct source_file *file;
	struct seen now, disk, writing;
	bool saving;
	uint64_t again_ns;
	void (*saved)(void *arg, const struct err *e);
	void *arg;
};

static enum shard_status take_file(struct etcd_seen *x, size_t nr, const char *dir, struct err *e)
{
	if (nr == 0)
		return SHARD_OK;
	if (nr != sizeof(x->disk))
		return err_set(e, SHARD_PROTOCOL, "%s/source: its length is wrong", dir);
	memcpy(&x->disk, source_file_body(x->file), sizeof(x->disk));
	if (x->disk.cluster_id == 0 || x->disk.revision > INT64_MAX ||
	    x->disk.term > ETCD_TERM_MAX || x->disk.seq > INT64_MAX)
		return err_set(e, SHARD_PROTOCOL, "%s/source: a number in it cannot be", dir);
	x->now = x->disk;
	return SHARD_OK;
}

enum shard_status etcd_seen_open(struct etcd_seen **out, const struct member_config *c,
				 void (*saved)(void *arg, const struct err *e), void *arg,
				 struct err *e)
{
	struct etcd_seen *x = calloc(1, sizeof(*x));
	enum shard_status st;
	size_t nr;

	if (x == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	x->saved = saved;
	x->arg = arg;
	st = source_file_open(&x->file, c, "etcd", sizeof(x->disk), &nr, e);
	if (st == SHARD_OK)
		st = take_file(x, nr, c->dir, e);
	if (st == SHARD_OK)
		*out = x;
	else
		etcd_seen_close(&x);
	return st;
}

void etcd_seen_close(struct etcd_seen **xp)
{
	struct etcd_seen *x = *xp;

	*xp = NULL;
	if (x == NULL)
		return;
	CHECK(!x->saving);
	source_file_close(&x->file);
	free(x);
}

bool etcd_seen_cluster(struct etcd_seen *x, uint64_t cluster_id, struct err *e)
{
	CHECK(cluster_id != 0);
	if (x->now.cluster_id == 0)
		x->now.cluster_id = cluster_id;
	if (x->now.cluster_id == cluster_id)
		return true;
	err_set(e, SHARD_MISMATCH,
		"this etcd is the cluster %016llx, and this node has used %016llx: its terms may "
		"be lower than those that members have promised to heed. " ETCD_WHAT_TO_DO,
		(unsigned long long)cluster_id, (unsigned long long)x->now.cluster_id);
	return false;
}

static bool knows_all(const struct seen *now, const struct etcd_state *st)
{
	if (st->seq < now->seq || (st->term != 0 && st->term < now->term))
		return false;
	return st->seq != now->seq || st->seq == 0 ||
	       memcmp(st->writer, now->writer, sizeof(now->writer)) == 0;
}

enum etcd_order etcd_seen_judge(struct etcd_seen *x, const struct etcd_state *st, uint64_t floor,
				struct err *e)
{
	struct seen *now = &x->now;

	CHECK(st->cluster_id == now->cluster_id && floor <= now->revision);
	if (st->revision >= floor && st->revision < now->revision)
		return ETCD_OVERTAKEN;
	if (st->revision < floor || !knows_all(now, st)) {
		err_set(e, SHARD_MISMATCH,
			"etcd has forgotten what this node has seen in it (view %llu, term %llu, "
			"revision %llu; now view %llu, term %llu, revision %llu): it was wiped, or "
			"restored from a backup. " ETCD_WHAT_TO_DO,
			(unsigned long long)now->seq, (unsigned long long)now->term,
			(unsigned long long)now->revision, (unsigned long long)st->seq,
			(unsigned long long)st->term, (unsigned long long)st->revision);
		return ETCD_FORGOT;
	}
	now->revision = st->revision;
	now->seq = st->seq;
	if (st->seq != 0)
		memcpy(now->writer, st->writer, sizeof(now->writer));
	if (st->term != 0)
		now->term = st->term;
	return ETCD_NEWEST;
}

uint64_t etcd_seen_revision(const struct etcd_seen *x)
{
	return x->now.revision;
}

uint64_t etcd_seen_term(const struct etcd_seen *x)
{
	return x->now.term;
}

bool etcd_seen_durable(const struct etcd_seen *x)
{
	return x->disk.cluster_id != 0;
}

bool etcd_seen_saving(const struct etcd_seen *x)
{
	return x->saving;
}

static void on_saved(void *arg, enum source_saved how, const struct err *e)
{
	struct etcd_seen *x = arg;

	x->saving = false;
	x->again_ns = how == SOURCE_SAVED ? 0 : clock_ns() + AGAIN_MS * NS_PER_MS;
	if (how == SOURCE_SAVED)
		x->disk = x->writing;
	x->saved(x->arg, how == SOURCE_BROKEN ? e : NULL);
}

uint64_t etcd_seen_save(struct etcd_seen *x, uint64_t now_ns)
{
	if (x->saving || x->now.cluster_id == 0 ||
	    (x->now.cluster_id == x->disk.cluster_id && x->now.term == x->disk.term &&
	     x->now.seq == x->disk.seq))
		return UINT64_MAX;
	if (now_ns < x->again_ns)
		return x->again_ns;
	x->writing = x->now;
	memcpy(source_file_body(x->file), &x->writing, sizeof(x->writing));
	x->saving = true;
	source_file_save(x->file, sizeof(x->writing), on_saved, x);
	return UINT64_MAX;
}
