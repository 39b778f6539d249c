/* SPDX-License-Identifier: Apache-2.0 */
/* access.h: who may do what with a model: its owner, who defined it, and its `mode`, as of a file: 4 reads, 2 writes, for the owner, his
 * group and others. The session's own node says who asks, by the unix socket; over TCP nobody is known. */
#ifndef SHARD_ACCESS_H
#define SHARD_ACCESS_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

#define ACCESS_GROUPS_MAX 128 /* supplementary groups; further ones do not count */

struct conn;
struct model;
struct session;

struct access_who {
	bool known;
	uint32_t uid, gid, groups_nr, groups[ACCESS_GROUPS_MAX];
};

/* When a session is greeted; it keeps what its socket said. */
void access_greet(struct access_who *w, const struct conn *c);
/* For a request that is passed on. out points into groups and lives as long. */
void access_cred(const struct session *t, Shard__Cred *out, uint32_t groups[ACCESS_GROUPS_MAX]);

/* SHARD_OK, or SHARD_DENIED: the sentence names model, owner, mode, who asked and the remedy. who NULL: as over TCP. Root and the daemon's
 * own user always may. */
enum shard_status access_check(const struct model *m, const Shard__Cred *who, bool write, struct err *e);
enum shard_status access_session(const struct model *m, const struct session *t, bool write, struct err *e); /* of a session here */
/* The rule itself. owner NULL or not known: nobody owns it. */
bool access_allowed(uint32_t mode, const Shard__Cred *owner, const Shard__Cred *who, bool write);

#define ACCESS_TEXT_BYTES 64
const char *access_text(char out[ACCESS_TEXT_BYTES], const Shard__Cred *who); /* "uid 1000 (gid 1000)"; returns out */

#endif
