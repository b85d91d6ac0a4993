/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROOST_CEXT_PROXY_HEADER_H
#define ROOST_CEXT_PROXY_HEADER_H

#include <stdint.h>

#include "ebpf/shared/record.h"

#define ROOST_PROXY_HEADER_MAX 108 /* version 1 at its longest */

/* The PROXY protocol's header for a connection: the client, and the address that it connected to. version: 1 (a line of
 * text) or 2 (binary). Returns its length. */
uint32_t roost_proxy_header(const struct roost_key *key, int version, uint8_t *header);

#endif
