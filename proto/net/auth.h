/* SPDX-License-Identifier: Apache-2.0 */
/* auth.h: the proof that both ends of a TCP connection know the cluster's secret. It is a keyed
 * hash over what both said in HELLO, with a nonce of each. The only I/O is reading the file. The
 * wire's README says what travels. The proof shows who opened the connection, not who sends later
 * frames. TLS below the frames (tls.h) does that. What both ends of its channel know, and nobody
 * else, is then one of the things that are hashed here, so that a proof is good for one channel. */
#ifndef SHARD_NET_AUTH_H
#define SHARD_NET_AUTH_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AUTH_BYTES    32 /* Of a key, of a nonce and of a proof. */
#define AUTH_KEYS_MAX 2  /* In a file. The first key proves, and both are accepted. */

struct auth; /* The keys, and the library that hashes. */

enum auth_side { AUTH_DIALLER, AUTH_LISTENER };
/* What a proof is for. This is hashed too, so that a proof for one purpose is not valid for
 * another. */
enum auth_for { AUTH_FOR_CLIENT, AUTH_FOR_NODE, AUTH_FOR_NR };

/* The opening of one connection, as one end sees it. */
struct auth_talk {
	enum auth_for what;
	unsigned char nonce[2][AUTH_BYTES]; /* Of each side. */
	/* SHA-256 of each side's HELLO, over the body's bytes as they travelled. */
	unsigned char said[2][AUTH_BYTES];
	bool bound;                        /* There is a channel of TLS below. */
	unsigned char channel[AUTH_BYTES]; /* What its exporter gives. */
	uint32_t key;                      /* Index of the key that the dialler proved with. */
};

/* Reads a file with one or two lines of 64 hex digits. It must belong to this user or to root, and
 * nobody else may be able to read it. A path may begin with ${CREDENTIALS_DIRECTORY}. There the
 * group may read, because systemd keeps others out. SHARD_BAD_ARG names the file and what is wrong
 * with it, never what is in it. SHARD_SYSTEM: the file cannot be read or libcrypto cannot be
 * loaded. libcrypto is loaded here, so that it is not needed without a secret. */
enum shard_status auth_open(struct auth **out, const char *path, struct err *e);
void auth_close(struct auth **a); /* Wipes the keys. NULL is fine. */
uint32_t auth_keys(const struct auth *a);
bool auth_share(const struct auth *a, const struct auth *b); /* True if a key is in both. */

/* Makes a key for another purpose of key number `key`, by HKDF-SHA256 (RFC 5869) without a salt and
 * with the label as its info. Nothing of the key can be learned from it. */
bool auth_derive(const struct auth *a, uint32_t key, const char *label,
		 unsigned char out[AUTH_BYTES]);

enum shard_status auth_random(unsigned char out[AUTH_BYTES], struct err *e);
/* Notes a side's HELLO: its body. The nonce is set in t->nonce by the caller. */
bool auth_said(const struct auth *a, struct auth_talk *t, enum auth_side side, const void *body,
	       size_t bytes);
/* hello is the whole Hello that travels beside the proof. */
bool auth_prove(const struct auth *a, const struct auth_talk *t, enum auth_side side,
		const void *hello, size_t hello_bytes, unsigned char proof[AUTH_BYTES]);
/* The dialler's proof may be of any key, and sets t->key. The listener's must be of that key. */
bool auth_right(const struct auth *a, struct auth_talk *t, enum auth_side side, const void *hello,
		size_t hello_bytes, const void *proof, size_t proof_bytes);

/* A new secret as it stands in a file: 64 hex digits, a line break and a NUL. */
enum shard_status auth_new_secret(char out[2 * AUTH_BYTES + 2], struct err *e);

#endif
