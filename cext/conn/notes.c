// SPDX-License-Identifier: Apache-2.0
/*
 * What XDP must know of sockets before a birth (struct roost_sockets of ebpf/shared/sockets.h): no key whose 4-tuple
 * the kernel still has a socket for. Kept as a superset: the engine notes each key that it makes a socket for, and again
 * while it is awake; XDP notes the key of each SYN that it passes.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "conn.h"

#define STATE_LISTEN 0x0a /* in /proc/net/tcp */

void roost_sockets_note(struct roost_engine *e, const struct roost_key *key) {
    if (!e->path.births_sockets) /* the data path could not be opened */
        return;
    uint64_t hash = roost_key_is_v4(key) ? roost_hash4(&e->table.config, key) : roost_hash6(&e->table.config, key);
    roost_socket_note(e->path.births_sockets, hash, (uint32_t)(e->now_ms / 1000));
}

void roost_sockets_turn(struct roost_engine *e) {
    if (!e->path.births_gate->services || e->now_ms < e->sockets_ms)
        return;
    e->sockets_ms = e->now_ms + ROOST_SOCKETS_AGAIN_S * 1000;
    for (const struct roost_conn *c = e->oldest; c; c = c->newer)
        roost_sockets_note(e, &c->key);
}

/* An address as /proc/net/tcp prints it: words of 32 bits, each as the machine reads it from memory. */
static bool read_address(const char *hex, uint8_t address[16]) {
    size_t digits = strlen(hex);
    uint32_t word[4] = {0, 0, htonl(0xffff), 0};
    if (digits == 8)
        return sscanf(hex, "%8" SCNx32, &word[3]) == 1 && memcpy(address, word, 16);
    return digits == 32 &&
           sscanf(hex, "%8" SCNx32 "%8" SCNx32 "%8" SCNx32 "%8" SCNx32, &word[0], &word[1], &word[2], &word[3]) == 4 &&
           memcpy(address, word, 16);
}

static void note_all_in(struct roost_engine *e, const char *path) {
    char line[512], local[33], remote[33];
    uint16_t local_port, remote_port;
    uint32_t state;
    struct roost_key key;
    FILE *file = fopen(path, "r");
    if (!file)
        return; /* a kernel without IPv6 has no tcp6 */
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, " %*u: %32[0-9A-F]:%4" SCNx16 " %32[0-9A-F]:%4" SCNx16 " %2" SCNx32, local, &local_port,
                   remote, &remote_port, &state) != 5 ||
            state == STATE_LISTEN || !read_address(local, key.local) || !read_address(remote, key.client))
            continue;
        key.local_port = htons(local_port);
        key.client_port = htons(remote_port);
        roost_sockets_note(e, &key);
    }
    fclose(file);
}

void roost_sockets_begin(struct roost_engine *e) {
    note_all_in(e, "/proc/thread-self/net/tcp");
    note_all_in(e, "/proc/thread-self/net/tcp6");
}
