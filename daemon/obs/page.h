/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the bytes of the page at /. */
#ifndef SHARD_OBS_PAGE_H
#define SHARD_OBS_PAGE_H

extern const char page_html[], page_html_end[];

#endif
