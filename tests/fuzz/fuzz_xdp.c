// SPDX-License-Identifier: Apache-2.0
/*
 * ebpf/inactive.bpf.c against a model of it: connections in every phase, and a stream of frames, of time going by, and of
 * connections that come, go and change phase.
 *
 * For each frame the model says what must come of it; a plain parser (reference.h) and the engine's own (cext/segment.c)
 * stand behind it, so that the two of the product are also compared with each other. The claims:
 *
 *     a frame that is not TCP, or for nobody in the table, passes unchanged, and nothing else happens
 *     a frame for a connection in the table never passes
 *     an answer is made from the record, for its connection, with good checksums, exactly where the judge says so
 *     a good segment for a connection that is being moved is held, whole
 *     the program changes nothing of the table but the fields marked X (ebpf/record.h)
 */
#include "host/kernel.h"
#include "world.h"

#include "../../cext/segment.h"
#include "reference.h"

#include "../../ebpf/inactive.bpf.c"

enum { /* what the input asks for */
    DO_FRAME,
    DO_RAW_FRAME,
    DO_PHASE,
    DO_REMOVE,
    DO_TIME,
    DO_TROUBLE,
    DO_ERRAND,
    DOES
};

static struct world world;
static struct challenge_budget budget;
static uint64_t counts[ROOST_N_COUNT];
static struct roost_outbox_item items[ROOST_OUTBOX_ITEMS];
static uint32_t cursor_value;

static void give_maps(void) {
    world_give_maps(&world, &config, &tables4, &tables6, &endpoints);
    host_map_array(&counters, counts, ROOST_N_COUNT, sizeof(counts[0]));
    host_map_array(&challenges, &budget, 1, sizeof(budget));
    host_map_array(&outbox, items, ROOST_OUTBOX_ITEMS, sizeof(items[0]));
    host_map_array(&cursor, &cursor_value, 1, sizeof(cursor_value));
}

/* What the program did. */
struct outcome {
    int action;
    const uint8_t *frame;
    size_t length;
};

static struct outcome run(const uint8_t *frame, size_t length) {
    struct xdp_md ctx;
    struct outcome o;
    host_begin_xdp(&ctx, frame, length);
    o.action = roost_inactive(&ctx);
    o.frame = host_frame(&o.length);
    return o;
}

static void claim_passed(const struct outcome *o, const uint8_t *frame, size_t length) {
    claim(o->action == XDP_PASS, "a frame that is not ours had verdict %d", o->action);
    claim(o->length == length && !memcmp(o->frame, frame, length), "a frame that passes was changed");
    claim(!host.records, "a frame that passes went to the engine, too");
}

static void claim_dropped(const struct outcome *o, const char *why) {
    claim(o->action == XDP_DROP && !host.records, "verdict %d and %d records for a frame to be dropped: %s", o->action,
          host.records, why);
}

static void claim_handed_over(const struct outcome *o, const uint8_t *frame, size_t length, const struct tuple *t,
                              uint8_t why) {
    claim(o->action == XDP_DROP, "verdict %d for a frame to be handed over", o->action);
    claim(host.records == !host.ring_full, "%d records for a frame to be handed over", host.records);
    if (!host.records)
        return;
    const struct roost_frame *f = host.record[0].data;
    claim(host.record[0].size >= sizeof(*f) + f->length, "a record that is shorter than it says");
    claim(!memcmp(&f->key, &t->key, sizeof(f->key)), "handed over under another key");
    claim(f->why == why, "handed over as %u, not as %u", f->why, why);
    claim(f->l3 == t->l3 && f->ifindex == 3 && f->queue == 1, "handed over with the wrong place");
    claim(f->length == (length > ROOST_FRAME_MAX ? 0 : length) && !memcmp(f->data, frame, f->length),
          "handed over with other bytes");
}

/* An ACK with the numbers of the record, back to where the frame came from. */
static void claim_answer(const struct outcome *o, const uint8_t *frame, const struct tuple *t,
                         const struct roost_ka *ka, uint32_t tsecr) {
    if (host.no_tail_room && o->action == XDP_DROP)
        return;
    claim(o->action == XDP_TX && !host.records, "verdict %d and %d records for a frame to be answered", o->action,
          host.records);
    struct tuple a;
    claim(reference_tuple(o->frame, o->length, &a), "an answer that is no TCP segment");
    claim(!memcmp(a.key.client, t->key.local, 16) && !memcmp(a.key.local, t->key.client, 16) &&
              a.key.client_port == t->key.local_port && a.key.local_port == t->key.client_port,
          "an answer with other addresses or ports");
    claim(!memcmp(o->frame, frame + 6, 6) && !memcmp(o->frame + 6, frame, 6), "an answer to another station");
    claim(a.l3 == t->l3 && !memcmp(o->frame + 12, frame + 12, t->l3 - 12), "an answer in another VLAN");
    size_t header = t->v6 ? 40 : 20, size = ROOST_FLAGS(ka->ctl) & ROOST_F_TIMESTAMPS ? 32 : 20;
    claim(a.l4 == a.l3 + header && a.l4_length == size && o->length == a.l4 + size, "an answer of %zu bytes",
          o->length);
    const uint8_t *ip = o->frame + a.l3, *tcp = o->frame + a.l4;
    claim(t->v6 || !reference_sum(ip, 20, NULL, 0), "an answer with a bad IP checksum");
    claim(!reference_tcp_sum(ip + (t->v6 ? 8 : 12), t->v6 ? 32 : 8, tcp, size), "an answer with a bad TCP checksum");
    claim(get32(tcp + 4) == ka->snd_nxt, "an answer with sequence number %u", get32(tcp + 4));
    claim(get32(tcp + 8) == ka->rcv_nxt, "an answer that acknowledges %u", get32(tcp + 8));
    claim(tcp[12] == size / 4 << 4 && tcp[13] == ROOST_ACK, "an answer that is no plain ACK");
    claim(get16(tcp + 14) == ka->window && !get16(tcp + 18), "an answer with another window");
    if (size == 32)
        claim(get32(tcp + 20) == 0x0101080a && get32(tcp + 24) == (uint32_t)(host.now_ns / 1000000) + ka->ts_offset &&
                  get32(tcp + 28) == tsecr,
              "an answer with the wrong timestamps");
}

/* The table's memory before a run, to see what the program wrote. */
static uint8_t before[4][sizeof(struct roost_bucket6) * 2];

static void remember_table(void) {
    const void *memory;
    size_t size;
    for (int i = 0; (memory = world_memory(&world, i, &size)); i++)
        memcpy(before[i], memory, size);
}

/* Nothing was written but, into one record, what its verdict says. */
static void claim_table(const struct roost_ka *slot, const struct roost_ka *want) {
    const uint8_t *memory;
    size_t size;
    for (int i = 0; (memory = world_memory(&world, i, &size)); i++) {
        if (slot && (const uint8_t *)slot >= memory && (const uint8_t *)slot < memory + size) {
            claim(!memcmp(want, slot, sizeof(*want)), "the record was changed otherwise than its verdict says");
            memcpy(before[i] + ((const uint8_t *)slot - memory), slot, sizeof(*slot));
        }
        claim(!memcmp(before[i], memory, size), "the program changed what is somebody else's");
    }
}

static void check(const uint8_t *frame, size_t length) {
    struct tuple t;
    bool whole = reference_tuple(frame, length, &t);
    int i = whole ? world_find(&world, &t.key) : -1;
    const struct roost_ka *slot = i < 0 ? NULL : world.connection[i].slot;
    struct roost_ka ka = slot ? *slot : (struct roost_ka){0}, want = ka;
    remember_table();

    struct outcome o = run(frame, length);
    if (!slot) {
        claim_passed(&o, frame, length);
        claim_table(NULL, NULL);
        return;
    }

    struct roost_segment s;
    bool good = roost_segment_parse(frame, length, t.l3, &s);
    const uint8_t *ip = frame + t.l3;
    bool header_sum = t.v6 || !reference_sum(ip, t.l4 - t.l3, NULL, 0);
    bool summed = t.l4_length <= 61; /* longer ones are the engine's to sum: none is answered as a probe */
    uint64_t now_ms = host.now_ns / 1000000;
    uint8_t tick = (uint8_t)(now_ms / 512), last_tick = (uint8_t)ROOST_HEARD_TICK(ka.heard);
    uint32_t heard = ROOST_HEARD(now_ms / 1000, last_tick, 0);
    if (!good) {
        claim_dropped(&o, "malformed");
    } else if (t.l4 > 512) { /* no sender makes such a header */
        claim_dropped(&o, "its header is too long");
    } else if (!header_sum ||
               (summed && reference_tcp_sum(ip + (t.v6 ? 8 : 12), t.v6 ? 32 : 8, frame + t.l4, t.l4_length))) {
        claim_dropped(&o, "bad checksum");
    } else {
        bool newer = s.has_ts && (!ka.ts_recent || (int32_t)(s.tsval - ka.ts_recent) > 0);
        switch (roost_judge(&ka, &s)) {
        case ROOST_V_HOLD:
            claim_handed_over(&o, frame, length, &t, ROOST_WHY_HOLD);
            break;
        case ROOST_V_WAKE:
            claim_handed_over(&o, frame, length, &t, ROOST_WHY_WAKE);
            break;
        case ROOST_V_ANSWER:
            claim(summed, "a segment was answered that was not summed");
            want.heard = heard;
            want.ts_recent = newer ? s.tsval : ka.ts_recent;
            claim_answer(&o, frame, &t, &ka, want.ts_recent);
            break;
        case ROOST_V_HEARD:
            want.heard = heard;
            claim_dropped(&o, "heard");
            break;
        case ROOST_V_CHALLENGE:
            if (last_tick == tick) {
                claim_dropped(&o, "challenged in this tick");
                break;
            }
            want.heard = ROOST_HEARD(ka.heard >> ROOST_HEARD_SHIFT, tick, ROOST_HEARD_PROBES(ka.heard));
            claim_answer(&o, frame, &t, &ka, ka.ts_recent);
            break;
        case ROOST_V_DROP:
            claim_dropped(&o, "as the judge says");
            break;
        }
    }
    claim_table(slot, &want);
}

/* The engine's own frame: an item of the outbox goes to the stack or to the wire as it is. */
static void errand(struct input *in, uint8_t *bytes) {
    union {
        struct roost_errand errand;
        uint8_t bytes[ROOST_FRAME_MAX];
    } frame = {.errand = {.ethertype = 0xb588}};
    uint32_t how = take(in, 1);
    struct roost_outbox_item *item = &items[cursor_value = take(in, 1) % ROOST_OUTBOX_ITEMS];
    frame.errand.to_wire = how & 1;
    memcpy(frame.errand.secret, world.table.config.secret, sizeof(frame.errand.secret));
    bool forged = how & 2;
    if (forged)
        frame.bytes[16 + take(in, 1) % 16] ^= (uint8_t)(1 + take(in, 1) % 255);
    memset(item, 0, sizeof(*item));
    item->failed = 1;
    size_t length = world_frame(&world, in, bytes);
    item->length = (uint32_t)(length < sizeof(item->data) ? length : sizeof(item->data));
    memcpy(item->data, bytes, item->length);
    if (how & 4)
        item->length = take(in, 4);
    host.fib_result = how & 8 ? BPF_FIB_LKUP_RET_NO_NEIGH : BPF_FIB_LKUP_RET_SUCCESS;
    host.fib_ifindex = 9;

    struct outcome o = run(frame.bytes, sizeof(frame));
    if (forged) {
        claim_passed(&o, frame.bytes, sizeof(frame));
        claim(item->failed, "a frame with a forged secret sent something");
        return;
    }
    bool fits = item->length >= ETH_HLEN && item->length <= ROOST_FRAME_MAX;
    if (!fits || item->failed) {
        claim(o.action == XDP_DROP, "verdict %d for an item that was not sent", o.action);
        claim(item->failed, "an item that does not fit was sent");
        return;
    }
    claim(o.length == item->length && !memcmp(o.frame + ETH_HLEN, item->data + ETH_HLEN, o.length - ETH_HLEN),
          "an item went out with other bytes");
    claim(o.action == (frame.errand.to_wire ? XDP_REDIRECT : XDP_PASS), "verdict %d for an item", o.action);
    claim(!frame.errand.to_wire || host.redirected_to == 9, "an item went out by interface %u", host.redirected_to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t frame[FRAME_MAX];
    struct input in = {data, data + size};
    world_fill(&world);
    give_maps();
    memset(&budget, 0, sizeof(budget));
    host.now_ns = 3600ull * 1000000000;
    host.random = 7;
    host.ring_full = host.no_tail_room = false;
    while (in.at < in.end) {
        size_t length, got;
        int i;
        switch (take(&in, 1) % DOES) {
        case DO_FRAME:
            length = world_frame(&world, &in, frame);
            check(frame, length);
            break;
        case DO_RAW_FRAME:
            length = take(&in, 1);
            memset(frame, 0, ETH_HLEN);
            const uint8_t *raw = take_bytes(&in, length, &got);
            memcpy(frame, raw, got);
            if (got < ETH_HLEN)
                got = ETH_HLEN;
            check(frame, got);
            break;
        case DO_PHASE:
            i = (int)(take(&in, 1) % CONNECTIONS);
            world_insert(&world, i, ROOST_FREEZING + take(&in, 1) % ROOST_THAWED);
            break;
        case DO_REMOVE:
            world_remove(&world, (int)(take(&in, 1) % CONNECTIONS));
            break;
        case DO_TIME:
            host.now_ns += (uint64_t)take(&in, 2) * 1000000;
            break;
        case DO_TROUBLE:
            i = (int)take(&in, 1);
            host.ring_full = i & 1;
            host.no_tail_room = i & 2;
            break;
        case DO_ERRAND:
            errand(&in, frame);
            break;
        }
    }
    host_forget_records();
    return 0;
}
