/* SPDX-License-Identifier: Apache-2.0 */
/* anew.h: a model whose copy on this node is lost with a GPU, while the daemon goes on, is dropped
 * here alone and made again without its copy, as a start of the daemon without its memory would do.
 * Loop thread only. */
#ifndef SHARD_CONTROL_ANEW_H
#define SHARD_CONTROL_ANEW_H

#include <stdint.h>

struct server;

void anew_beat(struct server *s, uint64_t now_ns);
void anew_forget(struct server *s, uint32_t model); /* It was dropped elsewhere. */
/* The daemon stops: what would have ended next ends now, and nothing is made again. */
void anew_stop(struct server *s);
void anew_free(struct server *s); /* At the end of the server. */

#endif
