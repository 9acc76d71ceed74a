// Functions of sixteen numbers at once. The compiler fuses no product with a sum by itself: what is
// fused is written so, and therefore the same wherever it is inlined and on every processor.
#pragma once
#include "native.h"

// a * b + c, rounded once.
INLINE f32x16 fma_of(f32x16 a, f32x16 b, f32x16 c) { return __builtin_elementwise_fma(a, b, c); }

INLINE float sum_of(f32x16 x) {
  f32x8 eight = x.lo + x.hi;
  f32x4 four = eight.lo + eight.hi;
  f32x2 two = four.lo + four.hi;
  return two.x + two.y;
}

// What is no number is passed over, or not: who asks takes care of it.
INLINE float largest_of(f32x16 x) {
  f32x8 eight = x.lo > x.hi ? x.lo : x.hi;
  f32x4 four = eight.lo > eight.hi ? eight.lo : eight.hi;
  f32x2 two = four.lo > four.hi ? four.lo : four.hi;
  return two.x > two.y ? two.x : two.y;
}

// e^x to two units in the last place; 0 below -87, no more than e^88 above. What is no number
// stays none.
// x = n * ln 2 + rest; e^rest by the series that Cephes' expf uses.
INLINE f32x16 exp_of(f32x16 x) {
  // 1.5 * 2^23: a sum with it has no fraction, and n in its last bits.
  const float shift = 12582912.0f;
  f32x16 high = (f32x16)88.0f < x ? (f32x16)88.0f : x;
  f32x16 shifted = fma_of(high, (f32x16)1.44269504088896341f, (f32x16)shift);
  f32x16 n = shifted - shift;
  f32x16 rest = fma_of(n, (f32x16)2.12194440e-4f, fma_of(n, (f32x16)-0.693359375f, high));
  f32x16 y = (f32x16)1.9875691500e-4f;
  y = fma_of(y, rest, (f32x16)1.3981999507e-3f);
  y = fma_of(y, rest, (f32x16)8.3334519073e-3f);
  y = fma_of(y, rest, (f32x16)4.1665795894e-2f);
  y = fma_of(y, rest, (f32x16)1.6666665459e-1f);
  y = fma_of(y, rest, (f32x16)5.0000001201e-1f);
  y = fma_of(y, rest * rest, rest) + 1.0f;
  f32x16 power = (f32x16)(((u32x16)shifted << 23) + ((uint32_t)127 << 23));
  return x < -87.0f ? (f32x16)0.0f : y * power;
}
