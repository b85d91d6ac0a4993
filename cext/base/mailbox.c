// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define A_BLOCK 128 /* items */
#define PROMPT_EVENTS 256
#define PROMPT_ROWS 4096 /* so many of either end the gathering */
#define ROWS_AN_EVENT 256

struct roost_chain_block {
    struct roost_chain_block *next;
    uint32_t from, to;
    max_align_t item[]; /* A_BLOCK of the chain's size */
};

static void *item_at(const struct roost_chain *chain, struct roost_chain_block *block, uint32_t i) {
    return (char *)block->item + (size_t)i * chain->size;
}

/* A place at the end, or NULL. */
static void *append(struct roost_chain *chain) {
    struct roost_chain_block *block = chain->last;
    if (!block || block->to == A_BLOCK) {
        block = malloc(sizeof(*block) + A_BLOCK * chain->size);
        if (!block)
            return NULL;
        block->next = NULL;
        block->from = block->to = 0;
        *(chain->last ? &chain->last->next : &chain->first) = block;
        chain->last = block;
    }
    return item_at(chain, block, block->to++);
}

static uint32_t take(struct roost_chain *chain, void *items, uint32_t max) {
    uint32_t taken = 0;
    while (taken < max && chain->first) {
        struct roost_chain_block *block = chain->first;
        uint32_t count = block->to - block->from < max - taken ? block->to - block->from : max - taken;
        memcpy((char *)items + taken * chain->size, item_at(chain, block, block->from), count * chain->size);
        block->from += count;
        taken += count;
        if (block->from == block->to) {
            chain->first = block->next;
            if (!chain->first)
                chain->last = NULL;
            free(block);
        }
    }
    return taken;
}

static void drop_all(struct roost_chain *chain) {
    while (chain->first) {
        struct roost_chain_block *block = chain->first;
        chain->first = block->next;
        free(block);
    }
}

void roost_mailbox_init(struct roost_mailbox *m) {
    pthread_condattr_t attributes;
    memset(m, 0, sizeof(*m));
    m->urgent.size = m->rest.size = sizeof(struct roost_event);
    m->row_chain.size = sizeof(struct roost_row);
    m->commands.size = sizeof(struct roost_command);
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->ready, &attributes);
    pthread_condattr_destroy(&attributes);
}

void roost_mailbox_destroy(struct roost_mailbox *m) {
    struct roost_command command;
    while (roost_mailbox_command(m, &command))
        free((void *)command.early);
    drop_all(&m->urgent);
    drop_all(&m->rest);
    drop_all(&m->row_chain);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->ready);
}

/* True if it may be gathered with others: it reports what has happened, or that a connection is quiet or due; or it is one
 * of many outcomes that are counted. */
static bool can_wait(const struct roost_event *event) {
    if (event->token & ROOST_TOKEN_COUNTED)
        return true;
    return (event->type == ROOST_EV_TRANSITION && !event->token) || event->type == ROOST_EV_QUIET ||
           event->type == ROOST_EV_SLEEP_DUE || event->type == ROOST_EV_OVERRIDES || event->type == ROOST_EV_ROWS ||
           event->type == ROOST_EV_SERVED;
}

void roost_mailbox_post(struct roost_mailbox *m, const struct roost_event *event) {
    pthread_mutex_lock(&m->lock);
    struct roost_event *place = append(event->type == ROOST_EV_NEED_RECORD ? &m->urgent : &m->rest);
    if (place) {
        *place = *event;
        m->events++;
        m->prompt |= m->events >= PROMPT_EVENTS || !can_wait(event);
    } else {
        m->lost++;
    }
    pthread_mutex_unlock(&m->lock);
    m->untold = true;
}

/* The event at the end that stands for rows, and for one more; or NULL. */
static struct roost_event *event_of_rows(struct roost_mailbox *m) {
    struct roost_chain_block *block = m->rest.last;
    struct roost_event *event = block ? item_at(&m->rest, block, block->to - 1) : NULL;
    if (event && event->type == ROOST_EV_ROWS && event->count < ROWS_AN_EVENT)
        return event;
    event = append(&m->rest);
    if (event) {
        *event = (struct roost_event){.type = ROOST_EV_ROWS};
        m->events++;
    }
    return event;
}

void roost_mailbox_post_row(struct roost_mailbox *m, const struct roost_row *row) {
    pthread_mutex_lock(&m->lock);
    struct roost_event *event = event_of_rows(m);
    struct roost_row *place = event ? append(&m->row_chain) : NULL;
    if (place) {
        *place = *row;
        event->count++;
        m->rows++;
        m->prompt |= m->events >= PROMPT_EVENTS || m->rows >= PROMPT_ROWS;
    } else {
        m->lost++;
    }
    pthread_mutex_unlock(&m->lock);
    m->untold = true;
}

void roost_mailbox_flush(struct roost_mailbox *m) {
    if (!m->untold)
        return;
    m->untold = false;
    pthread_mutex_lock(&m->lock);
    bool wake = m->sleeping && (m->prompt || !m->gathering);
    pthread_mutex_unlock(&m->lock);
    if (wake)
        pthread_cond_signal(&m->ready);
}

/* Waits for an event (gathering: for a prompt one), for a poke, or until so many milliseconds have passed. The lock is
 * held. */
static void wait_for_events(struct roost_mailbox *m, uint32_t ms, bool gathering) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    m->sleeping = true;
    m->gathering = gathering;
    while (!m->poked && !(gathering ? m->prompt : m->events > 0))
        if (pthread_cond_timedwait(&m->ready, &m->lock, &until) == ETIMEDOUT)
            break;
    m->sleeping = m->gathering = false;
}

int roost_mailbox_take(struct roost_mailbox *m, struct roost_event *events, uint32_t max, uint32_t timeout_ms,
                       uint32_t patience_ms) {
    pthread_mutex_lock(&m->lock);
    if (!m->events && timeout_ms)
        wait_for_events(m, timeout_ms, false);
    if (m->events && patience_ms)
        wait_for_events(m, patience_ms, true);
    m->poked = false;
    uint32_t taken = take(&m->urgent, events, max);
    taken += take(&m->rest, events + taken, max - taken);
    m->events -= taken;
    m->prompt = m->events > 0;
    pthread_mutex_unlock(&m->lock);
    return (int)taken;
}

uint32_t roost_mailbox_rows(struct roost_mailbox *m, struct roost_row *rows, uint32_t max) {
    pthread_mutex_lock(&m->lock);
    uint32_t taken = take(&m->row_chain, rows, max);
    m->rows -= taken;
    pthread_mutex_unlock(&m->lock);
    return taken;
}

void roost_mailbox_poke(struct roost_mailbox *m) {
    pthread_mutex_lock(&m->lock);
    m->poked = true;
    pthread_mutex_unlock(&m->lock);
    pthread_cond_signal(&m->ready);
}

bool roost_mailbox_crowded(struct roost_mailbox *m) {
    return __atomic_load_n(&m->events, __ATOMIC_RELAXED) + __atomic_load_n(&m->rows, __ATOMIC_RELAXED) > ROOST_CROWDED;
}

static int submit_one(struct roost_mailbox *m, const struct roost_command *command) {
    uint8_t *early = command->early_len ? malloc(command->early_len) : NULL;
    struct roost_command *place = early || !command->early_len ? append(&m->commands) : NULL;
    if (!place) {
        free(early);
        return -ENOMEM;
    }
    *place = *command;
    place->early = early;
    if (early)
        memcpy(early, command->early, command->early_len);
    return 0;
}

int roost_mailbox_submit(struct roost_mailbox *m, const struct roost_command *commands, uint32_t count) {
    int e = 0;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < count && !e; i++)
        e = submit_one(m, &commands[i]);
    pthread_mutex_unlock(&m->lock);
    return e;
}

bool roost_mailbox_command(struct roost_mailbox *m, struct roost_command *command) {
    pthread_mutex_lock(&m->lock);
    bool taken = take(&m->commands, command, 1);
    pthread_mutex_unlock(&m->lock);
    return taken;
}
