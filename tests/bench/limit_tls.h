/* SPDX-License-Identifier: Apache-2.0 */
/* limit_tls.h: the bare transfer of limit_tcp.h over TLS 1.3, by OpenSSL as its manual says: two
 * processes with blocking sockets, TLS_AES_128_GCM_SHA256, cold buffers, and the same XXH3 of each
 * block at both ends. This is the limit of push_tcp_tls and pull_tcp_tls. */
#ifndef SHARD_TESTS_LIMIT_TLS_H
#define SHARD_TESTS_LIMIT_TLS_H

#include <stdbool.h>
#include <stddef.h>

struct limit_tls;

/* Can the kernel encrypt? */
bool limit_tls_kernel(void);
/* Forks the receiver. kernel: the kernel encrypts and, where OpenSSL lets it, decrypts. NULL: it
 * cannot be set up. */
struct limit_tls *limit_tls_begin(size_t bytes, bool kernel);
double limit_tls_round(struct limit_tls *l); /* As limit_tcp_round(). */
void limit_tls_end(struct limit_tls **l);

#endif
