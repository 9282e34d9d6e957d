// The interpreter of one threadblock: the same source for a CTA of a GPU and for threads of a CPU.
//
// A threadblock runs its steps in order on one tile of every chunk, then on the next. A connection is a queue of slots in the
// receiver's memory. Simple: a transfer takes `slices` slots, one after the other; the sender counts up `tail` once a slice is
// written, the receiver counts up `head`, which lies in the sender's memory, once it has read it. LL and LL128: a transfer takes one
// slot, and every line carries the number of its transfer as a flag, so that no tail is needed. Counts never go back, not even
// between launches. A step that is waited for publishes how far its threadblock is.
#pragma once

#include "numbers.h"

#ifdef SYNTH_DTYPE
#define DTYPE_OF(p) SYNTH_DTYPE
#define OP_OF(p) SYNTH_OP
#define PROTOCOL_OF(p) SYNTH_PROTOCOL
#else
#define DTYPE_OF(p) int((p).dtype)
#define OP_OF(p) int((p).op)
#define PROTOCOL_OF(p) int((p).protocol)
#endif

enum { WORD = 8, PACK = 16, LAUNCH_SHIFT = 40, UNROLL = 8 };

struct alignas(16) Pack { u64 one, other; };

// What a lane waits for: a flag that counts up to `goal`, or a line that bears it.
struct Waiting {
  int kind, index;
  const u64* address;
  u64 goal;

  SYNTH_FN bool over(u64 seen) const {
    if (kind == KIND_LINE) return (seen >> 32) == goal;
    return kind == KIND_LINE128 ? seen == goal : seen >= goal;
  }
  SYNTH_FN void tell(Lane& lane) const {
    i64* record = (i64*)lane.params->stuck + i64(lane.block) * STUCK_COLUMNS;
    if (!lane.claims(record + STUCK_KIND, kind)) return;
    record[STUCK_STEP] = lane.step;
    record[STUCK_TILE] = lane.tile;
    record[STUCK_INDEX] = index;
    record[STUCK_GOAL] = i64(goal);
    record[STUCK_SEEN] = i64(load_acquire(address));
  }
};

template <class Ready> SYNTH_FN bool wait_until(Lane& lane, const Waiting& waiting, Ready ready) {
  for (u32 polls = 0; !ready(); ++polls)
    if (lane.give_up(polls, waiting)) {
      waiting.tell(lane);
      return false;
    }
  lane.resume();
  return true;
}

SYNTH_FN bool wait_for_count(Lane& lane, int kind, int index, const u64* at, u64 goal) {
  Waiting waiting = {kind, index, at, goal};
  return wait_until(lane, waiting, [=] { return load_acquire(at) >= goal; });
}

// One end of a connection: how many slots it has gone through, and which is next.
struct End {
  int index;
  char* slots;
  u64 *tail, *head;
  u64 count;
  int next;

  SYNTH_FN void open(const Params& p, int connection, bool sends) {
    index = connection;
    if (index < 0) return;
    const u64* row = (const u64*)p.connections + i64(index) * CONNECTION_COLUMNS;
    slots = (char*)row[CONNECTION_SLOTS];
    tail = (u64*)row[CONNECTION_TAIL];
    head = (u64*)row[CONNECTION_HEAD];
    count = load_acquire(sends ? tail : head);
    next = int(count % u64(p.slots));
  }
  SYNTH_FN char* slot(const Params& p, int ahead) const {
    int at = next + ahead;
    return slots + i64(at >= p.slots ? at - int(p.slots) : at) * p.slot_bytes;
  }
  SYNTH_FN void pass(const Params& p, int number) {
    count += number;
    next += number;
    if (next >= p.slots) next -= int(p.slots);
  }
};

// Where a chunk's present tile begins, and how many of its bytes exist: none or less beyond a short chunk's end.
struct Place {
  char* at;
  i64 have;
};

struct Span {  // the tile of a transfer's chunks
  i64 offset;  // of the tile in its chunk, in elements
  i64 bytes;   // of one chunk
  int chunks;
};

SYNTH_FN Place place_of(const Params& p, int rank, int buffer, int chunk, const Span& span) {
  i64 start, length;
  if (buffer == BUFFER_SCRATCH) {
    start = chunk * p.scratch_stride;
    length = p.chunk;
  } else {
    u32 per_share = u32(p.per_share), share = u32(chunk) / per_share;
    i64 within = i64(u32(chunk) - share * per_share) * p.chunk;
    if (within > p.share) within = p.share;
    start = share * p.share + within;
    length = p.share - within < p.chunk ? p.share - within : p.chunk;
  }
  i64 item = item_bytes(DTYPE_OF(p));
  const char* base = (const char*)((const u64*)p.buffers)[rank * 3 + buffer];
  Place place = {(char*)base + (start + span.offset) * item, (length - span.offset) * item};
  if (place.have > span.bytes) place.have = span.bytes;
  return place;
}

SYNTH_FN u64 load_items(const char* at, i64 bytes, int item) {
  u64 value = 0;
  for (i64 k = 0; k < bytes; k += item) {
    u64 part = item == 8   ? *(const u64*)(at + k)
               : item == 4 ? *(const u32*)(at + k)
               : item == 2 ? *(const u16*)(at + k)
                           : *(const unsigned char*)(at + k);
    value |= part << (8 * k);
  }
  return value;
}
SYNTH_FN void store_items(char* at, i64 bytes, int item, u64 value) {
  for (i64 k = 0; k < bytes; k += item) {
    u64 part = value >> (8 * k);
    if (item == 8) *(u64*)(at + k) = part;
    else if (item == 4) *(u32*)(at + k) = u32(part);
    else if (item == 2) *(u16*)(at + k) = u16(part);
    else *(unsigned char*)(at + k) = (unsigned char)part;
  }
}

// Eight bytes at `offset` of a place; what lies beyond its end reads as 0 and is not written.
SYNTH_FN u64 load_word(const Params& p, const Place& place, i64 offset) {
  const char* at = place.at + offset;
  i64 left = place.have - offset;
  if (left >= WORD && ((u64)at & (WORD - 1)) == 0) return *(const u64*)at;
  return load_items(at, left < WORD ? left : i64(WORD), item_bytes(DTYPE_OF(p)));
}
SYNTH_FN void store_word(const Params& p, const Place& place, i64 offset, u64 value) {
  char* at = place.at + offset;
  i64 left = place.have - offset;
  if (left >= WORD && ((u64)at & (WORD - 1)) == 0) *(u64*)at = value;
  else store_items(at, left < WORD ? left : i64(WORD), item_bytes(DTYPE_OF(p)), value);
}
SYNTH_FN bool whole(const Place& place, i64 bytes) { return place.have >= bytes && ((u64)place.at & (PACK - 1)) == 0; }
SYNTH_FN Pack load_pack(const Params& p, const Place& place, i64 offset) {
  const char* at = place.at + offset;
  if (place.have - offset >= PACK && ((u64)at & (PACK - 1)) == 0) return *(const Pack*)at;
  return {load_word(p, place, offset), load_word(p, place, offset + WORD)};
}
SYNTH_FN void store_pack(const Params& p, const Place& place, i64 offset, const Pack& value) {
  char* at = place.at + offset;
  if (place.have - offset >= PACK && ((u64)at & (PACK - 1)) == 0) {
    *(Pack*)at = value;
    return;
  }
  store_word(p, place, offset, value.one);
  store_word(p, place, offset + WORD, value.other);
}
SYNTH_FN Pack combine_packs(const Params& p, const Pack& x, const Pack& y) {
  int dtype = DTYPE_OF(p), op = OP_OF(p);
  return {combine(dtype, op, x.one, y.one), combine(dtype, op, x.other, y.other)};
}

struct Step {
  int type, rank, src_buffer, src, dst_buffer, dst, sources, first_source;

  SYNTH_FN bool sends() const {
    return type == TYPE_S || type == TYPE_RCS || type == TYPE_RRS || type == TYPE_RRCS;
  }
  SYNTH_FN bool receives() const {
    return type == TYPE_R || type == TYPE_RCS || type == TYPE_RRS || type == TYPE_RRC || type == TYPE_RRCS;
  }
  SYNTH_FN bool reads() const { return type != TYPE_R && type != TYPE_RCS; }
  SYNTH_FN bool writes() const { return type != TYPE_S && type != TYPE_RRS; }
  SYNTH_FN Place source(const Params& p, int chunk, const Span& span) const {
    return place_of(p, rank, src_buffer, src + chunk, span);
  }
  SYNTH_FN Place target(const Params& p, int chunk, const Span& span) const {
    return place_of(p, rank, dst_buffer, dst + chunk, span);
  }
};

// Units of a transfer in turn, chunk after chunk, as a lane comes to them: no division for each.
struct Walk {
  int chunk, ahead_chunk;
  i64 unit, ahead_unit, units;

  SYNTH_FN Walk(i64 first, i64 stride, i64 per_chunk) : units(per_chunk) {
    u32 each = u32(per_chunk);  // no transfer has so many units that they need 64 bits, and division is slow
    chunk = int(u32(first) / each);
    unit = u32(first) - u32(chunk) * each;
    ahead_chunk = int(u32(stride) / each);
    ahead_unit = u32(stride) - u32(ahead_chunk) * each;
  }
  // Whether the chunk changed.
  SYNTH_FN bool advance() {
    int before = chunk;
    chunk += ahead_chunk;
    unit += ahead_unit;
    if (unit >= units) {
      unit -= units;
      ++chunk;
    }
    return chunk != before;
  }
};

class Interpreter {
 public:
  SYNTH_FN Interpreter(const Params& params, Lane& own) : p(params), lane(own) {}

  SYNTH_FN void run() {
    const i32* row = (const i32*)p.blocks + i64(lane.block) * BLOCK_COLUMNS;
    send.open(p, row[BLOCK_SEND], true);
    recv.open(p, row[BLOCK_RECV], false);
    rank = row[BLOCK_RANK];
    u64* launches = (u64*)p.launches + lane.block;
    base = *launches << LAUNCH_SHIFT;
    lane.barrier();
    bool well = true;
    for (lane.tile = 0; well && lane.tile < p.tiles; ++lane.tile)
      for (int k = 0; well && k < row[BLOCK_NUM_STEPS]; ++k)
        well = run_step(row, (const i32*)p.steps + i64(row[BLOCK_FIRST_STEP] + k) * STEP_COLUMNS, k);
    if (!well || lane.id) return;
    *launches += 1;
    if (PROTOCOL_OF(p) == PROTOCOL_SIMPLE) return;
    if (send.index >= 0) store_release(send.tail, send.count);
  }

 private:
  const Params& p;
  Lane& lane;
  End send, recv;
  int rank;
  u64 base;

  SYNTH_FN u64* progress_of(int block) const { return (u64*)((char*)p.progress + i64(block) * FLAG_BYTES); }

  SYNTH_FN bool run_step(const i32* block, const i32* row, int number) {
    lane.step = row[STEP_NUMBER];
    if (row[STEP_NUM_WAITS] && !wait_for_flags(row)) return false;
    Step step = {row[STEP_TYPE],       rank,
                 row[STEP_SRC_BUFFER], row[STEP_SRC_OFFSET],
                 row[STEP_DST_BUFFER], row[STEP_DST_OFFSET],
                 row[STEP_NUM_SOURCES], row[STEP_FIRST_SOURCE]};
    i64 offset = lane.tile * p.tile, left = p.chunk - offset, item = item_bytes(DTYPE_OF(p));
    Span span = {offset, (left < p.tile ? left : p.tile) * item, row[STEP_COUNT]};
    if (!step.sends() && !step.receives()) {
      if (span.chunks) move_here(step, span);
      lane.barrier();
    } else {
      for (int first = 0; first < row[STEP_COUNT]; first += int(p.most)) {
        span.chunks = row[STEP_COUNT] - first < p.most ? row[STEP_COUNT] - first : int(p.most);
        if (!transfer(step, span)) return false;
        step.src += span.chunks;
        step.dst += span.chunks;
      }
    }
    if (row[STEP_PUBLISHES] && lane.id == 0)
      store_release_near(progress_of(lane.block), base + u64(lane.tile) * block[BLOCK_NUM_STEPS] + number + 1);
    return true;
  }

  SYNTH_FN bool wait_for_flags(const i32* row) {
    bool well = true;
    for (int k = lane.id; well && k < row[STEP_NUM_WAITS]; k += lane.count) {
      const i32* wait = (const i32*)p.waits + i64(row[STEP_FIRST_WAIT] + k) * WAIT_COLUMNS;
      int block = wait[WAIT_BLOCK];
      int steps = ((const i32*)p.blocks)[i64(block) * BLOCK_COLUMNS + BLOCK_NUM_STEPS];
      u64 goal = base + u64(lane.tile) * steps + wait[WAIT_STEPS];
      const u64* at = progress_of(block);
      Waiting waiting = {KIND_FLAG, block, at, goal};
      well = wait_until(lane, waiting, [=] { return load_acquire_near(at) >= goal; });
    }
    return !lane.barrier_or(!well);
  }

  SYNTH_FN bool transfer(const Step& step, const Span& span) {
    switch (PROTOCOL_OF(p)) {
      case PROTOCOL_LL: return move_lines(step, span);
      case PROTOCOL_LL128: return move_lines128(step, span);
      default: return move_slices(step, span);
    }
  }

  // Copies and reductions within the rank.
  SYNTH_FN void move_here(const Step& step, const Span& span) {
    i64 packs = (span.bytes + PACK - 1) / PACK;
    Walk walk(lane.id, lane.count, packs);
    while (walk.chunk < span.chunks) {
      Place to = step.target(p, walk.chunk, span), from = step.source(p, walk.chunk, span);
      if (step.type == TYPE_CPY && span.chunks == 1 && whole(to, span.bytes) && whole(from, span.bytes)) {
        copy_whole(to.at, from.at, span.bytes);
        return;
      }
      do {
        i64 at = walk.unit * PACK;
        if (step.type == TYPE_CPY) store_pack(p, to, at, load_pack(p, from, at));
        else store_pack(p, to, at, sum_of(step, span, walk.chunk, from, load_pack(p, to, at), at));
      } while (!walk.advance());
    }
  }

  // Several sources in one go, in the order of the runtimes' interpreters: Simple adds its own value last, the others first.
  SYNTH_FN Pack sum_of(const Step& step, const Span& span, int chunk, const Place& from, const Pack& own, i64 at) {
    if (step.sources == 1) return combine_packs(p, own, load_pack(p, from, at));
    bool own_last = PROTOCOL_OF(p) == PROTOCOL_SIMPLE;
    Pack sum = own_last ? load_pack(p, from, at) : own;
    for (int k = own_last; k < step.sources; ++k) {
      int first = ((const i32*)p.sources)[step.first_source + k];
      sum = combine_packs(p, sum, load_pack(p, place_of(p, rank, step.src_buffer, first + chunk, span), at));
    }
    return own_last ? combine_packs(p, own, sum) : sum;
  }

  SYNTH_FN void copy_whole(char* to, const char* from, i64 bytes) {
    i64 packs = bytes / PACK, k = lane.id;
    for (; k + i64(UNROLL - 1) * lane.count < packs; k += i64(UNROLL) * lane.count) {
      Pack held[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) held[u] = ((const Pack*)from)[k + i64(u) * lane.count];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) ((Pack*)to)[k + i64(u) * lane.count] = held[u];
    }
    for (; k < packs; k += lane.count) ((Pack*)to)[k] = ((const Pack*)from)[k];
    Place tail_to = {to, bytes}, tail_from = {(char*)from, bytes};
    if (packs * PACK < bytes && lane.id == 0) store_pack(p, tail_to, packs * PACK, load_pack(p, tail_from, packs * PACK));
  }

  // Simple: slice after slice, so that the receiver of a slice passes it on while the next is under way. Empty slices cost nothing
  // but keep their slots, so that a connection holds as many transfers whatever their size.
  SYNTH_FN bool move_slices(const Step& step, const Span& span) {
    i64 per_chunk = (span.bytes + PACK - 1) / PACK, packs = per_chunk * span.chunks;
    i64 slice = u32(packs + p.slices - 1) / u32(p.slices);
    if (slice < p.smallest_slice) slice = p.smallest_slice;
    int k = 0;
    for (i64 begin = 0; begin < packs; begin += slice, ++k) {
      i64 end = begin + slice < packs ? begin + slice : packs;
      int done = end == packs ? int(p.slices) : k + 1;
      if (!wait_for_slice(step, done)) return false;
      if (!move_whole(step, span, begin, end, k)) move_packs(step, span, begin, end, k, per_chunk);
      lane.barrier();
      if (lane.id == 0) {
        if (step.sends()) store_release(send.tail, send.count + done);
        if (step.receives()) store_release(recv.head, recv.count + done);
      }
    }
    if (step.sends()) send.pass(p, int(p.slices));
    if (step.receives()) recv.pass(p, int(p.slices));
    return true;
  }

  SYNTH_FN bool wait_for_slice(const Step& step, int done) {
    bool well = true;
    if (step.receives() && lane.id == 0)
      well = wait_for_count(lane, KIND_DATA, recv.index, recv.tail, recv.count + done);
    if (step.sends() && lane.id == (lane.count > 32 ? 32 : 0) && well) well = wait_for_room(done);
    return !lane.barrier_or(!well);
  }

  SYNTH_FN bool wait_for_room(int taken) {
    u64 full = send.count + taken;
    u64 goal = full > u64(p.slots) ? full - u64(p.slots) : 0;
    return wait_for_count(lane, KIND_ROOM, send.index, send.head, goal);
  }

  // The usual case of large buffers: one chunk, aligned and all there. False where it is not.
  SYNTH_FN bool move_whole(const Step& step, const Span& span, i64 begin, i64 end, int k) {
    if (span.chunks != 1 || span.bytes % PACK) return false;
    Place from = {nullptr, 0}, to = {nullptr, 0};
    if (step.reads()) from = step.source(p, 0, span);
    if (step.writes()) to = step.target(p, 0, span);
    if ((step.reads() && !whole(from, span.bytes)) || (step.writes() && !whole(to, span.bytes))) return false;
    const Pack* in = step.receives() ? (const Pack*)recv.slot(p, k) : nullptr;
    const Pack* mine = step.reads() ? (const Pack*)from.at + begin : nullptr;
    Pack* kept = step.writes() ? (Pack*)to.at + begin : nullptr;
    Pack* out = step.sends() ? (Pack*)send.slot(p, k) : nullptr;
    switch (step.type) {
      case TYPE_S: stream<false, true, false, true>(in, mine, kept, out, end - begin); break;
      case TYPE_R: stream<true, false, true, false>(in, mine, kept, out, end - begin); break;
      case TYPE_RCS: stream<true, false, true, true>(in, mine, kept, out, end - begin); break;
      case TYPE_RRS: stream<true, true, false, true>(in, mine, kept, out, end - begin); break;
      case TYPE_RRC: stream<true, true, true, false>(in, mine, kept, out, end - begin); break;
      default: stream<true, true, true, true>(in, mine, kept, out, end - begin);
    }
    return true;
  }

  // What comes in, combined with what is here where both are there, is kept, passed on, or both. One function for each kind of step:
  // with less to remember, more packs are under way at a time.
  template <bool IN, bool MINE, bool KEPT, bool OUT>
  SYNTH_FN void stream(const Pack* in, const Pack* mine, Pack* kept, Pack* out, i64 packs) {
    i64 at = lane.id;
    for (; at + i64(UNROLL - 1) * lane.count < packs; at += i64(UNROLL) * lane.count)
      stream_some<UNROLL, IN, MINE, KEPT, OUT>(in, mine, kept, out, at);
    for (; at < packs; at += lane.count) stream_some<1, IN, MINE, KEPT, OUT>(in, mine, kept, out, at);
  }

  template <int N, bool IN, bool MINE, bool KEPT, bool OUT>
  SYNTH_FN void stream_some(const Pack* in, const Pack* mine, Pack* kept, Pack* out, i64 at) {
    Pack held[N], own[N];
#pragma unroll
    for (int u = 0; u < N; ++u) {
      if (IN) held[u] = in[at + i64(u) * lane.count];
      if (MINE) own[u] = mine[at + i64(u) * lane.count];
    }
#pragma unroll
    for (int u = 0; u < N; ++u) {
      if (MINE) held[u] = IN ? combine_packs(p, own[u], held[u]) : own[u];
      if (KEPT) kept[at + i64(u) * lane.count] = held[u];
      if (OUT) out[at + i64(u) * lane.count] = held[u];
    }
  }

  SYNTH_FN void move_packs(const Step& step, const Span& span, i64 begin, i64 end, int k, i64 per_chunk) {
    const Pack* in = step.receives() ? (const Pack*)recv.slot(p, k) : nullptr;
    Pack* out = step.sends() ? (Pack*)send.slot(p, k) : nullptr;
    Walk walk(begin + lane.id, lane.count, per_chunk);
    Place from = {nullptr, 0}, to = {nullptr, 0};
    bool fresh = true;
    for (i64 at = begin + lane.id; at < end; at += lane.count, fresh = walk.advance()) {
      if (fresh && step.reads()) from = step.source(p, walk.chunk, span);
      if (fresh && step.writes()) to = step.target(p, walk.chunk, span);
      Pack value = {0, 0};
      if (in) value = in[at - begin];
      if (step.reads()) {
        Pack own = load_pack(p, from, walk.unit * PACK);
        value = in ? combine_packs(p, own, value) : own;
      }
      if (step.writes()) store_pack(p, to, walk.unit * PACK, value);
      if (out) out[at - begin] = value;
    }
  }

  // LL: eight bytes of data travel in two words of which each carries four of them and the number of the transfer. Several lines of
  // a lane are under way at a time: memory answers late, and connections hold what has not been looked at yet.
  SYNTH_FN bool move_lines(const Step& step, const Span& span) {
    i64 per_chunk = (span.bytes + WORD - 1) / WORD, words = per_chunk * span.chunks;
    if (step.sends() && !wait_for_slot()) return false;
    const char* in = step.receives() ? recv.slot(p, 0) : nullptr;
    char* out = step.sends() ? send.slot(p, 0) : nullptr;
    u64 own_flag = step.sends() ? flag32(send.count) << 32 : 0;
    Ends ends;
    bool well = true;
    for (i64 first = lane.id; well && first < words; first += i64(AHEAD) * lane.count) {
      u64 value[AHEAD] = {}, message[AHEAD] = {};
#pragma unroll
      for (int n = 0; n < AHEAD; ++n) {
        i64 at = first + i64(n) * lane.count;
        if (step.reads() && at < words) value[n] = own_word(ends, step, span, at, per_chunk);
      }
      well = !in || read_lines((const u64*)in, first, words, message);
      if (!well) break;
#pragma unroll
      for (int n = 0; n < AHEAD; ++n) {
        i64 at = first + i64(n) * lane.count;
        if (at >= words) break;
        if (in) value[n] = step.reads() ? combine(DTYPE_OF(p), OP_OF(p), value[n], message[n]) : message[n];
        if (out) store_pair((u64*)(out + at * PACK), own_flag | u32(value[n]), own_flag | (value[n] >> 32));
        if (step.writes()) keep_word(ends, step, span, at, per_chunk, value[n]);
      }
    }
    return end_lines(step, well);
  }

  // The lane's next lines: all are asked for, and what is not there yet is waited for in turn.
  SYNTH_FN bool read_lines(const u64* slot, i64 first, i64 words, u64* message) {
    u64 expected = flag32(recv.count), low[AHEAD], high[AHEAD];
#pragma unroll
    for (int n = 0; n < AHEAD; ++n)
      if (first + i64(n) * lane.count < words) load_pair(slot + 2 * (first + i64(n) * lane.count), low[n], high[n]);
    bool well = true;
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) {
      if (!well || first + i64(n) * lane.count >= words) break;
      const u64* line = slot + 2 * (first + i64(n) * lane.count);
      if ((low[n] >> 32) != expected || (high[n] >> 32) != expected) well = read_line(line, expected, low[n], high[n]);
      message[n] = u32(low[n]) | high[n] << 32;
    }
    return well;
  }

  SYNTH_FN bool read_line(const u64* line, u64 expected, u64& low, u64& high) {
    Waiting waiting = {KIND_LINE, recv.index, line, expected};
    return wait_until(lane, waiting, [&] {
      load_pair(line, low, high);
      return (low >> 32) == expected && (high >> 32) == expected;
    });
  }

  // LL128: fifteen words of data and one flag in a line of 128 bytes that becomes visible whole.
  SYNTH_FN bool move_lines128(const Step& step, const Span& span) {
    enum { HELD = 16 / LINE_LANES };
    i64 per_chunk = (span.bytes + WORD - 1) / WORD, words = per_chunk * span.chunks;
    if (step.sends() && !wait_for_slot()) return false;
    const char* in = step.receives() ? recv.slot(p, 0) : nullptr;
    char* out = step.sends() ? send.slot(p, 0) : nullptr;
    int part = lane.id % LINE_LANES, groups = lane.count / LINE_LANES;
    i64 lines = (words + LINE_WORDS - 1) / LINE_WORDS;
    Ends ends;
    bool well = true;
    // Whole warps stay together to the end, lanes beyond the last line included.
    for (i64 first = lane.id / LINE_LANES; well && first - lane.id / LINE_LANES < lines; first += i64(AHEAD128) * groups) {
      u64 value[AHEAD128][HELD] = {}, message[AHEAD128][HELD] = {};
      if (step.reads())
        each_word<HELD>(first, groups, part, words, [&](int n, int k, i64 at) {
          value[n][k] = own_word(ends, step, span, at, per_chunk);
        });
      if (in) {
        auto waiting = [&](i64 line) {
          const u64* flag = (const u64*)(in + line * LINE_BYTES) + LINE_WORDS;
          return Waiting{KIND_LINE128, recv.index, line < lines ? flag : recv.head, recv.count + 1};
        };
        well = lane.load_lines(in, first, groups, lines, part, recv.count + 1, message, waiting);
        if (!well) break;
        each_word<HELD>(first, groups, part, words, [&](int n, int k, i64) {
          value[n][k] = step.reads() ? combine(DTYPE_OF(p), OP_OF(p), value[n][k], message[n][k]) : message[n][k];
        });
      }
      if (step.writes())
        each_word<HELD>(first, groups, part, words, [&](int n, int k, i64 at) {
          keep_word(ends, step, span, at, per_chunk, value[n][k]);
        });
      lane.together();
#pragma unroll
      for (int n = 0; n < AHEAD128; ++n) {
        i64 line = first + i64(n) * groups;
        if (out && line < lines) lane.store_line(out + line * LINE_BYTES, part, send.count + 1, value[n]);
      }
    }
    return end_lines(step, well);
  }

  // The words of the lane's part of its next lines: `body(line, word of it, place in the transfer)`.
  template <int HELD, class Body>
  SYNTH_FN void each_word(i64 first, int groups, int part, i64 words, Body body) {
#pragma unroll
    for (int n = 0; n < AHEAD128; ++n) {
#pragma unroll
      for (int k = 0; k < HELD; ++k) {
        i64 at = (first + i64(n) * groups) * LINE_WORDS + part * HELD + k;
        if (part * HELD + k < LINE_WORDS && at < words) body(n, k, at);
      }
    }
  }

  // Where the chunk that a lane is at lies at this end: looked up anew only where another one begins.
  struct Ends {
    int chunk = -1;
    Place from = {nullptr, 0}, to = {nullptr, 0};
  };

  // The bytes between a word's chunk's begin and it.
  SYNTH_FN i64 seek(Ends& ends, const Step& step, const Span& span, i64 at, i64 per_chunk) {
    int chunk = span.chunks == 1 ? 0 : int(u32(at) / u32(per_chunk));
    if (chunk != ends.chunk) {
      ends.chunk = chunk;
      if (step.reads()) ends.from = step.source(p, chunk, span);
      if (step.writes()) ends.to = step.target(p, chunk, span);
    }
    return (at - chunk * per_chunk) * WORD;
  }
  SYNTH_FN u64 own_word(Ends& ends, const Step& step, const Span& span, i64 at, i64 per_chunk) {
    i64 offset = seek(ends, step, span, at, per_chunk);
    return load_word(p, ends.from, offset);
  }
  SYNTH_FN void keep_word(Ends& ends, const Step& step, const Span& span, i64 at, i64 per_chunk, u64 value) {
    i64 offset = seek(ends, step, span, at, per_chunk);
    store_word(p, ends.to, offset, value);
  }

  SYNTH_FN bool wait_for_slot() {
    bool well = true;
    if (lane.id == 0) well = wait_for_room(1);
    return !lane.barrier_or(!well);
  }

  SYNTH_FN bool end_lines(const Step& step, bool well) {
    if (lane.barrier_or(!well)) return false;
    if (step.receives()) {
      if (lane.id == 0) store_release(recv.head, recv.count + 1);
      recv.pass(p, 1);
    }
    if (step.sends()) send.pass(p, 1);
    return true;
  }

  // Never 0, which is what fresh memory holds.
  SYNTH_FN static u64 flag32(u64 count) { return u32(count % 0xffffffffull) + 1; }
};

// `avg`: every rank's output, divided once the sums are there.
SYNTH_FN void divide_outputs(const Params& p, int rank, i64 first, i64 stride) {
  int dtype = DTYPE_OF(p);
  char* output = (char*)((const u64*)p.buffers)[rank * 3 + BUFFER_OUTPUT];
  for (i64 k = first; k < ((const i64*)p.outputs)[rank]; k += stride)
    divide(dtype, output + k * item_bytes(dtype), p.num_ranks);
}
