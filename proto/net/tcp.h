/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.h: sockets before they carry a stream: options, listening and dialling. No libuv. Everything
 * is non-blocking. */
#ifndef SHARD_NET_TCP_H
#define SHARD_NET_TCP_H

#include "net/address.h"

/* Sets no delay and keep-alive on a connected or connecting socket. Harmless on a unix socket. */
void tcp_tune(int fd);
/* Starts to connect. With SHARD_OK *fd is connected or on its way. Then poll for writable and call
 * tcp_dialled(). */
enum shard_status tcp_dial(int *fd, const struct address_sock *to, const char *name, struct err *e);
enum shard_status tcp_dialled(int fd, const char *name, struct err *e);
/* Makes a listening socket. A stale unix socket file is replaced. A live one is SHARD_EXISTS, as is
 * a port in use. */
enum shard_status tcp_listen(int *fd, const struct conn_address *at,
			     const struct address_sock *sock, uint32_t mode, struct err *e);

#endif
