/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.h: sockets, before and after they carry a stream: options, listening, dialling. No libuv;
 * everything is non-blocking. */
#ifndef SHARD_NET_TCP_H
#define SHARD_NET_TCP_H

#include "net/address.h"

/* Options of a connected or connecting socket: no delay, keep-alive. Harmless on a unix socket. */
void tcp_tune(int fd);
/* Starts to connect: SHARD_OK with *fd, connected or on its way (poll for writable, then
 * tcp_dialled()). */
enum shard_status tcp_dial(int *fd, const struct address_sock *to, const char *name, struct err *e);
enum shard_status tcp_dialled(int fd, const char *name, struct err *e);
/* A listening socket. A stale unix socket file is replaced; a live one is SHARD_EXISTS, as is a
 * port in use. */
enum shard_status tcp_listen(int *fd, const struct conn_address *at,
			     const struct address_sock *sock, uint32_t mode, struct err *e);

#endif
