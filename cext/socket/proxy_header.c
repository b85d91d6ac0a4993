// SPDX-License-Identifier: Apache-2.0
/* The PROXY protocol, versions 1 and 2 (haproxy.org/download/3.0/doc/proxy-protocol.txt, sections 2.1 and 2.2). */
#include "proxy_header.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "cext/table/table.h"

static const uint8_t signature[12] = {0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a};
enum {
    VERSION_2_PROXY = 0x21,
    TCP_OVER_IPV4 = 0x11,
    TCP_OVER_IPV6 = 0x21
};

static uint32_t text(const struct roost_key *key, bool v4, char *header) {
    char client[INET6_ADDRSTRLEN], local[INET6_ADDRSTRLEN];
    int family = v4 ? AF_INET : AF_INET6, skip = v4 ? 12 : 0;
    inet_ntop(family, key->client + skip, client, sizeof(client));
    inet_ntop(family, key->local + skip, local, sizeof(local));
    return (uint32_t)snprintf(header, ROOST_PROXY_HEADER_MAX, "PROXY TCP%d %s %s %u %u\r\n", v4 ? 4 : 6, client, local,
                              ntohs(key->client_port), ntohs(key->local_port));
}

uint32_t roost_proxy_header(const struct roost_key *key, int version, uint8_t *header) {
    bool v4 = roost_key_is_v4(key);
    if (version == 1)
        return text(key, v4, (char *)header);
    uint32_t size = v4 ? 4 : 16, skip = v4 ? 12 : 0;
    uint16_t length = htons((uint16_t)(2 * size + 4));
    uint8_t *at = header;
    memcpy(at, signature, sizeof(signature));
    at += sizeof(signature);
    *at++ = VERSION_2_PROXY;
    *at++ = v4 ? TCP_OVER_IPV4 : TCP_OVER_IPV6;
    memcpy(at, &length, 2);
    memcpy(at + 2, key->client + skip, size);
    memcpy(at + 2 + size, key->local + skip, size);
    memcpy(at + 2 + 2 * size, &key->client_port, 2);
    memcpy(at + 4 + 2 * size, &key->local_port, 2);
    return (uint32_t)(at - header) + 2 * size + 6;
}
