/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the engine thread and the control plane: batches of commands in, batches of events out. Both queues are
 * chains of blocks, so that a burst costs memory only while it lasts. Events are never dropped; instead the engine asks
 * roost_mailbox_crowded and puts off work that can wait.
 *
 * Transitions of interest to the history alone are rows, a third as large as an event, and one event stands for a run of
 * them: the order of all is kept, and Python sees as many events as there are decisions.
 */
#ifndef ROOST_CEXT_MAILBOX_H
#define ROOST_CEXT_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "types.h"

#define ROOST_CROWDED 32768 /* events and rows waiting */

struct roost_chain { /* items of one size, in blocks */
    struct roost_chain_block *first, *last;
    size_t size;
};

struct roost_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct roost_chain urgent, rest; /* urgent: ROOST_EV_NEED_RECORD, on which a client waits */
    struct roost_chain row_chain, commands;
    uint64_t events, rows;
    uint64_t lost;                   /* no memory for them; counted, told in the statistics */
    bool poked, sleeping, gathering; /* the taker: to return at once; waiting, for any event or for a prompt one */
    bool prompt;                     /* an event is there that must not wait for others */
    bool untold;                     /* posted since the last roost_mailbox_flush; the engine thread's own */
};

void roost_mailbox_init(struct roost_mailbox *m);
void roost_mailbox_destroy(struct roost_mailbox *m);
/* Posting wakes no thread: the engine thread flushes once a turn, or each event would cost a context switch. */
void roost_mailbox_post(struct roost_mailbox *m, const struct roost_event *event);
void roost_mailbox_post_row(struct roost_mailbox *m, const struct roost_row *row);
void roost_mailbox_flush(struct roost_mailbox *m);
/* Waits up to timeout_ms for an event, and then up to patience_ms for more, until a prompt one is among them. */
int roost_mailbox_take(struct roost_mailbox *m, struct roost_event *events, uint32_t max, uint32_t timeout_ms,
                       uint32_t patience_ms);
uint32_t roost_mailbox_rows(struct roost_mailbox *m, struct roost_row *rows, uint32_t max); /* see roost_rows */
void roost_mailbox_poke(struct roost_mailbox *m);
bool roost_mailbox_crowded(struct roost_mailbox *m);
/* 0 or -ENOMEM; early data is copied. */
int roost_mailbox_submit(struct roost_mailbox *m, const struct roost_command *commands, uint32_t count);
/* The next command; false: there is none. Its `early`, if any, belongs to the caller (free). */
bool roost_mailbox_command(struct roost_mailbox *m, struct roost_command *command);

#endif
