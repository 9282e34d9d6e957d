// What the interpreter needs of a GPU. PTX is written out so that nothing but the compiler itself has to be installed; the memory
// model that it relies on is that of the PTX manual (acquire and release patterns, barriers, scopes).
#pragma once

#define SYNTH_FN __device__ __forceinline__
enum {
  LINE_LANES = 8,  // threads that move a line of LL128 together, in one instruction of their warp
  AHEAD = 4,       // lines of LL that a thread asks for before it looks at the first
  AHEAD128 = 2,    // and lines of LL128 that it has a part of
};

SYNTH_FN float float_of_bits(unsigned x) { return __uint_as_float(x); }
SYNTH_FN unsigned bits_of_float(float x) { return __float_as_uint(x); }
SYNTH_FN float half_to_float(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
SYNTH_FN unsigned short float_to_half(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

typedef unsigned long long Flag;

SYNTH_FN Flag load_acquire(const Flag* at) {
  Flag value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
SYNTH_FN void store_release(Flag* at, Flag value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
// Within one GPU.
SYNTH_FN Flag load_acquire_near(const Flag* at) {
  Flag value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
SYNTH_FN void store_release_near(Flag* at, Flag value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Two words of eight bytes, each whole: a vector of relaxed accesses is one for every element.
SYNTH_FN void load_pair(const Flag* at, Flag& one, Flag& other) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(one), "=l"(other) : "l"(at) : "memory");
}
SYNTH_FN void store_pair(Flag* at, Flag one, Flag other) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(one), "l"(other) : "memory");
}


struct Waiting;

// One thread of a threadblock.
struct Lane {
  int id, count, step;
  long long tile;
  const Params* params;
  int block;

  SYNTH_FN void barrier() { __syncthreads(); }
  SYNTH_FN bool barrier_or(bool value) { return __syncthreads_or(value); }
  SYNTH_FN bool aborted() const { return load_acquire((const Flag*)params->abort) != 0; }
  // Whether to stop waiting: looked up now and then, for it lies in the host's memory.
  SYNTH_FN bool give_up(unsigned polls, const Waiting&) { return (polls & 1023) == 1023 && aborted(); }
  SYNTH_FN void resume() {}
  // A line is whole only if its threads move it in one instruction.
  SYNTH_FN void together() { __syncwarp(); }
  // Whether this thread is the one that says what its threadblock waited for.
  SYNTH_FN bool claims(long long* kind, int value) {
    return atomicCAS((Flag*)kind, Flag(0), Flag(value)) == 0;
  }

  // A sixteenth of a line for each half of a lane. The warp's accesses of one line are one transaction of 128 bytes, which
  // GPUs since Volta carry out whole; that, and not the memory model, is what LL128 relies on.
  // The lane's part of AHEAD128 lines, `groups` lines apart; `lines` is where they end, `why(line)` what is waited for.
  template <class Why>
  SYNTH_FN bool load_lines(const char* slot, long long first, int groups, long long lines, int part, Flag flag,
                           Flag (*words)[16 / LINE_LANES], const Why& why) {
    together();
    for (unsigned polls = 0;; ++polls) {
      int missing = -1;
#pragma unroll
      for (int n = 0; n < AHEAD128; ++n) {
        long long line = first + (long long)n * groups;
        const Flag* at = (const Flag*)(slot + line * LINE_BYTES) + 2 * part;
        if (line < lines)
          asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(words[n][0]), "=l"(words[n][1]) : "l"(at) : "memory");
      }
#pragma unroll
      for (int n = AHEAD128 - 1; n >= 0; --n)
        if (first + (long long)n * groups < lines && part == LINE_LANES - 1 && words[n][1] != flag) missing = n;
      if (!__any_sync(0xffffffffu, missing >= 0)) return true;
      auto waiting = why(first + (long long)(missing < 0 ? 0 : missing) * groups);
      if (__any_sync(0xffffffffu, give_up(polls, waiting))) {
        waiting.tell(*this);
        return false;
      }
    }
  }
  SYNTH_FN void store_line(char* line, int part, Flag flag, const Flag* words) {
    Flag last = part == LINE_LANES - 1 ? flag : words[1];
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"((Flag*)line + 2 * part), "l"(words[0]), "l"(last)
                 : "memory");
  }
};
