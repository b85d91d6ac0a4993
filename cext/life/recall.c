// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cext/base/address.h"
#include "cext/base/count.h"
#include "life.h"
#include "cext/socket/segment.h"

/* The rows of candidates are asked for here. One forged packet in 430 is taken for a member's: the work for them is bounded. */
#define ASKED_MAX 1024
#define ASKED_BY_SYN_MAX (ASKED_MAX / 4) /* no sleeping connection sends a SYN; floods do */
#define ASKS_A_MS 20                     /* 20,000 a second */
#define FRAMES_MAX 4                     /* held for one key; the rest comes again, but for an RST */
#define KEPT_MAX 256                     /* keys with an RST whose question failed */
#define ANSWER_MS 10000                  /* the control plane tries for half as long; then the answer is lost */
#define LOOK_MS 1000                     /* between two looks at the questions */

struct parked_frame {
    struct parked_frame *next;
    bool reset;
    struct roost_frame frame; /* last: its data follow */
};

struct roost_asked_for {
    struct roost_key key;
    uint64_t at_ms; /* when it was asked for last */
    bool asked;     /* an answer is on its way */
    bool kept;      /* for an RST: the question failed, and an RST is not repeated */
    struct parked_frame *frame, **frame_tail;
    struct roost_waiting *command, **command_tail;
    uint32_t frames;
};

static bool has_key(const void *asked_for, const void *key) {
    return !memcmp(&((const struct roost_asked_for *)asked_for)->key, key, sizeof(struct roost_key));
}

static struct roost_asked_for *of_key(const struct roost_engine *e, const struct roost_key *key) {
    return roost_hash_find(&e->recall.by_key, roost_hash_of_key(e, key), has_key, key);
}

/* What asks: packets share limits, so that a flood leaves the database alone; what the control plane wants is its own to
 * bound. */
enum asker {
    BY_PACKET,
    BY_SYN,
    BY_COMMAND
};

static bool may_ask(struct roost_engine *e, enum asker by, bool known) {
    struct roost_recall *p = &e->recall;
    if (by == BY_COMMAND)
        return true;
    uint64_t passed_ms = e->now_ms - p->filled_ms;
    if (passed_ms) {
        p->budget =
            passed_ms * ASKS_A_MS < ASKED_MAX - p->budget ? p->budget + (uint32_t)passed_ms * ASKS_A_MS : ASKED_MAX;
        p->filled_ms = e->now_ms;
    }
    if (!p->budget || (!known && p->asked >= (by == BY_SYN ? ASKED_BY_SYN_MAX : ASKED_MAX)))
        return false;
    p->budget--;
    return true;
}

static void ask(struct roost_engine *e, struct roost_asked_for *a) {
    struct roost_event event;
    roost_event_of_candidate(e, &a->key, &event);
    event.type = ROOST_EV_CANDIDATE;
    roost_mailbox_post(&e->box, &event);
    e->stat[ROOST_E_CANDIDATES_ASKED]++;
    a->at_ms = e->now_ms;
    a->asked = true;
}

/* The one that stands for this key, asked for from now on; NULL: no more can be asked now. */
static struct roost_asked_for *asked_for(struct roost_engine *e, const struct roost_key *key, enum asker by) {
    struct roost_asked_for *a = of_key(e, key);
    if (a) {
        if (!a->asked && may_ask(e, by, true))
            ask(e, a);
        return a;
    }
    a = may_ask(e, by, false) ? calloc(1, sizeof(*a)) : NULL;
    if (!a || !roost_hash_put(&e->recall.by_key, roost_hash_of_key(e, key), a)) {
        free(a);
        return NULL;
    }
    a->key = *key;
    a->frame_tail = &a->frame;
    a->command_tail = &a->command;
    e->recall.asked++;
    ask(e, a);
    return a;
}

/* Not a packet of ours. XDP has dropped it, so the stack gets it now; but not the end of a handshake that XDP began (it
 * would be reset): its sender says the same again, and then it passes. */
static void stranger(struct roost_engine *e, const struct roost_frame *f) {
    struct roost_segment segment;
    if (roost_lease_is_over(e))
        return; /* it may be another machine's, and would be reset here */
    if (f->why == ROOST_WHY_CANDIDATE && f->length && e->path.births_gate->services &&
        roost_segment_parse(f->data, f->length, f->l3, &segment) && !(segment.flags & ROOST_SYN))
        return;
    roost_sockets_note(e, &f->key); /* as XDP does when it lets a SYN pass */
    roost_stray(e, f);
}

void roost_recall_frame(struct roost_engine *e, const struct roost_frame *f) {
    struct roost_segment segment;
    if (!roost_is_candidate(e, &f->key)) {
        stranger(e, f);
        return;
    }
    bool whole = f->length && roost_segment_parse(f->data, f->length, f->l3, &segment);
    bool by_syn = whole && (segment.flags & (ROOST_SYN | ROOST_ACK)) == ROOST_SYN;
    bool reset = whole && segment.flags & ROOST_RST;
    struct roost_asked_for *a = asked_for(e, &f->key, by_syn ? BY_SYN : BY_PACKET);
    if (!a || a->frames >= FRAMES_MAX + (uint32_t)reset || f->length > ROOST_FRAME_JUMBO) {
        e->stat[ROOST_E_CANDIDATES_DROPPED]++;
        return;
    }
    if (!whole || !roost_segment_checksums_good(f->data, f->length, f->l3))
        return; /* no packet of a sleeper's, and the stack would not take it from us */
    struct parked_frame *parked = malloc(sizeof(*parked) + f->length);
    if (!parked)
        return; /* its sender retransmits */
    parked->next = NULL;
    parked->reset = reset;
    memcpy(&parked->frame, f, sizeof(*f) + f->length);
    *a->frame_tail = parked;
    a->frame_tail = &parked->next;
    a->frames++;
}

bool roost_recall_command(struct roost_engine *e, struct roost_command *command, int *error) {
    const struct roost_key *key = &command->record.key;
    /* Its slot says it from then on, and stays. Without one it is in no group, so there is nothing to take, unless one is on its
     * way. */
    bool takes_group = command->op == ROOST_OP_GIVE && command->count == ROOST_GIVEN_GROUP &&
                       !command->overrides.group && !of_key(e, key);
    bool about_its_class = command->op == ROOST_OP_OVERRIDE || (command->op == ROOST_OP_GIVE && !takes_group);
    bool about_one = about_its_class || command->op == ROOST_OP_WAKE || command->op == ROOST_OP_CLOSE ||
                     command->op == ROOST_OP_ATTACH;
    if (!about_one || (command->id && roost_conn_by_id(e, command->id)) || roost_whose(e, key).by != ROOST_BY_NONE ||
        !roost_is_candidate(e, key))
        return false;
    struct roost_asked_for *a = asked_for(e, key, BY_COMMAND);
    struct roost_waiting *w = a ? roost_waiting_new(e, command, false) : NULL;
    if (!w) {
        *error = EAGAIN;
        return false;
    }
    *a->command_tail = w;
    a->command_tail = &w->next;
    return true;
}

/* Back into the table, in SLEEP: 0 or an errno. */
static int come_back(struct roost_engine *e, const struct roost_command *command) {
    struct roost_record record = command->record;
    record.ka.heard = ROOST_HEARD(e->now_ms / 1000, 0, 0); /* so that it stays a while */
    const struct roost_ka *slot = roost_insert_sleeping(e, &record);
    if (!slot)
        return ENOSPC;
    roost_listings_back(e, &record.key, slot);
    roost_filter_remove(&e->filter, roost_hash_of_key(e, &record.key));
    e->stat[ROOST_E_CANDIDATES_SLEPT]++;
    return 0;
}

static void serve_frames(struct roost_engine *e, struct roost_asked_for *a, int error) {
    while (a->frame) {
        struct parked_frame *parked = a->frame;
        a->frame = parked->next;
        if (!error)
            roost_take_frame(e, &parked->frame);
        else if (error == ENOENT)
            stranger(e, &parked->frame);
        free(parked);
    }
}

static void serve_commands(struct roost_engine *e, struct roost_asked_for *a, int error) {
    while (a->command) {
        struct roost_waiting *w = a->command;
        a->command = w->next;
        w->next = NULL;
        if (error)
            roost_waiting_refuse(e, w, error);
        else
            e->resume(e, w);
    }
}

/* Removes those that have not come again; true if any are left. */
static bool keep_resets(struct roost_asked_for *a) {
    struct parked_frame **at = &a->frame;
    a->frames = 0;
    while (*at) {
        struct parked_frame *parked = *at;
        if (parked->reset) {
            at = &parked->next;
            a->frames++;
        } else {
            *at = parked->next;
            free(parked);
        }
    }
    a->frame_tail = at;
    return a->frames > 0;
}

/* From here on it counts among those that are kept; false: there are too many. */
static bool keep(struct roost_recall *p, struct roost_asked_for *a) {
    if (!a->kept && p->kept < KEPT_MAX) {
        a->kept = true;
        p->kept++;
        ROOST_ONE_LESS(p->asked);
    }
    return a->kept;
}

static void forget(struct roost_engine *e, const struct roost_asked_for *a) {
    roost_hash_drop(&e->recall.by_key, roost_hash_of_key(e, &a->key), a);
    if (a->kept)
        ROOST_ONE_LESS(e->recall.kept);
    else
        ROOST_ONE_LESS(e->recall.asked);
}

/* The question failed. A packet is retransmitted, an RST is not: for that it is asked again. */
static void give_up(struct roost_engine *e, struct roost_asked_for *a, int error) {
    a->asked = false;
    serve_commands(e, a, error);
    a->command_tail = &a->command;
    if (keep_resets(a) && keep(&e->recall, a))
        return;
    forget(e, a);
    serve_frames(e, a, error);
    free(a);
}

void roost_recall_turn(struct roost_engine *e) {
    struct roost_recall *p = &e->recall;
    if ((!p->asked && !p->kept) || e->now_ms < p->look_ms)
        return;
    p->look_ms = e->now_ms + LOOK_MS;
    const struct roost_hash_slot *slot;
    for (uint64_t step = 0; (slot = roost_hash_walk(&p->by_key, 0, UINT64_MAX, &step));) {
        struct roost_asked_for *a = slot->item;
        if (a->asked && e->now_ms - a->at_ms > ANSWER_MS)
            give_up(e, a, ETIMEDOUT);
        else if (!a->asked && may_ask(e, BY_PACKET, true))
            ask(e, a);
        step -= slot->item != a; /* it is forgotten */
    }
}

void roost_recall_answered(struct roost_engine *e, const struct roost_command *command) {
    const struct roost_key *key = &command->record.key;
    struct roost_asked_for *a = of_key(e, key);
    int error = command->error;
    if (!a)
        return;
    bool here = roost_whose(e, key).by != ROOST_BY_NONE; /* by another way, meanwhile */
    if (here) {
        error = 0;
    } else if (!error) {
        error = come_back(e, command);
    } else if (error == ENOENT) {
        roost_datapath_mark_stranger(&e->path, roost_hash_of_key(e, key), true);
        e->stat[ROOST_E_CANDIDATES_STRANGERS]++;
    }
    if (error && error != ENOENT) {
        give_up(e, a, error);
        return;
    }
    forget(e, a);
    e->at_hand = here ? NULL : command;
    serve_frames(e, a, error);
    serve_commands(e, a, error);
    e->at_hand = NULL;
    free(a);
    const struct roost_conn *c = here || error ? NULL : roost_conn_by_key(e, key);
    if (c && c->phase == ROOST_ASKED)
        roost_restore(e, command);
}

void roost_recall_close(struct roost_engine *e) {
    const struct roost_hash_slot *slot;
    for (uint64_t step = 0; (slot = roost_hash_walk(&e->recall.by_key, 0, UINT64_MAX, &step));) {
        struct roost_asked_for *a = slot->item;
        serve_frames(e, a, EAGAIN);
        while (a->command) {
            struct roost_waiting *w = a->command;
            a->command = w->next;
            roost_waiting_drop(w);
        }
        free(a);
    }
    roost_hash_free(&e->recall.by_key);
}
