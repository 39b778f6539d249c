/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h: manifest.json of a checkpoint. It has the model (layout, settings), the state of the
 * decision (counters, scaler, what operators tuned), the files that hold its elements, and their
 * sums. It is written last. Its own last member is the XXH3-64 of all bytes before it. Numbers read
 * back as the same bits. What is read is checked like bytes from a socket. */
#ifndef SHARD_CKPT_MANIFEST_H
#define SHARD_CKPT_MANIFEST_H

#include "ckpt/part.h"

#define MANIFEST_NAME      "manifest.json"
#define MANIFEST_VERSION   1
#define MANIFEST_FILES_MAX 4096
#define MANIFEST_BYTES_MAX (64u << 20)
enum {
	MANIFEST_GROUPS_MAX = 256,
	MANIFEST_HYPER_MAX = 5 * MANIFEST_GROUPS_MAX,
	MANIFEST_TENSORS_MAX = 1 << 24,
	MANIFEST_BLOBS_MAX = 1 << 16,
	MANIFEST_SETTINGS_MAX = (256 << 10) - 1
};

struct manifest_hyper { /* One hyper-parameter that an operator set for a group. */
	uint32_t group;
	char key[16]; /* Its name in the settings. */
	double value;
};

struct manifest_blob {
	uint32_t rank, bytes, file; /* file: index into files. */
	uint64_t step, offset, sum;
};

/* Whose weights these are. Names of models repeat, this does not. */
struct manifest_run {
	uint64_t id[2]; /* Of the model, made when it was defined anew. 0: of no model. */
	uint64_t line;  /* Since its last definition or restore. Without an id: the file's sum. */
};

struct manifest {
	struct manifest_run run;
	char name[65], run_id[65], release[32], created[32]; /* created: RFC 3339, UTC. */
	uint64_t step, applied, skipped_in_row;
	struct { /* The loss scaler after `step`. */
		double scale;
		int32_t hysteresis;
		int64_t last_overflow, iter;
	} scaler;
	struct { /* What operators changed. */
		bool paused, has_lr, has_clip;
		double lr, clip;
		struct manifest_hyper hyper[MANIFEST_HYPER_MAX];
		uint32_t hyper_nr;
	} tune;
	/* Read from files of another user, who then is the owner, whatever the manifest says. */
	bool foreign;
	bool owner_known;
	uint32_t owner_uid, owner_gid;
	char owner_node[65]; /* The node whose user that is, if the user is root. */
	/* False: an import, or of an older release. Users who may read the model may read its
	 * checkpoint. */
	bool has_mode;
	uint32_t mode;              /* As of a file. */
	char *settings, *optimizer; /* settings: canonical. */
	enum shard_dtype image, grad;
	struct shard_tensor *tensors;
	uint32_t tensors_nr;
	struct shard_group *groups;
	uint32_t groups_nr;
	/* Kinds that are saved: master, then the optimizer's states. An import has master alone. */
	enum shard_kind kinds[4];
	uint32_t kinds_nr;
	struct part_file *files;
	uint32_t files_nr;
	struct manifest_blob *blobs;
	uint32_t blobs_nr;
	/* Files that trainers gave (client.h), by their names. header_bytes is 0. */
	struct part_file *client;
	uint32_t client_nr;
	uint64_t sum; /* Of the file, when it was read or written. */
};

/* Writes dir/manifest.json and syncs it. */
enum shard_status manifest_write(const char *dir, struct manifest *m, struct err *e);
/* SHARD_NOT_FOUND: there is none (an unfinished checkpoint, or no checkpoint). SHARD_PROTOCOL: it
 * is damaged, or of a later version, and the text says which. */
enum shard_status manifest_read(const char *dir, struct manifest **out, struct err *e);
/* The same from memory. path is for texts. */
enum shard_status manifest_parse(struct manifest **out, const char *text, size_t bytes,
				 const char *path, struct err *e);
/* Reads one blob, of m->blobs[blob].bytes, and compares it with its sum (XXH3-64 of its bytes). */
enum shard_status manifest_blob(const char *dir, const struct manifest *m, uint32_t blob, void *to,
				struct err *e);
void manifest_free(struct manifest **m); /* And all that it points to. */

#endif
