// What the interpreter needs of a CPU: one thread for each lane of each threadblock, and the compiler's atomics. Waits that last are
// written down, so that host.cpp can tell a deadlock for certain: everybody waits, and nobody's wait is over.
#pragma once

#include <sched.h>
#include <time.h>

#define SYNTH_FN inline
enum { LINE_LANES = 1, AHEAD = 2, AHEAD128 = 2 };

inline float float_of_bits(unsigned x) {
  float y;
  __builtin_memcpy(&y, &x, 4);
  return y;
}
inline unsigned bits_of_float(float x) {
  unsigned y;
  __builtin_memcpy(&y, &x, 4);
  return y;
}
inline float half_to_float(unsigned short x) {
  unsigned sign = unsigned(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 1023;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float tiny = float(fraction) * (1.0f / (1 << 24));
  return sign ? -tiny : tiny;
}
inline unsigned short float_to_half(float x) {
  unsigned bits = bits_of_float(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (unsigned short)(sign | 0x7e00);
  if (size >= 0x477ff000) return (unsigned short)(sign | 0x7c00);  // 65520 and more round to infinity
  if (size < 0x38800000) {                                         // below 2^-14: steps of 2^-24, rounded by adding 1/2
    float shifted = float_of_bits(size) + 0.5f;
    return (unsigned short)(sign | (bits_of_float(shifted) - bits_of_float(0.5f)));
  }
  unsigned rounded = size + 0xfff + (size >> 13 & 1);
  return (unsigned short)(sign | ((rounded >> 13) - (112 << 10)));
}

typedef unsigned long long Flag;

inline Flag load_acquire(const Flag* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release(Flag* at, Flag value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline Flag load_acquire_near(const Flag* at) { return load_acquire(at); }
inline void store_release_near(Flag* at, Flag value) { store_release(at, value); }
inline void load_pair(const Flag* at, Flag& one, Flag& other) {
  one = __atomic_load_n(at, __ATOMIC_RELAXED);
  other = __atomic_load_n(at + 1, __ATOMIC_RELAXED);
}
inline void store_pair(Flag* at, Flag one, Flag other) {
  __atomic_store_n(at, one, __ATOMIC_RELAXED);
  __atomic_store_n(at + 1, other, __ATOMIC_RELAXED);
}

// What lasts: an odd epoch says that the lane waits for what is written here.
struct Watch {
  Flag epoch = 0, done = 0;
  Flag kind = 0, address = 0, goal = 0;
};

// What the lanes of one threadblock share.
struct Meeting {
  Flag arrived = 0, phase = 0, any[2] = {0, 0};
};

struct Waiting;

struct Lane {
  int id, count, step;
  long long tile;
  const Params* params;
  int block;
  Watch* watch;
  Meeting* meeting;
  bool watched;

  void barrier() { barrier_or(false); }
  bool barrier_or(bool value);
  bool aborted() const { return load_acquire((const Flag*)params->abort) != 0; }
  bool give_up(unsigned polls, const Waiting& waiting);
  void resume() {
    if (watched) __atomic_add_fetch(&watch->epoch, 1, __ATOMIC_ACQ_REL);
    watched = false;
  }
  void together() {}
  bool claims(long long* kind, int value) {
    long long none = 0;
    return __atomic_compare_exchange_n(kind, &none, (long long)value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }

  // The flag of a line is written after its words and read before them.
  template <class Why>
  bool load_lines(const char* slot, long long first, int groups, long long lines, int, Flag flag, Flag (*words)[16], const Why& why) {
    for (int n = 0; n < AHEAD128 && first + (long long)n * groups < lines; ++n) {
      long long line = first + (long long)n * groups;
      const Flag* at = (const Flag*)(slot + line * LINE_BYTES);
      auto waiting = why(line);
      for (unsigned polls = 0; load_acquire(at + LINE_WORDS) != flag; ++polls)
        if (give_up(polls, waiting)) {
          waiting.tell(*this);
          return false;
        }
      resume();
      for (int k = 0; k < LINE_WORDS; ++k) words[n][k] = __atomic_load_n(at + k, __ATOMIC_RELAXED);
    }
    return true;
  }
  void store_line(char* line, int, Flag flag, const Flag* words) {
    Flag* at = (Flag*)line;
    for (int k = 0; k < LINE_WORDS; ++k) __atomic_store_n(at + k, words[k], __ATOMIC_RELAXED);
    store_release(at + LINE_WORDS, flag);
  }
};
