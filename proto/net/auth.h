/* SPDX-License-Identifier: Apache-2.0 */
/* auth.h: the proof that both ends of a TCP connection know the cluster's secret: keyed hashes over
 * what both said in HELLO, with a number of each that is used once. No I/O but reading the file;
 * the wire's README says what travels. It proves who opened the connection, not who sends what
 * comes later: frames are neither encrypted nor signed. TLS has its place below the frames (struct
 * stream_conf), and its exporter among what is hashed here. */
#ifndef SHARD_NET_AUTH_H
#define SHARD_NET_AUTH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AUTH_BYTES    32 /* a key, a number used once, a proof */
#define AUTH_KEYS_MAX 2  /* in a file: the first proves, both are accepted */

struct auth; /* the keys, and the library that hashes */

enum auth_side { AUTH_DIALLER, AUTH_LISTENER };
/* What a proof opens. It is part of what is hashed, so that a proof for one opens nothing else. */
enum auth_for { AUTH_FOR_CLIENT, AUTH_FOR_NODE, AUTH_FOR_NR };

struct auth_talk { /* one connection's opening, as one end sees it */
	enum auth_for what;
	unsigned char nonce[2][AUTH_BYTES]; /* of each side */
	unsigned char said[2][AUTH_BYTES]; /* SHA-256 of each side's HELLO: the body's bytes as they
					      travelled */
	uint32_t key;                      /* index of the key that the dialler proved with */
};

/* Reads the file: one or two lines of 64 hex digits, that belongs to this user or to root and that
 * nobody else can read. A path may begin with ${CREDENTIALS_DIRECTORY}; there systemd keeps others
 * out, and the group may read. SHARD_BAD_ARG names the file and what is wrong with it, never what
 * is in it; SHARD_SYSTEM: the file, or libcrypto (loaded here, so that who has no secret needs
 * none), is not to be had. */
enum shard_status auth_open(struct auth **out, const char *path, struct err *e);
void auth_close(struct auth **a); /* wipes the keys; NULL is fine */
uint32_t auth_keys(const struct auth *a);
bool auth_share(const struct auth *a, const struct auth *b); /* Some key is in both. */

enum shard_status auth_random(unsigned char out[AUTH_BYTES], struct err *e);
/* A side's HELLO: its body, and the number in it. */
bool auth_said(const struct auth *a, struct auth_talk *t, enum auth_side side, const void *body,
	       size_t bytes);
/* hello: the whole Hello that travels beside the proof. */
bool auth_prove(const struct auth *a, const struct auth_talk *t, enum auth_side side,
		const void *hello, size_t hello_bytes, unsigned char proof[AUTH_BYTES]);
/* The dialler's proof may be of any key, and sets t->key; the listener's must be of that one. */
bool auth_right(const struct auth *a, struct auth_talk *t, enum auth_side side, const void *hello,
		size_t hello_bytes, const void *proof, size_t proof_bytes);

/* A new secret as a file has it: 64 hex digits, a line break, NUL. */
enum shard_status auth_new_secret(char out[2 * AUTH_BYTES + 2], struct err *e);

#endif
