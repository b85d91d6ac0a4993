// SPDX-License-Identifier: Apache-2.0
/*
 * proxy_header.c: a header that the connection's addresses went into gives them back, in either version, and never
 * takes more room than ROOST_PROXY_HEADER_MAX.
 */
#include "cext/socket/proxy_header.h"

#include <arpa/inet.h>

#include "cext/table/table.h"
#include "input.h"

static void read_text(const char *header, size_t length, const struct roost_key *key, bool v4) {
    char family[8], client[64], local[64], line[ROOST_PROXY_HEADER_MAX + 1];
    unsigned client_port, local_port;
    uint8_t address[16];
    int end = 0;
    memcpy(line, header, length);
    line[length] = 0;
    claim(strlen(line) == length && !strcmp(line + strcspn(line, "\r\n"), "\r\n"), "no single line: %s", line);
    claim(sscanf(line, "PROXY %7s %63s %63s %u %u%n", family, client, local, &client_port, &local_port, &end) == 5 &&
              (size_t)end + 2 == length,
          "not the fields of version 1: %s", line);
    claim(!strcmp(family, v4 ? "TCP4" : "TCP6"), "the wrong family: %s", line);
    claim(client_port == ntohs(key->client_port) && local_port == ntohs(key->local_port), "other ports: %s", line);
    claim(inet_pton(v4 ? AF_INET : AF_INET6, client, address) == 1 &&
              !memcmp(address, key->client + (v4 ? 12 : 0), v4 ? 4 : 16),
          "another client: %s", line);
    claim(inet_pton(v4 ? AF_INET : AF_INET6, local, address) == 1 &&
              !memcmp(address, key->local + (v4 ? 12 : 0), v4 ? 4 : 16),
          "another local address: %s", line);
}

static void read_binary(const uint8_t *header, size_t length, const struct roost_key *key, bool v4) {
    size_t size = v4 ? 4 : 16, skip = v4 ? 12 : 0;
    claim(length == 16 + 2 * size + 4, "%zu bytes of version 2", length);
    claim(!memcmp(header, "\r\n\r\n\0\r\nQUIT\n\x21", 13) && header[13] == (v4 ? 0x11 : 0x21) && !header[14] &&
              header[15] == length - 16,
          "not the beginning of version 2");
    claim(!memcmp(header + 16, key->client + skip, size) && !memcmp(header + 16 + size, key->local + skip, size) &&
              !memcmp(header + 16 + 2 * size, &key->client_port, 2) &&
              !memcmp(header + 18 + 2 * size, &key->local_port, 2),
          "other addresses or ports");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, data + size};
    struct roost_key key = {0};
    uint32_t how = take(&in, 1);
    size_t got;
    const uint8_t *from = take_bytes(&in, sizeof(key), &got);
    memcpy(&key, from, got);
    if (how & 1) {
        memcpy(key.client, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
        memcpy(key.local, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
    }
    int version = how & 2 ? 1 : 2;
    uint8_t *header = malloc(ROOST_PROXY_HEADER_MAX);
    claim(header != NULL, "no memory");
    size_t length = roost_proxy_header(&key, version, header);
    claim(length <= ROOST_PROXY_HEADER_MAX, "a header of %zu bytes", length);
    if (version == 1)
        read_text((const char *)header, length, &key, roost_key_is_v4(&key));
    else
        read_binary(header, length, &key, roost_key_is_v4(&key));
    free(header);
    return 0;
}
