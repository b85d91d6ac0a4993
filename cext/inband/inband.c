// SPDX-License-Identifier: Apache-2.0
/*
 * Three parts: the filter, which knows what a frame looks like; the requests, which it holds as text; the manager's own
 * frames. CRC-32 is that of IEEE 802.3, which every client's language has at hand; it tells a frame from payload that
 * looks similar, and authenticates nothing.
 */
#define _GNU_SOURCE
#include "inband.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MAGIC "\x10ROOST/1 "
#define MAGIC_LENGTH (sizeof(MAGIC) - 1)
#define CHECK_LENGTH 8                                 /* hexadecimal digits, and LF behind them */
#define SHORTEST (MAGIC_LENGTH + 6 + CHECK_LENGTH + 1) /* m 0 x */

struct roost_inband_held {
    uint16_t length;
    bool spent; /* was handed out, and goes with the next call */
    uint8_t data[ROOST_INBAND_MAX];
};

/* A piece of a frame. */
struct text {
    const char *at, *end;
};

static size_t size_of(struct text t) {
    return (size_t)(t.end - t.at);
}

static bool is(struct text t, const char *word) {
    return size_of(t) == strlen(word) && !memcmp(t.at, word, size_of(t));
}

/* What stands before the next space, which is taken too. */
static struct text next_word(struct text *t) {
    const char *space = memchr(t->at, ' ', size_of(*t));
    struct text word = {t->at, space ? space : t->end};
    t->at = space ? space + 1 : t->end;
    return word;
}

static bool take(struct text *t, const char *prefix) {
    size_t length = strlen(prefix);
    if (size_of(*t) < length || memcmp(t->at, prefix, length) != 0)
        return false;
    t->at += length;
    return true;
}

/* A decimal number at the start, without leading zeros. */
static bool take_number(struct text *t, uint32_t max, uint32_t *number) {
    uint64_t n = 0;
    const char *p = t->at;
    while (p < t->end && *p >= '0' && *p <= '9') {
        n = n * 10 + (uint64_t)(*p++ - '0');
        if (n > max)
            return false;
    }
    if (p == t->at || (*t->at == '0' && p - t->at > 1))
        return false;
    t->at = p;
    *number = (uint32_t)n;
    return true;
}

/* Milliseconds, all of the text; 0 is not said with a number, it would read as "at once". */
static bool is_ms(struct text t, uint32_t *ms) {
    return take_number(&t, UINT32_MAX, ms) && *ms && !size_of(t);
}

static bool no_arguments(struct text t, struct roost_inband_request *r) {
    return !size_of(t);
}

static bool on_or_off(struct text t, struct roost_inband_request *r) {
    r->on = is(t, "on");
    return r->on || is(t, "off");
}

static bool quiet_arguments(struct text t, struct roost_inband_request *r) {
    static const char *const key[] = {"active=", "standby=", "idle="};
    while (size_of(t)) {
        struct text word = next_word(&t);
        int i = 0;
        while (i < ROOST_INBAND_QUIETS && !take(&word, key[i]))
            i++;
        if (i == ROOST_INBAND_QUIETS || r->given & 1 << i)
            return false;
        r->given |= (uint8_t)(1 << i);
        if (!is(word, "never") && !is_ms(word, &r->quiet_ms[i]))
            return false;
    }
    return r->given;
}

static bool keepalive_arguments(struct text t, struct roost_inband_request *r) {
    if (!on_or_off(next_word(&t), r))
        return false;
    return !size_of(t) || (r->on && take(&t, "interval=") && is_ms(t, &r->interval_ms));
}

static bool name_argument(struct text t, struct roost_inband_request *r) {
    size_t length = size_of(t);
    if (!length || length > ROOST_INBAND_NAME_MAX || !isalnum((unsigned char)*t.at))
        return false;
    for (const char *p = t.at; p < t.end; p++)
        if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
            return false;
    memcpy(r->name, t.at, length); /* the rest is zero */
    return true;
}

static const struct {
    const char *name;
    enum roost_inband_verb verb;
    bool (*arguments)(struct text t, struct roost_inband_request *r);
} verbs[] = {
    {"ping", ROOST_INBAND_PING, no_arguments},
    {"done", ROOST_INBAND_DONE, no_arguments},
    {"quiet", ROOST_INBAND_QUIET, quiet_arguments},
    {"keepalive", ROOST_INBAND_KEEPALIVE, keepalive_arguments},
    {"always-active", ROOST_INBAND_ALWAYS_ACTIVE, on_or_off},
    {"name", ROOST_INBAND_NAME, name_argument},
    {"sleep", ROOST_INBAND_SLEEP, no_arguments},
    {"status", ROOST_INBAND_STATUS, no_arguments},
    {"release", ROOST_INBAND_RELEASE, no_arguments},
};

/* "m" or "m@" and this manager's name. */
static bool is_for_me(struct text to, const char *manager) {
    return take(&to, "m") && (!size_of(to) || (take(&to, "@") && manager && is(to, manager)));
}

static bool is_verb(struct text t) {
    if (!size_of(t) || !islower((unsigned char)*t.at))
        return false;
    for (const char *p = t.at; p < t.end; p++)
        if (!islower((unsigned char)*p) && *p != '-')
            return false;
    return true;
}

/* Flags stand behind the number without a space: any punctuation, of which this version knows two. */
static bool read_flags(struct text flags, struct roost_inband_request *r, bool *known) {
    r->answer = take(&flags, "?");
    r->forward = take(&flags, ">");
    *known = !size_of(flags);
    for (; flags.at < flags.end; flags.at++)
        if (!ispunct((unsigned char)*flags.at))
            return false;
    return true;
}

static bool is_check(const uint8_t *digits, uint32_t crc) {
    for (int i = 0; i < CHECK_LENGTH; i++, crc <<= 4)
        if (digits[i] != (uint8_t) "0123456789abcdef"[crc >> 28])
            return false;
    return true;
}

/* Reads a line of printable characters that begins with MAGIC's first byte and ends with LF; false when it is payload:
 * no frame at all, or none for this manager. */
static bool read_frame(const uint8_t *line, size_t length, const char *manager, struct roost_inband_request *r) {
    if (length < SHORTEST || memcmp(line, MAGIC, MAGIC_LENGTH) != 0)
        return false;
    size_t checked = length - CHECK_LENGTH - 1;
    if (line[checked - 1] != ' ' || !is_check(line + checked, (uint32_t)crc32(0, line, (uInt)checked)))
        return false;

    struct text t = {(const char *)line + MAGIC_LENGTH, (const char *)line + checked - 1};
    uint32_t number;
    bool known, tidy = t.end[-1] != ' ';
    memset(r, 0, sizeof(*r));
    if (!is_for_me(next_word(&t), manager))
        return false;
    struct text flags = next_word(&t), verb = next_word(&t);
    if (!take_number(&flags, UINT16_MAX, &number) || !read_flags(flags, r, &known) || !is_verb(verb))
        return false;
    r->number = (uint16_t)number;
    if (!known || !tidy) {
        r->verb = ROOST_INBAND_BAD;
        return true;
    }
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (is(verb, verbs[i].name)) {
            r->verb = (uint8_t)(verbs[i].arguments(t, r) ? verbs[i].verb : ROOST_INBAND_BAD);
            return true;
        }
    r->verb = ROOST_INBAND_UNKNOWN;
    return true;
}

/* How many of these bytes can stand in a frame from its offset-th byte on, without the LF that would end it. */
static size_t viable(const uint8_t *data, size_t length, size_t offset) {
    size_t i = 0;
    for (; i < length && offset + i < MAGIC_LENGTH; i++)
        if (data[i] != (uint8_t)MAGIC[offset + i])
            return i;
    for (; i < length && offset + i < ROOST_INBAND_MAX - 1; i++)
        if (data[i] < ' ' || data[i] > '~')
            return i;
    return i;
}

static void drop(struct roost_inband *f) {
    free(f->held);
    f->held = NULL;
}

static void advance(const uint8_t **data, size_t *length, size_t n) {
    *data += n;
    *length -= n;
}

/* With bytes held and more at hand: they turn out to be a frame, or payload, or have to wait on. */
static int go_on(struct roost_inband *f, const char *manager, const uint8_t **data, size_t *length,
                 struct roost_inband_item *item) {
    struct roost_inband_held *h = f->held;
    size_t n = viable(*data, *length, h->length);
    bool waits = n == *length, line = !waits && (*data)[n] == '\n';
    if (waits || line) {
        size_t more = n + line;
        memcpy(h->data + h->length, *data, more);
        h->length = (uint16_t)(h->length + more);
        advance(data, length, more);
        if (waits)
            return ROOST_INBAND_END;
    }
    h->spent = true;
    item->data = h->data;
    item->length = h->length;
    return line && read_frame(h->data, h->length, manager, &item->request) ? ROOST_INBAND_REQUEST
                                                                           : ROOST_INBAND_PAYLOAD;
}

int roost_inband_next(struct roost_inband *f, const char *manager, const uint8_t **data, size_t *length,
                      struct roost_inband_item *item) {
    if (f->held && f->held->spent)
        drop(f);
    if (!*length)
        return ROOST_INBAND_END;
    if (f->held)
        return go_on(f, manager, data, length, item);

    const uint8_t *end = *data + *length, *from = *data, *at;
    size_t frame = 0; /* length of the one at at; 0 and at < end: it is incomplete */
    while ((at = memchr(from, MAGIC[0], (size_t)(end - from)))) {
        size_t n = viable(at, (size_t)(end - at), 0);
        if (at + n == end)
            break;
        if (at[n] == '\n' && read_frame(at, n + 1, manager, &item->request)) {
            frame = n + 1;
            break;
        }
        from = at + n;
    }
    if (!at)
        at = end;
    item->data = *data;
    if (at > *data) {
        item->length = (size_t)(at - *data);
        advance(data, length, item->length);
        return ROOST_INBAND_PAYLOAD;
    }
    if (frame) {
        item->length = frame;
        advance(data, length, frame);
        return ROOST_INBAND_REQUEST;
    }
    f->held = malloc(sizeof(*f->held));
    if (!f->held)
        return -ENOMEM;
    f->held->spent = false;
    f->held->length = (uint16_t)*length;
    memcpy(f->held->data, *data, *length);
    advance(data, length, *length);
    return ROOST_INBAND_END;
}

size_t roost_inband_flush(struct roost_inband *f, uint8_t *payload) {
    size_t held = roost_inband_held(f);
    if (held)
        memcpy(payload, f->held->data, held);
    drop(f);
    return held;
}

size_t roost_inband_held(const struct roost_inband *f) {
    return f->held && !f->held->spent ? f->held->length : 0;
}

size_t roost_inband_memory(const struct roost_inband *f) {
    return f->held ? sizeof(*f->held) : 0;
}

uint32_t roost_inband_patience_ms(const struct roost_inband *f) {
    size_t held = roost_inband_held(f);
    if (!held)
        return 0;
    return held < MAGIC_LENGTH ? ROOST_INBAND_PREFIX_PATIENCE_MS : ROOST_INBAND_FRAME_PATIENCE_MS;
}

/* A frame under construction; room is left for the check. */
struct draft {
    char *text;
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add(struct draft *d, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    d->length += (size_t)vsnprintf(d->text + d->length, ROOST_INBAND_MAX - d->length, format, arguments);
    va_end(arguments);
}

static void add_quiet(struct draft *d, const char *key, uint32_t ms) {
    if (ms)
        add(d, "%s=%" PRIu32 " ", key, ms);
    else
        add(d, "%s=never ", key);
}

static size_t seal(struct draft *d) {
    add(d, "%08" PRIx32, (uint32_t)crc32(0, (const uint8_t *)d->text, (uInt)d->length));
    d->text[d->length++] = '\n';
    return d->length;
}

size_t roost_inband_answer(uint8_t *frame, char to, uint16_t number, enum roost_inband_result result,
                           const struct roost_inband_status *status) {
    static const char *const results[] = {"ok", "unknown", "bad", "refused"};
    static const char *const states[] = {"NONE", "ACTIVE", "STANDBY", "IDLE", "SLEEP", "CLOSED"};
    struct draft d = {(char *)frame, 0};
    add(&d, MAGIC "%c %u answer %s ", to, number, results[result]);
    if (status) {
        add(&d, "state=%s ", states[status->state]);
        add_quiet(&d, "active", status->quiet_ms[ROOST_INBAND_ACTIVE]);
        add_quiet(&d, "standby", status->quiet_ms[ROOST_INBAND_STANDBY]);
        add_quiet(&d, "idle", status->quiet_ms[ROOST_INBAND_IDLE]);
        if (status->name)
            add(&d, "name=%.*s ", ROOST_INBAND_NAME_MAX, status->name);
        add(&d, "rx=%" PRIu64 " tx=%" PRIu64 " ", status->rx_bytes, status->tx_bytes);
    }
    return seal(&d);
}

size_t roost_inband_stay(uint8_t *frame) {
    struct draft d = {(char *)frame, 0};
    add(&d, MAGIC "c 0 stay ");
    return seal(&d);
}
