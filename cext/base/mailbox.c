// SPDX-License-Identifier: Apache-2.0
#include "mailbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EVENTS_A_BLOCK 256
#define COMMANDS_A_BLOCK 128
#define ROWS_A_BLOCK 256
#define ROWS_AN_EVENT 256
#define ROWS_PROMPT 4096 /* so many end the gathering */

struct roost_event_block {
    struct roost_event_block *next;
    uint32_t from, to;
    struct roost_event event[EVENTS_A_BLOCK];
};

struct roost_row_block {
    struct roost_row_block *next;
    uint32_t from, to;
    struct roost_row row[ROWS_A_BLOCK];
};

struct roost_command_block {
    struct roost_command_block *next;
    uint32_t from, to;
    struct roost_command command[COMMANDS_A_BLOCK];
};

void roost_mailbox_init(struct roost_mailbox *m) {
    pthread_condattr_t attributes;
    memset(m, 0, sizeof(*m));
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->ready, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* A place at the end of a chain, or NULL. */
static struct roost_event *append(struct roost_event_chain *chain) {
    struct roost_event_block *block = chain->last;
    if (!block || block->to == EVENTS_A_BLOCK) {
        block = malloc(sizeof(*block));
        if (!block)
            return NULL;
        block->next = NULL;
        block->from = block->to = 0;
        if (chain->last)
            chain->last->next = block;
        else
            chain->first = block;
        chain->last = block;
    }
    return &block->event[block->to++];
}

static struct roost_row *append_row(struct roost_mailbox *m) {
    struct roost_row_block *block = m->last_row;
    if (!block || block->to == ROWS_A_BLOCK) {
        block = malloc(sizeof(*block));
        if (!block)
            return NULL;
        block->next = NULL;
        block->from = block->to = 0;
        if (m->last_row)
            m->last_row->next = block;
        else
            m->first_row = block;
        m->last_row = block;
    }
    return &block->row[block->to++];
}

static uint32_t take_rows(struct roost_mailbox *m, struct roost_row *rows, uint32_t max) {
    uint32_t taken = 0;
    while (taken < max && m->first_row) {
        struct roost_row_block *block = m->first_row;
        uint32_t count = block->to - block->from;
        if (count > max - taken)
            count = max - taken;
        memcpy(rows + taken, block->row + block->from, count * sizeof(*rows));
        block->from += count;
        taken += count;
        if (block->from == block->to) {
            m->first_row = block->next;
            if (!m->first_row)
                m->last_row = NULL;
            free(block);
        }
    }
    m->rows -= taken;
    return taken;
}

static uint32_t take(struct roost_event_chain *chain, struct roost_event *events, uint32_t max) {
    uint32_t taken = 0;
    while (taken < max && chain->first) {
        struct roost_event_block *block = chain->first;
        uint32_t count = block->to - block->from;
        if (count > max - taken)
            count = max - taken;
        memcpy(events + taken, block->event + block->from, count * sizeof(*events));
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

void roost_mailbox_destroy(struct roost_mailbox *m) {
    struct roost_command command;
    while (roost_mailbox_next(m, &command))
        free((void *)command.early);
    struct roost_event dropped;
    while (take(&m->urgent, &dropped, 1) || take(&m->rest, &dropped, 1))
        m->events--;
    struct roost_row row;
    while (take_rows(m, &row, 1))
        continue;
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->ready);
}

/* True if it may be gathered with others: it reports what has happened, or that a connection is quiet or due. */
static bool can_wait(const struct roost_event *event) {
    return (event->type == ROOST_EV_TRANSITION && !event->token) || event->type == ROOST_EV_QUIET ||
           event->type == ROOST_EV_SLEEP_DUE || event->type == ROOST_EV_OVERRIDES || event->type == ROOST_EV_ROWS;
}

void roost_mailbox_post(struct roost_mailbox *m, const struct roost_event *event) {
    pthread_mutex_lock(&m->lock);
    struct roost_event *place = append(event->type == ROOST_EV_NEED_RECORD ? &m->urgent : &m->rest);
    if (place) {
        *place = *event;
        m->events++;
        m->prompt |= m->events >= EVENTS_A_BLOCK || !can_wait(event);
    } else {
        m->lost++;
    }
    pthread_mutex_unlock(&m->lock);
    m->untold = true;
}

/* The event at the end that stands for rows, and for one more; or NULL. */
static struct roost_event *event_of_rows(struct roost_mailbox *m) {
    struct roost_event_block *block = m->rest.last;
    struct roost_event *event = block ? &block->event[block->to - 1] : NULL;
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
    struct roost_row *place = event ? append_row(m) : NULL;
    if (place) {
        *place = *row;
        event->count++;
        m->rows++;
        m->prompt |= m->events >= EVENTS_A_BLOCK || m->rows >= ROWS_PROMPT;
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
    uint32_t taken = take_rows(m, rows, max);
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
    struct roost_command_block *block = m->last_command;
    uint8_t *early = NULL;
    if (command->early_len) {
        early = malloc(command->early_len);
        if (!early)
            return -ENOMEM;
        memcpy(early, command->early, command->early_len);
    }
    if (!block || block->to == COMMANDS_A_BLOCK) {
        block = malloc(sizeof(*block));
        if (!block) {
            free(early);
            return -ENOMEM;
        }
        block->next = NULL;
        block->from = block->to = 0;
        if (m->last_command)
            m->last_command->next = block;
        else
            m->first_command = block;
        m->last_command = block;
    }
    block->command[block->to] = *command;
    block->command[block->to++].early = early;
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

bool roost_mailbox_next(struct roost_mailbox *m, struct roost_command *command) {
    pthread_mutex_lock(&m->lock);
    struct roost_command_block *block = m->first_command;
    if (block) {
        *command = block->command[block->from++];
        if (block->from == block->to) {
            m->first_command = block->next;
            if (!m->first_command)
                m->last_command = NULL;
            free(block);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return block != NULL;
}
