/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: an intrusive doubly linked list. The head is a node that holds no element. A node that is
 * in no list points at itself, so that removing it twice is harmless. */
#ifndef SHARD_BASE_LIST_H
#define SHARD_BASE_LIST_H

#include <stddef.h>

struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}

static inline int list_empty(const struct list *l)
{
	return l->next == l;
}

/* Adds the node at the tail. */
static inline void list_push(struct list *head, struct list *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

static inline void list_remove(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

#define list_of(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))
#define list_each(it, head)                                                                        \
	for (struct list *it = (head)->next, *it##_next = it->next; it != (head);                  \
	     it = it##_next, it##_next = it->next)

#endif
