// SPDX-License-Identifier: Apache-2.0
/*
 * cext/inband/inband.c: the same stream of bytes in one piece and in any pieces. The claims:
 *
 *     requests and payload come out the same, however the stream was cut
 *     what comes out, put together again, is the stream: no byte is lost, doubled or changed
 *     at most ROOST_INBAND_MAX bytes are held, and memory is held for them alone
 *     nothing is read outside a chunk, which is freed as soon as the filter is done with it
 *     a frame of the manager's own is read by it as one
 */
#include "cext/inband/inband.h"

#include <zlib.h>

#include "input.h"

#define STREAM_MAX 8192
#define REQUESTS_MAX 512

struct heard { /* what came out of a filter */
    uint8_t bytes[STREAM_MAX];
    size_t length;
    struct {
        size_t at, size; /* in bytes */
        struct roost_inband_request request;
    } request[REQUESTS_MAX];
    int requests;
};

static void hear(struct heard *h, const uint8_t *data, size_t length) {
    claim(h->length + length <= STREAM_MAX, "more came out than went in");
    memcpy(h->bytes + h->length, data, length);
    h->length += length;
}

static void feed(struct roost_inband *f, const char *manager, const uint8_t *bytes, size_t length, struct heard *h) {
    uint8_t *chunk = malloc(length ? length : 1);
    claim(chunk != NULL, "no memory");
    memcpy(chunk, bytes, length);
    const uint8_t *data = chunk;
    size_t left = length;
    struct roost_inband_item item;
    int found;
    while ((found = roost_inband_next(f, manager, &data, &left, &item))) {
        claim(found == ROOST_INBAND_PAYLOAD || found == ROOST_INBAND_REQUEST, "the filter says %d", found);
        claim(item.length > 0, "an item without a byte");
        if (found == ROOST_INBAND_REQUEST) {
            claim(item.length <= ROOST_INBAND_MAX, "a frame of %zu bytes", item.length);
            claim(h->requests < REQUESTS_MAX, "more requests than fit into the stream");
            h->request[h->requests].at = h->length;
            h->request[h->requests].size = item.length;
            h->request[h->requests++].request = item.request;
        }
        hear(h, item.data, item.length);
    }
    claim(!left, "the filter stopped before the end of the chunk");
    size_t held = roost_inband_held(f);
    claim(held < ROOST_INBAND_MAX && (held > 0) == (roost_inband_memory(f) > 0) &&
              (held > 0) == (roost_inband_patience_ms(f) > 0),
          "%zu bytes are held, %zu allocated", held, roost_inband_memory(f));
    free(chunk);
}

static void finish(struct roost_inband *f, struct heard *h) {
    uint8_t *rest = malloc(ROOST_INBAND_MAX);
    claim(rest != NULL, "no memory");
    hear(h, rest, 0);
    size_t held = roost_inband_flush(f, rest);
    hear(h, rest, held);
    free(rest);
    claim(!roost_inband_memory(f), "memory is held after a flush");
}

/* A frame with a good check around a body, which may be anything. */
static size_t seal(uint8_t *at, const uint8_t *body, size_t length) {
    size_t n = 9;
    char check[9];
    memcpy(at, "\x10ROOST/1 ", n);
    memcpy(at + n, body, length);
    n += length;
    at[n++] = ' ';
    snprintf(check, sizeof(check), "%08x", (unsigned)crc32(0, at, (uInt)n));
    memcpy(at + n, check, 8);
    at[n + 8] = '\n';
    return n + 9;
}

static size_t answer(struct input *in, uint8_t *frame) {
    char name[ROOST_INBAND_NAME_MAX + 2] = {0};
    struct roost_inband_status status = {.state = (enum roost_state)(take(in, 1) % 6),
                                         .quiet_ms = {take(in, 4), take(in, 4), take(in, 4)},
                                         .rx_bytes = (uint64_t)take(in, 4) << 32 | take(in, 4),
                                         .tx_bytes = (uint64_t)take(in, 4) << 32};
    uint32_t how = take(in, 1);
    memset(name, 'n', how % sizeof(name));
    name[sizeof(name) - 1] = 0;
    status.name = how & 1 ? name : NULL;
    uint8_t *exact = malloc(ROOST_INBAND_MAX);
    claim(exact != NULL, "no memory");
    size_t length = how & 0x80
                        ? roost_inband_stay(exact)
                        : roost_inband_answer(exact, how & 2 ? 'c' : 's', (uint16_t)take(in, 2),
                                              (enum roost_inband_result)(take(in, 1) % 4), how & 4 ? &status : NULL);
    claim(length <= ROOST_INBAND_MAX, "a frame of the manager's own of %zu bytes", length);
    memcpy(frame, exact, length);
    free(exact);
    claim(frame[0] == 0x10 && frame[length - 1] == '\n' && !memchr(frame + 1, 0x10, length - 1),
          "a frame of the manager's own that is none");
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t stream[STREAM_MAX];
    static struct heard whole, pieces;
    struct input in = {data, data + size};
    const char *manager = take(&in, 1) & 1 ? "edge-1" : NULL;
    uint8_t cut[8];
    for (size_t i = 0; i < sizeof(cut); i++)
        cut[i] = (uint8_t)take(&in, 1);

    size_t length = 0;
    while (in.at < in.end && length + 3 * ROOST_INBAND_MAX < STREAM_MAX) {
        size_t got;
        uint32_t what = take(&in, 1);
        const uint8_t *from;
        switch (what & 3) {
        case 0:
        case 1:
            from = take_bytes(&in, 1 + (what >> 2), &got);
            memcpy(stream + length, from, got);
            length += got;
            break;
        case 2:
            from = take_bytes(&in, take(&in, 1), &got);
            length += seal(stream + length, from, got);
            break;
        case 3:
            length += answer(&in, stream + length);
            break;
        }
    }

    struct roost_inband one = {0}, many = {0};
    whole.length = pieces.length = 0;
    whole.requests = pieces.requests = 0;
    feed(&one, manager, stream, length, &whole);
    finish(&one, &whole);
    for (size_t at = 0, turn = 0; at < length; turn++) {
        size_t piece = 1 + cut[turn % sizeof(cut)];
        if (piece > length - at)
            piece = length - at;
        feed(&many, manager, stream + at, piece, &pieces);
        at += piece;
    }
    finish(&many, &pieces);

    claim(whole.length == length && !memcmp(whole.bytes, stream, length), "in one piece: another stream came out");
    claim(pieces.length == length && !memcmp(pieces.bytes, stream, length), "in pieces: another stream came out");
    claim(whole.requests == pieces.requests, "%d requests in one piece, %d in pieces", whole.requests, pieces.requests);
    for (int i = 0; i < whole.requests; i++)
        claim(whole.request[i].at == pieces.request[i].at && whole.request[i].size == pieces.request[i].size &&
                  !memcmp(&whole.request[i].request, &pieces.request[i].request, sizeof(whole.request[i].request)),
              "request %d differs when the stream comes in pieces", i);
    return 0;
}
