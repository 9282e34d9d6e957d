// Elements and how they are combined, eight bytes at a time. The type and the operation are fixed where the kernel is compiled for
// them (SYNTH_DTYPE, SYNTH_OP) and looked up where it is not (the host build has all of them).
//
// Two halves or bfloat16s are combined in float and rounded to nearest even: float has more than twice their bits, so the result is
// the one that their own arithmetic would give.
#pragma once

typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned short u16;

struct Half { u16 bits; };
struct Brain { u16 bits; };

SYNTH_FN int item_bytes(int dtype) {
  switch (dtype) {
    case DTYPE_FLOAT64: case DTYPE_INT64: return 8;
    case DTYPE_FLOAT32: case DTYPE_INT32: return 4;
    case DTYPE_FLOAT16: case DTYPE_BFLOAT16: case DTYPE_INT16: return 2;
    default: return 1;
  }
}

SYNTH_FN float widen(Half x) { return half_to_float(x.bits); }
SYNTH_FN float widen(Brain x) { return float_of_bits(u32(x.bits) << 16); }

SYNTH_FN void narrow(float x, Half& to) { to.bits = float_to_half(x); }
SYNTH_FN void narrow(float x, Brain& to) {
  u32 bits = bits_of_float(x);
  if (x != x) to.bits = u16(bits >> 16) | 0x40;
  else to.bits = u16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The unsigned type of the same width: sums and products of integers wrap, as they do in every library.
template <class T> struct Unsigned { typedef T type; };
template <> struct Unsigned<signed char> { typedef unsigned char type; };
template <> struct Unsigned<short> { typedef u16 type; };
template <> struct Unsigned<i32> { typedef u32 type; };
template <> struct Unsigned<i64> { typedef u64 type; };

// A NaN beats every number, so that all ranks agree whatever the order.
template <class T> SYNTH_FN T smaller(T x, T y) { return x != x ? x : y != y ? y : y < x ? y : x; }
template <class T> SYNTH_FN T larger(T x, T y) { return x != x ? x : y != y ? y : x < y ? y : x; }

template <class T> SYNTH_FN T combine_one(int op, T x, T y) {
  typedef typename Unsigned<T>::type U;
  switch (op) {
    case OP_PROD: return sizeof(T) < 4 ? T(u32(U(x)) * u32(U(y))) : T(U(x) * U(y));
    case OP_MIN: return smaller(x, y);
    case OP_MAX: return larger(x, y);
    default: return T(U(x) + U(y));
  }
}
SYNTH_FN Half combine_one(int op, Half x, Half y) {
  Half result;
  narrow(combine_one(op, widen(x), widen(y)), result);
  return result;
}
SYNTH_FN Brain combine_one(int op, Brain x, Brain y) {
  Brain result;
  narrow(combine_one(op, widen(x), widen(y)), result);
  return result;
}

template <class T> union Word {
  u64 whole;
  T part[8 / sizeof(T)];
};

template <class T> SYNTH_FN u64 combine_as(int op, u64 x, u64 y) {
  Word<T> one, other;
  one.whole = x;
  other.whole = y;
#pragma unroll
  for (int k = 0; k < int(8 / sizeof(T)); ++k) one.part[k] = combine_one(op, one.part[k], other.part[k]);
  return one.whole;
}

SYNTH_FN u64 combine(int dtype, int op, u64 x, u64 y) {
  switch (dtype) {
    case DTYPE_FLOAT32: return combine_as<float>(op, x, y);
    case DTYPE_FLOAT64: return combine_as<double>(op, x, y);
    case DTYPE_FLOAT16: return combine_as<Half>(op, x, y);
    case DTYPE_BFLOAT16: return combine_as<Brain>(op, x, y);
    case DTYPE_INT8: return combine_as<signed char>(op, x, y);
    case DTYPE_INT16: return combine_as<short>(op, x, y);
    case DTYPE_INT32: return combine_as<i32>(op, x, y);
    case DTYPE_INT64: return combine_as<i64>(op, x, y);
    default: return combine_as<unsigned char>(op, x, y);
  }
}

template <class T> SYNTH_FN void divide_one(void* at, i64 by) { *(T*)at = T(*(T*)at / T(by)); }
SYNTH_FN void divide(int dtype, void* at, i64 by) {
  switch (dtype) {
    case DTYPE_FLOAT32: return divide_one<float>(at, by);
    case DTYPE_FLOAT64: return divide_one<double>(at, by);
    case DTYPE_FLOAT16: return narrow(widen(*(Half*)at) / float(by), *(Half*)at);
    case DTYPE_BFLOAT16: return narrow(widen(*(Brain*)at) / float(by), *(Brain*)at);
    case DTYPE_INT8: { signed char* x = (signed char*)at; *x = (signed char)(i64(*x) / by); return; }
    case DTYPE_INT16: { short* x = (short*)at; *x = short(i64(*x) / by); return; }
    case DTYPE_INT32: { i32* x = (i32*)at; *x = i32(i64(*x) / by); return; }
    case DTYPE_INT64: return divide_one<i64>(at, by);
    default: { unsigned char* x = (unsigned char*)at; *x = (unsigned char)(i64(*x) / by); return; }
  }
}
