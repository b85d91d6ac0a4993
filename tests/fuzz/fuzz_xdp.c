// SPDX-License-Identifier: Apache-2.0
/*
 * inactive.bpf.c against a model of it: connections in every phase, and a stream of frames, of time going by, and of
 * connections that come, go and change phase.
 *
 * For each frame the model says what must come of it; a plain parser (reference.h) and the engine's own (segment.c)
 * stand behind it, so that the two of the product are also compared with each other. The claims:
 *
 *     a frame that is not TCP, or for no key in the table, passes unchanged, and nothing else happens; but where clients
 *     may be born asleep, a SYN is answered with a cookie, and a client that brings one back is in the table as what the
 *     SYN said
 *     a frame for a connection in the table never passes, nor does one for a key that may be asleep without a slot,
 *     known strangers excepted: that one is handed over, whole
 *     what is handed over has a good checksum; what has not is dropped
 *     a frame of a VLAN that has no device on its interface passes unchanged, too
 *     an answer is made from the record, for its connection, with good checksums, exactly where the judge says so; and it
 *     is counted when it leaves, and not when a frame can become no answer for want of room
 *     a good segment for a connection that is being moved is held, whole
 *     the first of several fragments is told of where its numbers would wake, and dropped while its connection is being
 *     moved; others go to the stack
 *     the program changes nothing of the table but the fields marked X (ebpf/shared/record.h)
 */
#include "host/kernel.h"
#include "world.h"

#include "cext/socket/segment.h"
#include "reference.h"

#include "ebpf/xdp/inactive.bpf.c"

#include "host/maps.h"

enum { /* what the input asks for */
    DO_FRAME,
    DO_RAW_FRAME,
    DO_PHASE,
    DO_REMOVE,
    DO_TIME,
    DO_TROUBLE,
    DO_ERRAND,
    DO_GATE,
    DO_SOCKETS,
    DO_OFFER_PROBES,
    DO_PROBE_LIVE,
    DO_FILTER,
    DOES
};

#define VLAN_DEVICE 30  /* of VLAN 7 (802.1Q) on interface 3 */
#define INNER_DEVICE 31 /* of VLAN 8 (802.1Q) on that one */

static struct world world;
static struct challenge_budget budget;
static struct roost_outbox_item items[ROOST_OUTBOX_ITEMS];
static struct roost_probe probe[ROOST_PROBES];
static struct roost_runs probing;
static struct route route[ROUTES];
static struct way way[ROUTES];
static struct roost_births_gate gate;
static struct roost_sockets sockets;
static struct roost_cookies cookies;
static struct birth_rate rate, rate_before; /* a run */
static __u16 sent_before;

static void give_maps(void) {
    ROOST_SHARED_MAPS(HOST_MAP)
    ROOST_XDP_MAPS(HOST_MAP)
    world_give_maps(&world, &config, &tables4, &tables6, &endpoints);
    host_map_array(&classes, world.table.classes.entry, ROOST_CLASSES, sizeof(struct roost_class));
    world_give_filter(&world, &filter, &filter_gate, &strangers);
    host_map_array(&challenges, &budget, 1, sizeof(budget));
    host_map_array(&outbox, items, ROOST_OUTBOX_ITEMS, sizeof(items[0]));
    host_map_array(&probes, probe, ROOST_PROBES, sizeof(probe[0]));
    host_map_array(&runs, &probing, 1, sizeof(probing));
    host_map_array(&routes, route, ROUTES, sizeof(route[0]));
    host_map_array(&ways_back, way, ROUTES, sizeof(way[0]));
    host_map_array(&births_gate, &gate, 1, sizeof(gate));
    host_map_array(&births_sockets, &sockets, 1, sizeof(sockets));
    host_map_array(&births_rate, &rate, 1, sizeof(rate));
    host_map_array(&births_cookies, &cookies, 1, sizeof(cookies));
    host_map_hash(&births, 4, sizeof(struct roost_birth_place), sizeof(struct roost_birth));
    const struct roost_vlan seven = {ROOST_VLAN_BITS, 3, bpf_htons(0x8100), bpf_htons(7)};
    const __u32 device = VLAN_DEVICE;
    const struct roost_vlan eight = {ROOST_VLAN_BITS, VLAN_DEVICE, bpf_htons(0x8100), bpf_htons(8)};
    const __u32 inner = INNER_DEVICE;
    bpf_map_update_elem(&vlans, &seven, &device, 0);
    bpf_map_update_elem(&vlans, &eight, &inner, 0);
}

/* Both services' clients may be born asleep, always or when there are more of them than so many in a tick. */
static void open_gate(uint32_t how) {
    uint32_t per_tick = how & 63;
    if (how & 64) /* there were as many wrong cookies as may be */
        rate = (struct birth_rate){.wrong = WRONG_MAX, .tick = (uint16_t)(host.now_ns / 1000000 / ROOST_BIRTH_TICK_MS)};
    if (how & 128) /* another processor has sent a cookie, in a second that this one has not seen begin */
        cookies.sent_s[0] = (__u16)(host.now_ns / 1000000000 + 1);
    gate = (struct roost_births_gate){
        {0x6120736563726574, 0x6f66206f7572206f}, (uint32_t)(host.now_ns / 1000000000) + 2, 2, 1};
    for (int i = 0; i < 2; i++) {
        struct roost_birth_place place = {.port = world.key[i].local_port};
        struct roost_birth birth = {.endpoint = world.endpoint[i], .mss = 1400, .class = 60, .rate = per_tick};
        memcpy(place.address, world.key[i].local, 16);
        bpf_map_update_elem(&births, &place, &birth, 0);
    }
}

static const struct roost_birth *birth_of(const struct tuple *t) {
    struct roost_birth_place place = {.port = t->key.local_port};
    memcpy(place.address, t->key.local, 16);
    return (int32_t)(gate.open_until_s - (uint32_t)(host.now_ns / 1000000000)) < 0
               ? NULL
               : bpf_map_lookup_elem(&births, &place);
}

/* What the program did. */
struct outcome {
    int action;
    const uint8_t *frame;
    size_t length, came; /* bytes, as it came */
    uint64_t answered;   /* what the counters say */
};

static uint64_t answers_counted(void) {
    static const __u32 of_answers[] = {ROOST_N_ANSWERED, ROOST_N_CHALLENGED, ROOST_N_COOKIES};
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++)
        sum += *(const __u64 *)bpf_map_lookup_elem(&counters, &of_answers[i]);
    return sum;
}

/* The probe that was next before a run, and which that was; -1: none was offered. */
static struct roost_probe next_offered;
static int next_index;

static struct outcome run_from(const uint8_t *frame, size_t length, uint32_t ifindex) {
    struct xdp_md ctx;
    struct outcome o = {.came = length, .answered = -answers_counted()};
    next_index = probing.next < probing.count ? (int)probing.next : -1;
    next_offered = probe[probing.next % ROOST_PROBES];
    host_begin_xdp(&ctx, frame, length);
    ctx.ingress_ifindex = ifindex;
    o.action = roost_inactive(&ctx);
    o.answered += answers_counted();
    o.frame = host_frame(&o.length);
    return o;
}

static struct outcome run(const uint8_t *frame, size_t length) {
    return run_from(frame, length, 3);
}

static void claim_passed(const struct outcome *o, const uint8_t *frame, size_t length) {
    claim(o->action == XDP_PASS, "a frame that is not ours had verdict %d", o->action);
    claim(o->length == length && !memcmp(o->frame, frame, length), "a frame that passes was changed");
    claim(!host.records, "a frame that passes went to the engine, too");
    claim(!o->answered, "a frame that passes was counted as answered");
}

static void claim_dropped(const struct outcome *o, const char *why) {
    claim(o->action == XDP_DROP && !host.records, "verdict %d and %d records for a frame to be dropped: %s", o->action,
          host.records, why);
    claim(!o->answered, "a frame that was dropped was counted as answered: %s", why);
}

/* The 16-bit words of a packet's TSval, one after the other. */
static uint32_t add_words(uint32_t sum, const uint8_t *at, bool negated) {
    for (int i = 0; i < 4; i += 2)
        sum += negated ? 0xffff - get16(at + i) : get16(at + i);
    return sum;
}

/* What a probe with timestamps is when it goes out: its TSval was that of a clock of 0. The checksum was any. */
static void reference_stamp(uint8_t *packet, uint32_t length, uint32_t now_ms) {
    uint8_t *tcp = packet + (length == 52 ? 20 : 40);
    if (length != 52 && length != 72)
        return;
    uint32_t sum = add_words(0xffff - get16(tcp + 16), tcp + 24, true), tsval = get32(tcp + 24) + now_ms;
    for (int i = 0; i < 4; i++)
        tcp[24 + i] = (uint8_t)(tsval >> (24 - 8 * i));
    for (sum = add_words(sum, tcp + 24, false); sum >> 16;)
        sum = (sum & 0xffff) + (sum >> 16);
    tcp[16] = (uint8_t)(~sum >> 8);
    tcp[17] = (uint8_t)~sum;
}

/* What the routing table says from now on. */
static void set_routes(bool neighbour, uint32_t ifindex) {
    host.fib_result = neighbour ? BPF_FIB_LKUP_RET_SUCCESS : BPF_FIB_LKUP_RET_NO_NEIGH;
    host.fib_ifindex = ifindex;
    memset(route, 0, sizeof(route));
    memset(way, 0, sizeof(way));
}

/* Whose a frame is that came by interface 3. 0: it is of a VLAN that has no device there. */
static uint32_t owner_of(const uint8_t *frame, const struct tuple *t) {
    uint32_t owner = 3;
    for (size_t at = 12; at + 2 < t->l3; at += 4) {
        uint32_t id = get16(frame + at + 2) & 0xfff, wanted = owner == 3 ? 7 : owner == VLAN_DEVICE ? 8 : 0xfff;
        if (id && (get16(frame + at) != 0x8100 || id != wanted))
            return 0;
        owner = !id ? owner : owner == 3 ? VLAN_DEVICE : INNER_DEVICE;
    }
    return owner;
}

/* Where an answer to such a frame goes. */
static enum way_is way_of_answer(const uint8_t *frame, const struct tuple *t) {
    if (host.fib_result != BPF_FIB_LKUP_RET_SUCCESS)
        return WAY_UNKNOWN;
    return host.fib_ifindex == owner_of(frame, t) ? WAY_HERE : WAY_ELSEWHERE;
}

/* Of an Ethernet header that it is the routing table's. */
static bool is_routed(const uint8_t *frame) {
    return frame[0] == 0xdd && frame[5] == 0xdd && frame[6] == 0x55 && frame[11] == 0x55;
}

/* Whether there is room for the frame to become so long. */
static bool may_become(const struct outcome *o, size_t length) {
    return !host.no_tail_room || !host.no_head_room || length <= o->came;
}

/* A frame that came from this interface and is needed no more: it is the next probe now, if one is offered that has a way. */
static void claim_next_probe(const struct outcome *o, uint32_t ifindex, bool tagged) {
    struct roost_probe expected = next_offered, *p = &expected;
    reference_stamp((uint8_t *)p->packet, p->length, (uint32_t)(host.now_ns / 1000000));
    if (next_index < 0 || tagged) {
        claim_dropped(o, "no probe is offered");
        return;
    }
    claim(probing.next == (uint32_t)next_index + 1, "a probe was taken, and is offered still");
    uint32_t state = probe[next_index].state;
    if (p->state != ROOST_PROBE_WAITS) {
        claim_dropped(o, "the probe was taken back");
        claim(state == p->state, "a probe that was taken back has state %u", state);
        return;
    }
    bool fits = p->length >= 40 && p->length <= ROOST_PROBE_MAX && may_become(o, 14 + p->length);
    if (!fits || host.fib_result != BPF_FIB_LKUP_RET_SUCCESS || probing.interfaces != 1) {
        claim_dropped(o, "the probe has no way");
        claim(state == ROOST_PROBE_NO_WAY, "a probe that has no way has state %u", state);
        return;
    }
    claim(state == ROOST_PROBE_TAKEN, "a probe that was sent has state %u", state);
    claim(o->action == (host.fib_ifindex == ifindex ? XDP_TX : XDP_REDIRECT) && !host.records, "verdict %d for a probe",
          o->action);
    claim(o->action == XDP_TX || host.redirected_to == host.fib_ifindex, "a probe went out by interface %u",
          host.redirected_to);
    bool v4 = *(const uint8_t *)p->packet >> 4 == 4;
    claim(o->length == 14 + p->length && !memcmp(o->frame + 14, p->packet, p->length),
          "a probe went out with other bytes");
    claim(is_routed(o->frame) && get16(o->frame + 12) == (v4 ? 0x0800 : 0x86dd),
          "a probe went out with another Ethernet header");
}

/* Whether all of a segment is there, and its TCP checksum good. */
static bool sums(const uint8_t *frame, size_t length, const struct tuple *t) {
    const uint8_t *ip = frame + t->l3;
    return t->l4 + t->l4_length <= length &&
           reference_tcp_good(ip + (t->v6 ? 8 : 12), t->v6 ? 32 : 8, frame + t->l4, t->l4_length);
}

static void claim_handed_over(const struct outcome *o, const uint8_t *frame, size_t length, const struct tuple *t,
                              uint8_t why) {
    if (!sums(frame, length, t)) {
        claim_dropped(o, "bad checksum");
        return;
    }
    claim(o->action == XDP_DROP, "verdict %d for a frame to be handed over", o->action);
    claim(host.records == !host.ring_full, "%d records for a frame to be handed over", host.records);
    if (!host.records)
        return;
    const struct roost_frame *f = host.record[0].data;
    claim(host.record[0].size >= sizeof(*f) + f->length, "a record that is shorter than it says");
    claim(!memcmp(&f->key, &t->key, sizeof(f->key)), "handed over under another key");
    claim(f->why == why, "handed over as %u, not as %u", f->why, why);
    claim(f->l3 == t->l3 && f->ifindex == 3 && f->queue == 1, "handed over with the wrong place");
    claim(f->length == (length > ROOST_FRAME_LARGE ? 0 : length) && !memcmp(f->data, frame, f->length),
          "handed over with other bytes");
}

/* A whole segment of `size` bytes, where it is routed to or back to where the frame came from: its place in the outcome. */
static const uint8_t *claim_reply(const struct outcome *o, const uint8_t *frame, const struct tuple *t, size_t *size) {
    claim(o->action == XDP_TX && !host.records, "verdict %d and %d records for a frame to be answered", o->action,
          host.records);
    claim(o->answered == 1, "an answer that left was counted %u times", (unsigned)o->answered);
    struct tuple a;
    claim(reference_tuple(o->frame, o->length, &a), "an answer that is no TCP segment");
    claim(!memcmp(a.key.client, t->key.local, 16) && !memcmp(a.key.local, t->key.client, 16) &&
              a.key.client_port == t->key.local_port && a.key.local_port == t->key.client_port,
          "an answer with other addresses or ports");
    bool back = !memcmp(o->frame, frame + 6, 6) && !memcmp(o->frame + 6, frame, 6);
    claim(way_of_answer(frame, t) == WAY_HERE ? is_routed(o->frame) : back, "an answer to another station");
    claim(a.l3 == t->l3 && !memcmp(o->frame + 12, frame + 12, t->l3 - 12), "an answer in another VLAN");
    size_t header = t->v6 ? 40 : 20;
    *size = a.l4_length;
    /* One that is turned round in its place keeps what Ethernet padded it with. */
    claim(a.l4 == a.l3 + header && (o->length == a.l4 + *size || o->length == o->came), "an answer of %zu bytes",
          o->length);
    const uint8_t *ip = o->frame + a.l3, *tcp = o->frame + a.l4;
    claim(t->v6 || !reference_sum(ip, 20, NULL, 0), "an answer with a bad IP checksum");
    claim(!reference_tcp_sum(ip + (t->v6 ? 8 : 12), t->v6 ? 32 : 8, tcp, *size), "an answer with a bad TCP checksum");
    claim(tcp[12] == *size / 4 << 4 && !get16(tcp + 18), "an answer with a bad header");
    return tcp;
}

/* An ACK with the numbers of the record; of the engine's, where it cannot leave from here. challenged: the segment may be
 * anybody's, and the answer goes where it is known to be routed to. */
static void claim_answer(const struct outcome *o, const uint8_t *frame, size_t length, const struct tuple *t,
                         const struct roost_ka *ka, uint32_t tsecr, bool challenged) {
    size_t size, wanted = ROOST_FLAGS(ka->ctl) & ROOST_F_TIMESTAMPS ? 32 : 20;
    enum way_is is = way_of_answer(frame, t);
    if (is == WAY_ELSEWHERE || (challenged && is == WAY_UNKNOWN) ||
        !may_become(o, t->l3 + (t->v6 ? 40 : 20) + wanted)) {
        claim_handed_over(o, frame, length, t, ROOST_WHY_ANSWER);
        claim(!o->answered, "an answer that did not leave was counted as answered");
        return;
    }
    const uint8_t *tcp = claim_reply(o, frame, t, &size);
    claim(size == wanted, "an answer of %zu bytes", size);
    claim(get32(tcp + 4) == ka->snd_nxt, "an answer with sequence number %u", get32(tcp + 4));
    claim(get32(tcp + 8) == ka->rcv_nxt, "an answer that acknowledges %u", get32(tcp + 8));
    claim(tcp[13] == ROOST_ACK && get16(tcp + 14) == ka->window, "an answer that is no plain ACK, or another window");
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

/* Nothing was written but, into one record, what its verdict says. fresh: all of it, and its tag. */
static void claim_table(const struct roost_ka *slot, const struct roost_ka *want, bool fresh) {
    uint8_t *memory;
    size_t size;
    for (int i = 0; (memory = world_memory(&world, i, &size)); i++) {
        if (slot && (const uint8_t *)slot >= memory && (const uint8_t *)slot < memory + size) {
            bool v4 = !(i & 1);
            size_t bucket = v4 ? sizeof(struct roost_bucket4) : sizeof(struct roost_bucket6);
            size_t slot_size = v4 ? sizeof(struct roost_slot4) : sizeof(struct roost_slot6);
            size_t at = (size_t)((const uint8_t *)slot - memory),
                   in_bucket = at % bucket - sizeof(struct roost_bucket_head);
            size_t tag = at / bucket * bucket + in_bucket / slot_size, far = slot_size - sizeof(*slot);
            claim(!memcmp(want, slot, sizeof(*want)), "the record was changed otherwise than its verdict says");
            memcpy(before[i] + at, slot, sizeof(*slot));
            if (fresh) {
                claim(!before[i][tag], "somebody was born into a slot that was taken");
                before[i][tag] = memory[tag];
                memcpy(before[i] + at - far, memory + at - far, far);
            }
        }
        claim(!memcmp(before[i], memory, size), "the program changed what is somebody else's");
    }
}

/* Whether XDP can answer for this segment: it is whole and, as far as XDP sums it, good. NULL: yes, else why not. */
static const char *fault_of(const uint8_t *frame, size_t length, const struct tuple *t, struct roost_segment *s) {
    const uint8_t *ip = frame + t->l3;
    if (!roost_segment_parse(frame, length, t->l3, s))
        return "malformed";
    if (t->l4 > 512) /* no sender makes such a header */
        return "its header is too long";
    bool summed = t->l4_length <= 61; /* longer ones where they are handed over: none is answered as a probe */
    if ((!t->v6 && reference_sum(ip, t->l4 - t->l3, NULL, 0)) || (summed && !sums(frame, length, t)))
        return "bad checksum";
    return NULL;
}

/* What the judge says of a segment for this record. Returns what the record is then. */
static struct roost_ka claim_judged(const struct outcome *o, const uint8_t *frame, size_t length, const struct tuple *t,
                                    const struct roost_segment *s, const struct roost_ka *ka) {
    struct roost_ka want = *ka;
    uint64_t now_ms = host.now_ns / 1000000;
    uint8_t tick = ROOST_TICK(now_ms), last_tick = (uint8_t)ROOST_HEARD_TICK(ka->heard);
    uint32_t heard = ROOST_HEARD(now_ms / 1000, last_tick, 0);
    bool newer = s->has_ts && (!ka->ts_recent || (int32_t)(s->tsval - ka->ts_recent) > 0);
    switch (roost_judge(ka, s)) {
    case ROOST_V_HOLD:
        claim_handed_over(o, frame, length, t, ROOST_WHY_HOLD);
        break;
    case ROOST_V_WAKE:
        claim_handed_over(o, frame, length, t, ROOST_WHY_WAKE);
        break;
    case ROOST_V_ANSWER:
        claim(t->l4_length <= 61, "a segment was answered that was not summed");
        want.heard = heard;
        want.ts_recent = newer ? s->tsval : ka->ts_recent;
        claim_answer(o, frame, length, t, ka, want.ts_recent, false);
        break;
    case ROOST_V_HEARD:
        want.heard = heard;
        if (ROOST_HEARD_PROBES(ka->heard)) {
            claim_next_probe(o, 3, t->l3 != ETH_HLEN);
            break;
        }
        claim_dropped(o, "it answers no probe");
        claim(next_index < 0 || probing.next == (uint32_t)next_index, "what answers no probe let the next one out");
        break;
    case ROOST_V_CHALLENGE:
        if (last_tick && last_tick == tick) { /* 0: it has not been challenged yet */
            claim_dropped(o, "challenged in this tick");
            break;
        }
        want.heard = ROOST_HEARD(ka->heard >> ROOST_HEARD_SHIFT, tick, ROOST_HEARD_PROBES(ka->heard));
        claim_answer(o, frame, length, t, ka, ka->ts_recent, true);
        break;
    case ROOST_V_DROP:
        claim_dropped(o, "as the judge says");
        break;
    }
    return want;
}

/* What a SYN offers; of several options of a kind, the last. */
struct offered {
    uint32_t mss, wscale, tsval;
    uint32_t tsecr; /* of the first: that of a segment */
    bool sack, has_ts;
};

static struct offered read_offer(const uint8_t *tcp, size_t header, bool v6) {
    struct offered o = {.mss = v6 ? 1220 : 536, .wscale = 15};
    for (size_t at = 20; at < header && tcp[at];) {
        if (tcp[at] == 1) {
            at++;
            continue;
        }
        if (at + 1 >= header || tcp[at + 1] < 2 || at + tcp[at + 1] > header)
            break;
        const uint8_t *value = tcp + at + 2;
        if (tcp[at] == 2 && tcp[at + 1] == 4)
            o.mss = get16(value);
        if (tcp[at] == 3 && tcp[at + 1] == 3)
            o.wscale = *value < 14 ? *value : 14;
        if (tcp[at] == 4 && tcp[at + 1] == 2)
            o.sack = true;
        if (tcp[at] == 8 && tcp[at + 1] == 10) {
            o.tsval = get32(value);
            o.tsecr = o.has_ts ? o.tsecr : get32(value + 4);
            o.has_ts = true;
        }
        at += tcp[at + 1];
    }
    return o;
}

static void check(const uint8_t *frame, size_t length);

/* How a client brings its cookie back; whatever differs in a SYN makes another one. */
enum {
    BACK_LATE = 1,    /* by a keep-alive probe, since the acknowledgement was lost */
    BACK_PAYLOAD = 6, /* 0, 1, 2 or 6 bytes */
    BACK_PUSH = 8,
    BACK_FIN = 16,
    BACK_ECN = 32,      /* CWR and ECE */
    BACK_OPTIONS = 192, /* as Linux has them; the timestamps first; a SACK block behind them; two words of nothing */
};

/* Its options, behind the TCP header: how long they are. */
static size_t put_options(uint8_t *at, uint32_t shape, bool has_ts, uint32_t tsval, uint32_t tsecr) {
    static const uint8_t sack[12] = {1, 1, 5, 10, 1, 2, 3, 4, 1, 2, 3, 5};
    uint32_t which = (shape & BACK_OPTIONS) >> 6;
    size_t size = 0;
    if (has_ts) {
        memset(at, 1, 12);
        uint8_t *option = at + (which == 1 ? 0 : 2);
        option[0] = 8;
        option[1] = 10;
        put32(option + 2, tsval);
        put32(option + 6, tsecr);
        size = 12;
    }
    if (which == 2) {
        memcpy(at + size, sack, sizeof(sack));
        size += sizeof(sack);
    } else if (which == 3) {
        memset(at + size, 1, 8);
        size += 8;
    }
    return size;
}

/* The SYN-ACK to this SYN; then its client brings the cookie back, and must be in the table as what it offered. */
static void claim_cookie(const struct outcome *o, const uint8_t *frame, const struct tuple *t,
                         const struct roost_segment *s) {
    static const uint32_t classes[] = {536, 1220, 1300, 1360, 1400, 1420, 1440, 1460};
    static const uint8_t payloads[] = {0, 1, 2, 6};
    uint8_t ack[14 + 40 + 20 + 24 + 6] = {0};
    size_t size, header = t->v6 ? 40 : 20, l4 = 14 + header;
    struct offered offer = read_offer(frame + t->l4, t->l4_length, t->v6);
    uint32_t shape = (s->seq + s->window + offer.tsval) * 2654435761u >> 24;
    if (offer.mss < 536) {
        claim(o->action == XDP_PASS, "a SYN was answered whose client takes no whole segment");
        return;
    }
    const uint8_t *tcp = claim_reply(o, frame, t, &size);
    claim(tcp[13] == (ROOST_SYN | ROOST_ACK) && get32(tcp + 8) == s->seq + 1, "a SYN was answered with flags %x",
          tcp[13]);
    struct offered ours = read_offer(tcp, size, t->v6);
    claim(ours.mss == 1400 && ours.has_ts == offer.has_ts && (!ours.sack || offer.sack) &&
              (ours.wscale == 15 || offer.wscale != 15),
          "a SYN-ACK agrees to what was not offered");
    claim(!offer.has_ts || get32(tcp + 32) == offer.tsval, "a SYN-ACK without the client's clock");

    memcpy(ack, frame, 12);
    put16(ack + 12, t->v6 ? 0x86dd : 0x0800);
    uint8_t *ip = ack + 14, *segment = ack + l4;
    size_t options = put_options(segment + 20, shape, offer.has_ts, offer.tsval + 1, ours.tsval);
    size_t l4_length = 20 + options + payloads[(shape & BACK_PAYLOAD) >> 1];
    if (t->v6) {
        ip[0] = 0x60;
        put16(ip + 4, (uint32_t)l4_length);
        ip[6] = 6;
        memcpy(ip + 8, t->key.client, 16);
        memcpy(ip + 24, t->key.local, 16);
    } else {
        ip[0] = 0x45;
        put16(ip + 2, (uint32_t)(20 + l4_length));
        ip[9] = 6;
        memcpy(ip + 12, t->key.client + 12, 4);
        memcpy(ip + 16, t->key.local + 12, 4);
        put16(ip + 10, reference_sum(ip, 20, NULL, 0));
    }
    memcpy(segment, &t->key.client_port, 2);
    memcpy(segment + 2, &t->key.local_port, 2);
    put32(segment + 4, s->seq + !(shape & BACK_LATE));
    put32(segment + 8, get32(tcp + 4) + 1);
    segment[12] = (uint8_t)((20 + options) / 4 << 4);
    segment[13] = (uint8_t)(ROOST_ACK | (shape & BACK_PUSH ? 8 : 0) | (shape & BACK_FIN ? ROOST_FIN : 0) |
                            (shape & BACK_ECN ? 0xc0 : 0));
    put16(segment + 14, 777);
    uint32_t snd_nxt = get32(tcp + 4) + 1;
    put16(segment + 16, reference_tcp_sum(ip + (t->v6 ? 8 : 12), t->v6 ? 32 : 8, segment, l4_length));
    check(ack, l4 + l4_length);

    const struct roost_ka *slot = roost_table_find(&world.table, &t->key);
    if (!slot) /* a socket has it, or there was no room */
        return;
    uint32_t mss = 0, flags = ROOST_FLAGS(slot->ctl);
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        if (classes[i] <= offer.mss)
            mss = classes[i];
    claim(slot->snd_nxt == snd_nxt && slot->rcv_nxt == s->seq + 1, "somebody was born with other numbers");
    claim(ROOST_IS_BORN(slot->rest) && roost_born_mss(slot->rest) == mss && ROOST_BORN_WINDOW(slot->rest) == 777,
          "somebody was born with an MSS of %u, and offered %u", roost_born_mss(slot->rest), offer.mss);
    claim(!(flags & ROOST_F_TIMESTAMPS) == !offer.has_ts, "somebody was born with timestamps, or without");
    claim(!(flags & ROOST_F_SACK) == !ours.sack, "somebody was born with SACK, or without");
    claim(!(flags & ROOST_F_WSCALE) == (ours.wscale == 15), "somebody was born with window scaling, or without");
    if (flags & ROOST_F_WSCALE)
        claim(ROOST_SND_WSCALE(slot->ctl) == offer.wscale && ROOST_RCV_WSCALE(slot->ctl) == ours.wscale,
              "somebody was born with window scales %u and %u", ROOST_SND_WSCALE(slot->ctl),
              ROOST_RCV_WSCALE(slot->ctl));
    if (offer.has_ts)
        claim(slot->ts_recent == offer.tsval + 1, "somebody was born with another clock");
}

/* If the kernel has a socket for a key, it has been noted. */
static void note_socket(const struct roost_key *key) {
    bool any = false;
    for (int i = 0; i < 32; i += 2)
        any |= (host.sockets >> i & 3) == HOST_CONNECTION;
    if (any)
        roost_socket_note(&sockets, world_hash(&world, key), (uint32_t)(host.now_ns / 1000000000));
}

static bool is_cookie_spent(const struct tuple *t, __u32 at_ms) {
    return roost_cookie_is_spent(&cookies, world_hash(&world, &t->key), at_ms);
}

/* When a cookie for this SYN is sent, as its acknowledgement will say. */
static __u32 syn_ack_ms(const struct tuple *t, const struct offered *offer) {
    __u32 now_ms = (__u32)(host.now_ns / 1000000), clock = birth_clock(&gate, &t->key);
    if (!offer->has_ts)
        return now_ms / 64000 * 64000;
    return carrying(now_ms + clock, offer->wscale | (offer->sack ? TS_SACK : 0)) - clock;
}

/* A frame for no key in the table. */
static void check_stranger(const struct outcome *o, const uint8_t *frame, size_t length, const struct tuple *t,
                           bool whole) {
    struct roost_segment s;
    const struct roost_birth *birth = whole ? birth_of(t) : NULL;
    const struct roost_ka *slot = whole ? roost_table_find(&world.table, &t->key) : NULL;
    if (!birth || fault_of(frame, length, t, &s)) {
        claim_passed(o, frame, length);
        claim_table(NULL, NULL, false);
        return;
    }
    uint32_t flags = s.flags & (ROOST_FIN | ROOST_SYN | ROOST_RST | ROOST_ACK);
    if (flags == ROOST_SYN) {
        claim_table(NULL, NULL, false);
        if (o->action ==
            XDP_PASS) { /* no storm, more than options in it, no room or no way for the answer: the stack's */
            struct offered offer = read_offer(frame + t->l4, t->l4_length, t->v6);
            size_t options = !offer.has_ts ? 4 : offer.wscale == 15 ? 16 : 20;
            bool answerable = t->l4_length <= 60 && offer.mss >= 536 && way_of_answer(frame, t) == WAY_HERE &&
                              !is_cookie_spent(t, syn_ack_ms(t, &offer));
            answerable &= may_become(o, t->l3 + (t->v6 ? 40 : 20) + 20 + options);
            struct packet p = {.key = t->key, .v6 = t->v6};
            answerable &= !s.payload && can_be_client(&p) && !(frame[0] & 1) && (host.sockets & 3) != HOST_CONNECTION;
            claim(birth->rate || !answerable, "a SYN was not answered");
            claim(roost_may_have_socket(&sockets, world_hash(&world, &t->key), (uint32_t)(host.now_ns / 1000000000)),
                  "a SYN that may make a socket was not noted");
            claim_passed(o, frame, length);
            return;
        }
        struct offered offer = read_offer(frame + t->l4, t->l4_length, t->v6);
        claim(way_of_answer(frame, t) == WAY_HERE, "a SYN was answered to whoever sent it");
        claim(!is_cookie_spent(t, syn_ack_ms(t, &offer)), "a SYN was answered with a cookie that is spent");
        claim(cookies.sent_s[0] == (__u16)(host.now_ns / 1000000000), "a cookie was sent, and none is expected back");
        uint8_t bytes[FRAME_MAX];
        struct outcome answered = {o->action, bytes, o->length, o->came, o->answered};
        memcpy(bytes, o->frame, o->length); /* the host has one frame, and the claim sends another */
        claim_cookie(&answered, frame, t, &s);
        return;
    }
    uint32_t cookie = s.ack - 1;
    uint64_t now_ms = host.now_ns / 1000000;
    const uint8_t *tcp = frame + t->l4;
    uint32_t echoed = read_offer(tcp, (size_t)(tcp[12] >> 4) * 4, t->v6).tsecr;
    uint32_t agreed = s.has_ts ? TS_AGREED | (echoed & TS_BITS) : 0;
    bool late = s.payload <= 1 && cookie_good(&gate, &t->key, cookie, s.seq, agreed, now_ms);
    bool good = late || cookie_good(&gate, &t->key, cookie, s.seq - 1, agreed, now_ms);
    bool socket = (host.sockets & 3) == HOST_CONNECTION;
    __u32 period = period_of(now_ms);
    __u32 cookie_ms =
        s.has_ts ? echoed - birth_clock(&gate, &t->key) : (period - ((period - (cookie >> 30)) & 3)) * 64000u;
    bool counts = (uint16_t)(host.now_ns / 1000000000 + 1 - sent_before) <= 129, ack = (flags & ~1u) == ROOST_ACK;
    if (!s.has_ts) {
        bool new_tick = rate_before.tick != (uint16_t)(now_ms / ROOST_BIRTH_TICK_MS);
        uint32_t wrong = new_tick ? 0 : rate_before.wrong;
        counts &= wrong < WRONG_MAX;
        claim(!ack || !counts || rate.wrong == wrong + (!socket && !(good && !is_cookie_spent(t, cookie_ms))),
              "%u wrong cookies after %u", rate.wrong, wrong);
    }
    good &= counts && (uint32_t)now_ms + 4096 - cookie_ms <= 128000 + TS_BITS + 4096 && !is_cookie_spent(t, cookie_ms);
    if ((flags & ~(uint32_t)ROOST_FIN) != ROOST_ACK || !good || socket) {
        claim_passed(o, frame, length);
        claim_table(NULL, NULL, false);
        return;
    }
    if (!slot) {
        claim_dropped(o, "no room");
        claim_table(NULL, NULL, false);
        return;
    }
    struct roost_ka ka = *slot;
    ka.snd_nxt = s.ack;
    ka.rcv_nxt = s.seq + late;
    ka.heard = ROOST_HEARD(now_ms / 1000, 0, 0);
    ka.ts_recent = s.has_ts ? s.tsval : 0;
    ka.class = birth->class;
    claim(ROOST_PHASE(slot->ctl) == ROOST_IDLE && ROOST_IS_BORN(slot->rest), "born in phase %u",
          ROOST_PHASE(slot->ctl));
    if (late || s.payload || s.flags & ROOST_FIN)
        claim_handed_over(o, frame, length, t, ROOST_WHY_HOLD); /* it does more: the engine knows what to do about it */
    else
        claim_dropped(o, "it ends a handshake");
    claim_table(slot, &ka, true);
}

/* What the judge says of the first fragment of a segment, which has as much of it as a whole one must have; DROP: that it
 * has not, or is an RST. */
static enum roost_verdict judge_fragment(const uint8_t *frame, size_t length, const struct tuple *t,
                                         const struct roost_ka *ka) {
    const uint8_t *tcp = frame + t->l4;
    size_t header = (size_t)(tcp[12] >> 4) * 4;
    if (t->l4 > 512 || t->l4 + t->l4_length > length || header < 20 || header > t->l4_length ||
        (!t->v6 && reference_sum(frame + t->l3, t->l4 - t->l3, NULL, 0)))
        return ROOST_V_DROP;
    struct roost_segment s = {
        .seq = get32(tcp + 4), .ack = get32(tcp + 8), .flags = tcp[13], .payload = (uint32_t)(t->l4_length - header)};
    return s.flags & ROOST_RST ? ROOST_V_DROP : roost_judge(ka, &s);
}

/* The first fragment of a segment: what wakes is told, without a frame; what neither wakes nor is to be held the stack has. */
static void check_fragment(const uint8_t *frame, size_t length, const struct tuple *t) {
    const struct roost_ka *slot = roost_table_find(&world.table, &t->key);
    enum roost_verdict verdict = slot ? judge_fragment(frame, length, t, slot) : ROOST_V_DROP;
    bool dropped = verdict == ROOST_V_WAKE || verdict == ROOST_V_HOLD,
         wakes = verdict == ROOST_V_WAKE && !host.ring_full;
    bool asks = !slot && world_candidate(&world, &t->key) && !host.ring_full;
    struct outcome o = run(frame, length);
    claim_table(NULL, NULL, false);
    claim(o.action == (dropped ? XDP_DROP : XDP_PASS), "verdict %d for a fragment", o.action);
    claim(o.length == length && !memcmp(o.frame, frame, length), "a fragment was changed");
    claim(host.records == (wakes || asks), "%d records for a fragment", host.records);
    if (!host.records)
        return;
    const struct roost_frame *f = host.record[0].data;
    claim(!memcmp(&f->key, &t->key, sizeof(f->key)) && !f->length, "a fragment was told of under another key");
    claim(f->why == (wakes ? ROOST_WHY_FRAGMENT : ROOST_WHY_CANDIDATE), "a fragment was told of as %u", f->why);
}

static void check(const uint8_t *frame, size_t length) {
    struct tuple t;
    struct roost_segment s;
    remember_table();
    rate_before = rate;
    sent_before = cookies.sent_s[0];
    bool segment = reference_tuple_of_any(frame, length, &t);
    if (segment && !owner_of(frame, &t)) {
        struct outcome o = run(frame, length);
        claim_passed(&o, frame, length);
        claim_table(NULL, NULL, false);
        return;
    }
    if (segment && t.fragment) {
        check_fragment(frame, length, &t);
        return;
    }
    bool whole = reference_tuple(frame, length, &t);
    const struct roost_ka *slot = whole ? roost_table_find(&world.table, &t.key) : NULL;
    struct roost_ka ka = slot ? *slot : (struct roost_ka){0};
    bool candidate = whole && !slot && world_candidate(&world, &t.key);
    if (whole)
        note_socket(&t.key);

    struct outcome o = run(frame, length);
    if (candidate) {
        claim_handed_over(&o, frame, length, &t, ROOST_WHY_CANDIDATE);
        claim_table(NULL, NULL, false);
        return;
    }
    if (!slot) {
        check_stranger(&o, frame, length, &t, whole);
        return;
    }
    const char *fault = fault_of(frame, length, &t, &s);
    if (fault)
        claim_dropped(&o, fault);
    else
        ka = claim_judged(&o, frame, length, &t, &s, &ka);
    claim_table(slot, &ka, false);
}

/* The engine's own frame: an item of the outbox goes to the stack as it is. */
static void errand(struct input *in, uint8_t *bytes) {
    union {
        struct roost_errand errand;
        uint8_t bytes[ROOST_FRAME_MAX];
    } frame = {.errand = {.ethertype = 0xb588}};
    uint32_t how = take(in, 1);
    struct roost_outbox_item *item = &items[probing.cursor = take(in, 1) % ROOST_OUTBOX_ITEMS];
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
    claim(o.length == item->length && !memcmp(o.frame, item->data, o.length), "an item went in with other bytes");
    claim(o.action == XDP_PASS, "verdict %d for an item", o.action);
}

/* Some probes are offered, of any bytes; what they are made of, the engine's tests say. */
static void offer_probes(struct input *in) {
    static const uint32_t lengths[] = {40, 52, 60, 72};
    uint32_t how = take(in, 1), count = take(in, 1) % 8, first = how & 1 ? ROOST_PROBES / 2 : 0;
    set_routes(!(how & 2), how & 4 ? 3 : 9);
    probing = (struct roost_runs){
        .next = first, .count = first + count, .now_s = 77, .interfaces = how & 8 ? 2 : 1, .ifindex = {3, 9}};
    for (uint32_t i = first; i < first + count; i++) {
        size_t got;
        uint32_t what = take(in, 1);
        const uint8_t *bytes = take_bytes(in, ROOST_PROBE_MAX, &got);
        memset(&probe[i], 0, sizeof(probe[i]));
        memcpy(probe[i].packet, bytes, got);
        probe[i].length = what & 8 ? what << 1 : lengths[what & 3];
        probe[i].state = what & 4 ? ROOST_PROBE_TAKEN : ROOST_PROBE_WAITS;
        if (probe[i].length >= 40 && probe[i].length <= ROOST_PROBE_MAX)
            probe[i].length = lengths[what & 3];
    }
}

/* The engine's own frame for them, which is as its last receiver left it. */
static void probe_live(struct input *in) {
    uint8_t bytes[ROOST_PROBE_FRAME] = {0};
    size_t got;
    const uint8_t *left = take_bytes(in, sizeof(bytes), &got);
    memcpy(bytes, left, got);
    struct outcome o = run_from(bytes, sizeof(bytes), ROOST_PROBE_IFINDEX);
    claim_next_probe(&o, ROOST_PROBE_IFINDEX, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t frame[FRAME_MAX];
    struct input in = {data, data + size};
    world_fill(&world, take(&in, 1) & 1);
    give_maps();
    memset(&budget, 0, sizeof(budget));
    host.now_ns = 3600ull * 1000000000;
    host.random = 7;
    host.ring_full = host.no_tail_room = host.no_head_room = false;
    host.sockets = 0;
    set_routes(true, 3);
    memset(&rate, 0, sizeof(rate));
    memset(&cookies, 0, sizeof(cookies));
    memset(&gate, 0, sizeof(gate));
    memset(&sockets, 0, sizeof(sockets));
    memset(&probing, 0, sizeof(probing));
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
            i = (int)take(&in, 1);
            if (i & 128) /* it ends */
                roost_cookie_ends(&cookies, world_hash(&world, &world.key[(i & 127) % CONNECTIONS]),
                                  (__u32)(host.now_ns / 1000000));
            world_remove(&world, (i & 127) % CONNECTIONS);
            break;
        case DO_TIME:
            host.now_ns += (uint64_t)take(&in, 2) * 1000000;
            break;
        case DO_TROUBLE:
            i = (int)take(&in, 1);
            host.ring_full = i & 1;
            host.no_tail_room = i & 2;
            host.no_head_room = i & 4;
            set_routes(!(i & 8), i & 64 ? INNER_DEVICE : i & 32 ? VLAN_DEVICE : i & 16 ? 9 : 3);
            break;
        case DO_ERRAND:
            errand(&in, frame);
            break;
        case DO_GATE:
            open_gate(take(&in, 1));
            break;
        case DO_SOCKETS:
            host.sockets = take(&in, 1);
            break;
        case DO_OFFER_PROBES:
            offer_probes(&in);
            break;
        case DO_PROBE_LIVE:
            probe_live(&in);
            break;
        case DO_FILTER:
            world_filter(&world, &in);
            break;
        }
    }
    host_forget_records();
    return 0;
}
