/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands for the connection manager inside the payload of a connection (docs/in-band.md): the filter that takes them
 * out of one direction of one connection, and the frames that the manager writes itself. No sockets, no clocks; the
 * same in Python: examples/in_band_frames.py.
 *
 *     DLE ROOST/1 SP to SP number flags SP verb *( SP argument ) SP check LF        at most 256 bytes, printable within
 *
 * A frame begins with DLE (0x10), and DLE cannot stand inside one. So a candidate that fails is payload up to the byte
 * that failed, no other begins before that byte, and nothing is ever examined from an earlier place again.
 */
#ifndef ROOST_CEXT_INBAND_H
#define ROOST_CEXT_INBAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cext/base/types.h"

#define ROOST_INBAND_MAX 256     /* bytes of the longest frame, its LF included */
#define ROOST_INBAND_NAME_MAX 63 /* characters of a client's or a manager's name */

/* How long held bytes may wait for the next ones before roost_inband_flush. Payload that ends with DLE is held too, and
 * often enough to keep that wait short; what has a frame's whole beginning is one, and the rest may need a
 * retransmission of its sender. */
#define ROOST_INBAND_PREFIX_PATIENCE_MS 40
#define ROOST_INBAND_FRAME_PATIENCE_MS 1000

enum roost_inband_quiet { /* indices of quiet_ms; as in the configuration: ACTIVE to STANDBY, to IDLE, to SLEEP */
    ROOST_INBAND_ACTIVE,
    ROOST_INBAND_STANDBY,
    ROOST_INBAND_IDLE,
    ROOST_INBAND_QUIETS
};

enum roost_inband_result {
    ROOST_INBAND_R_OK = 0,
    ROOST_INBAND_R_UNKNOWN,
    ROOST_INBAND_R_BAD,
    ROOST_INBAND_R_REFUSED /* understood, and not done: the policy or the state of the connection forbids it */
};

struct roost_inband_request {
    uint8_t verb; /* enum roost_inband_verb */
    bool answer;  /* the sender wants one */
    bool forward; /* the frame is to be passed on as well, unchanged and in its place */
    bool on;
    uint16_t number;                        /* the answer carries it again */
    uint8_t given;                          /* QUIET: bit 1 << index for each interval that is set */
    uint32_t quiet_ms[ROOST_INBAND_QUIETS]; /* 0 = never */
    uint32_t interval_ms;                   /* KEEPALIVE; 0 = as the policy says */
    char name[ROOST_INBAND_NAME_MAX + 1];
};

/* One direction of one connection; zero at the start. Nothing but this pointer exists while no frame is incomplete. */
struct roost_inband {
    struct roost_inband_held *held;
};

enum roost_inband_found {
    ROOST_INBAND_END = 0, /* the chunk is used up; held bytes, if any, wait for the next one */
    ROOST_INBAND_PAYLOAD,
    ROOST_INBAND_REQUEST
};

struct roost_inband_item {
    const uint8_t *data; /* payload, or a request's frame as it came; valid until the next call for this filter */
    size_t length;
    struct roost_inband_request request; /* of REQUEST alone */
};

/* The next item of a chunk, along which *data and *length are moved; to be called until END. manager: this manager's
 * own name or NULL, for frames to "m@name"; frames for others are payload. Spans lie in the chunk, but for bytes that
 * had to be held. Returns enum roost_inband_found, or -ENOMEM: what is left may begin a frame and cannot be held. */
int roost_inband_next(struct roost_inband *f, const char *manager, const uint8_t **data, size_t *length,
                      struct roost_inband_item *item);

/* Gives up waiting: copies the held bytes to payload (room for ROOST_INBAND_MAX), to be passed on; returns how many.
 * For when the patience is over, and before the sender's FIN is passed on. Also what frees the filter. */
size_t roost_inband_flush(struct roost_inband *f, uint8_t *payload);

size_t roost_inband_held(const struct roost_inband *f);          /* bytes that wait, < ROOST_INBAND_MAX */
size_t roost_inband_memory(const struct roost_inband *f);        /* bytes allocated for them */
uint32_t roost_inband_patience_ms(const struct roost_inband *f); /* 0: nothing waits */

struct roost_inband_status { /* what a status answer tells */
    enum roost_state state;
    uint32_t quiet_ms[ROOST_INBAND_QUIETS]; /* those in force; 0 = never */
    const char *name;                       /* NULL: none is registered */
    uint64_t rx_bytes, tx_bytes;            /* payload from and to the client */
};

/* Frames of the manager's own, into frame (room for ROOST_INBAND_MAX); return the length. They may be written between
 * any two items: an item never ends inside a frame. to: 'c' the client, 's' the server; status: NULL but in the answer
 * to a status request. */
size_t roost_inband_answer(uint8_t *frame, char to, uint16_t number, enum roost_inband_result result,
                           const struct roost_inband_status *status);
size_t roost_inband_stay(uint8_t *frame); /* to the client: keep a persistent connection */

#endif
