/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Socket <-> record, by TCP_REPAIR.
 *
 *        acknowledged      in flight      not sent                 read by us        not read
 *     ----------------|---------------|------------            ----------------|------------|------ - -
 *                  snd_una         snd_nxt      write_seq                               rcv_nxt
 *
 * A connection is frozen only when all of it is acknowledged and read: snd_una = snd_nxt = write_seq, nothing in the
 * receive, out-of-order or backlog queues. Then two sequence numbers, the windows, the negotiated options and the
 * timestamp clock are the whole connection.
 */
#ifndef ROOST_CEXT_REPAIR_H
#define ROOST_CEXT_REPAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/shared/record.h"
#include "survey.h"

/* Fills ka (all but class and rest) and rest (all but id, active_ms and what is asked of the store) from a connected
 * socket, which is left in repair mode behind a filter that lets nothing in: close it, or give up with
 * roost_repair_undo. closed_filter: fd of ebpf/socket/closed.bpf.c, or -1.
 * 0, or -EAGAIN (something in a queue, or window closed: try later), -ENOTCONN (not ESTABLISHED any more),
 * -EOPNOTSUPP (microsecond timestamps), or -errno; on error the socket is as it was. */
int roost_repair_snapshot(int fd, int closed_filter, struct roost_ka *ka, struct roost_rest *rest);
void roost_repair_undo(int fd, int closed_filter);

struct roost_taking { /* a socket of which the record is to be taken */
    const struct roost_key *key;
    int fd;
    int error; /* as of roost_repair_snapshot, which this is for many */
    bool surveyed;
    struct roost_ka ka;
    struct roost_rest rest;
};

/* The same for up to ROOST_SURVEY_SLICE sockets at once, by a survey where the kernel has it. slice: the survey's. */
void roost_repair_snapshots(const struct roost_survey *s, uint32_t slice, int closed_filter, struct roost_taking *legs,
                            uint32_t count);

/* Makes a spare socket of a client's, of which a snapshot was taken (spares.h): silent, as close() would be. rebuilt: by
 * this engine, not accepted. 0 or -errno: then close it. */
int roost_repair_disconnect(int fd, const struct roost_key *key, bool rebuilt);

/* Out of repair mode. off: TCP_REPAIR_OFF, which sends a window probe, or TCP_REPAIR_OFF_NO_WP. Leaving clears SO_REUSEADDR,
 * without which nothing can listen on the port while the connection is in TIME-WAIT; until it is set again a process that
 * is killed resets the connection, which leaves none. 0 or -errno. */
int roost_repair_leave(int fd, int off);

/* Sequence numbers and window of a live socket, for roost_judge; it stays as it is. 0 or -errno. */
int roost_repair_peek(int fd, struct roost_ka *ka);

/* A new non-blocking connected socket from a record, still in repair mode (closing it is silent), or -errno.
 * Its local address may be another's, for which a router answers. */
int roost_repair_rebuild(const struct roost_key *key, const struct roost_ka *ka, const struct roost_rest *rest);
/* The same with a spare socket, which is closed when that fails. bound: to the key's local address. */
int roost_repair_reuse(int spare, bool bound, const struct roost_key *key, const struct roost_ka *ka,
                       const struct roost_rest *rest);
/* Out of repair mode: from now on it is the connection. spare: it was one. 0 or -errno. */
int roost_repair_finish(int fd, bool spare);

#endif
