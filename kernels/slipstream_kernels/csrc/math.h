// Functions of sixteen numbers at once. The compiler fuses no product with a sum by itself: what is
// fused is written so, and therefore the same wherever it is inlined and on every processor.
#pragma once
#include "native.h"

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The first `count` of sixteen numbers, zeros after them.
INLINE f32x16 load_some(const float *from, int64_t count) {
  f32x16 some = (f32x16)0;
  for (int lane = 0; lane < count; lane++) some[lane] = from[lane];
  return some;
}

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

#define SHUFFLE __builtin_shufflevector

// Lane i of the result is the sum of sums[i]'s lanes: a tree that halves sixteen vectors at once.
INLINE f32x16 sums_of(f32x16 *sums) {
#pragma clang loop unroll(full)
  for (int i = 0; i < 8; i++) {
    f32x16 a = sums[2 * i], b = sums[2 * i + 1];
    sums[i] = SHUFFLE(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
              SHUFFLE(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; i++) {
    f32x16 a = sums[2 * i], b = sums[2 * i + 1];
    sums[i] = SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
              SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < 2; i++) {
    f32x16 a = sums[2 * i], b = sums[2 * i + 1];
    sums[i] = SHUFFLE(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
              SHUFFLE(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  f32x16 a = sums[0], b = sums[1];
  return SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
         SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
