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
#define RESETS_MAX 256                   /* keys with an RST whose question failed */
#define KNOWN_MAX 1024                   /* keys whose row is known, and that stayed without a slot */
#define KNOWN_MS 1000                    /* for how long it is, so that segments with wrong numbers cost few reads */
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
    uint8_t why;    /* enum roost_remembered */
    bool challenged;
    struct roost_record row; /* the last one read */
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
    if (!p->budget || (!known && p->remember[ROOST_R_ASKED] >= (by == BY_SYN ? ASKED_BY_SYN_MAX : ASKED_MAX)))
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

static void remember(struct roost_recall *p, struct roost_asked_for *a, enum roost_remembered why) {
    ROOST_ONE_LESS(p->remember[a->why]);
    p->remember[why]++;
    a->why = (uint8_t)why;
}

static void forget(struct roost_engine *e, struct roost_asked_for *a) {
    roost_hash_drop(&e->recall.by_key, roost_hash_of_key(e, &a->key), a);
    ROOST_ONE_LESS(e->recall.remember[a->why]);
}

/* The one that stands for this key, asked for from now on; NULL: no more can be asked now. */
static struct roost_asked_for *asked_for(struct roost_engine *e, const struct roost_key *key, enum asker by) {
    struct roost_asked_for *a = of_key(e, key);
    if (a) {
        if (!a->asked && may_ask(e, by, true)) {
            if (a->why == ROOST_R_KNOWN)
                remember(&e->recall, a, ROOST_R_ASKED);
            ask(e, a);
        }
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
    e->recall.remember[ROOST_R_ASKED]++;
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
static int come_back(struct roost_engine *e, const struct roost_record *row) {
    struct roost_record record = *row;
    record.ka.heard = ROOST_HEARD(e->now_ms / 1000, 0, 0); /* so that it stays a while */
    const struct roost_ka *slot = roost_insert_sleeping(e, &record);
    if (!slot)
        return ENOSPC;
    roost_listings_back(e, &record.key, slot);
    roost_filter_remove(&e->filter, roost_hash_of_key(e, &record.key));
    e->stat[ROOST_E_CANDIDATES_SLEPT]++;
    return 0;
}

/* Whether a packet is its sleeper's: blind segments change nothing. Without a frame its acknowledgement must say it. What is told
 * where the numbers differ (RFC 9293 3.10.7.4) is told from the row, once while that is known. */
static bool is_sleepers(struct roost_engine *e, struct roost_asked_for *a, const struct roost_frame *f) {
    struct roost_segment segment;
    enum roost_verdict verdict = f->length ? roost_judge_kept(f->data, f->length, f->l3, &a->row.ka, &segment)
                                 : f->ack == a->row.ka.snd_nxt ? ROOST_V_HEARD
                                                               : ROOST_V_DROP;
    if (verdict != ROOST_V_CHALLENGE && verdict != ROOST_V_DROP)
        return true;
    e->stat[ROOST_E_CANDIDATES_REFUSED]++;
    if (verdict == ROOST_V_CHALLENGE && !a->challenged) {
        a->challenged = true;
        roost_answer_probe(e, &a->key, &a->row.ka, NULL);
    }
    return false;
}

static void drop_frames(struct roost_asked_for *a) {
    while (a->frame) {
        struct parked_frame *parked = a->frame;
        a->frame = parked->next;
        free(parked);
    }
    a->frame_tail = &a->frame;
    a->frames = 0;
}

static void drop(struct roost_engine *e, struct roost_asked_for *a) {
    forget(e, a);
    drop_frames(a);
    free(a);
}

static void serve_frames(struct roost_engine *e, struct roost_asked_for *a, int error) {
    while (a->frame) {
        struct parked_frame *parked = a->frame;
        a->frame = parked->next;
        if (!error && parked->frame.length)
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

/* The question failed. A packet is retransmitted, an RST is not: for that it is asked again. */
static void give_up(struct roost_engine *e, struct roost_asked_for *a, int error) {
    a->asked = false;
    serve_commands(e, a, error);
    a->command_tail = &a->command;
    bool resets = keep_resets(a);
    if (resets && a->why != ROOST_R_RESET && e->recall.remember[ROOST_R_RESET] < RESETS_MAX)
        remember(&e->recall, a, ROOST_R_RESET);
    if (resets && a->why == ROOST_R_RESET)
        return;
    forget(e, a);
    serve_frames(e, a, error);
    free(a);
}

/* A packet for one whose row is known. */
static void meet_row(struct roost_engine *e, struct roost_asked_for *a, const struct roost_frame *f) {
    if (!is_sleepers(e, a, f))
        return;
    const struct roost_record row = a->row;
    drop(e, a);
    if (!come_back(e, &row) && f->length)
        roost_take_frame(e, f);
}

void roost_recall_frame(struct roost_engine *e, const struct roost_frame *f) {
    struct roost_segment segment;
    if (!roost_is_candidate(e, &f->key)) {
        stranger(e, f);
        return;
    }
    bool whole = f->length && roost_segment_checksums_good(f->data, f->length, f->l3) &&
                 roost_segment_parse(f->data, f->length, f->l3, &segment);
    if (f->length && !whole)
        return; /* no packet of a sleeper's, and the stack would not take it from us */
    bool by_syn = whole && (segment.flags & (ROOST_SYN | ROOST_ACK)) == ROOST_SYN;
    bool reset = whole && segment.flags & ROOST_RST;
    struct roost_asked_for *a = of_key(e, &f->key);
    if (a && a->why == ROOST_R_KNOWN) {
        meet_row(e, a, f);
        return;
    }
    a = asked_for(e, &f->key, by_syn ? BY_SYN : BY_PACKET);
    if (!a || a->frames >= FRAMES_MAX + (uint32_t)reset) {
        e->stat[ROOST_E_CANDIDATES_DROPPED]++;
        return;
    }
    uint32_t length = f->length <= ROOST_FRAME_JUMBO ? f->length : 0;
    struct parked_frame *parked = malloc(sizeof(*parked) + length);
    if (!parked)
        return; /* its sender retransmits */
    parked->next = NULL;
    parked->reset = reset;
    memcpy(&parked->frame, f, sizeof(*f) + length);
    parked->frame.length = length;
    if (f->length > length)
        parked->frame.ack = segment.ack;
    *a->frame_tail = parked;
    a->frame_tail = &parked->next;
    a->frames++;
}

void roost_recall_turn(struct roost_engine *e) {
    struct roost_recall *p = &e->recall;
    if (!p->by_key.used || e->now_ms < p->look_ms)
        return;
    p->look_ms = e->now_ms + LOOK_MS;
    const struct roost_hash_slot *slot;
    for (uint64_t step = 0; (slot = roost_hash_walk(&p->by_key, 0, UINT64_MAX, &step));) {
        struct roost_asked_for *a = slot->item;
        if (a->asked && e->now_ms - a->at_ms > ANSWER_MS) {
            give_up(e, a, ETIMEDOUT);
        } else if (a->why == ROOST_R_KNOWN) {
            if (e->now_ms - a->at_ms >= KNOWN_MS)
                drop(e, a);
        } else if (!a->asked && may_ask(e, BY_PACKET, true)) {
            ask(e, a);
        }
        step -= slot->item != a; /* it is forgotten */
    }
}

/* None of the packets was its sleeper's. The row is kept for a moment, so that a flood costs few reads and the sleeper is
 * heard in its midst. */
static void refuse(struct roost_engine *e, struct roost_asked_for *a) {
    drop_frames(a);
    a->asked = false;
    a->at_ms = e->now_ms;
    if (e->recall.remember[ROOST_R_KNOWN] < KNOWN_MAX)
        remember(&e->recall, a, ROOST_R_KNOWN);
    else
        drop(e, a);
}

/* Whether anything that waits for the row is for its sleeper. */
static bool is_wanted(struct roost_engine *e, struct roost_asked_for *a) {
    bool wanted = a->command != NULL;
    for (const struct parked_frame *parked = a->frame; parked && !wanted; parked = parked->next)
        wanted = is_sleepers(e, a, &parked->frame);
    return wanted;
}

void roost_recall_answered(struct roost_engine *e, const struct roost_command *command) {
    const struct roost_key *key = &command->record.key;
    struct roost_asked_for *a = of_key(e, key);
    int error = command->error;
    if (!a)
        return;
    bool here = roost_whose(e, key).by != ROOST_BY_NONE; /* by another way, meanwhile */
    a->row = command->record;
    a->challenged = false;
    if (here) {
        error = 0;
    } else if (!error && !is_wanted(e, a)) {
        refuse(e, a);
        return;
    } else if (!error) {
        error = come_back(e, &command->record);
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
