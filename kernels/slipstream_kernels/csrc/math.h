// Functions of sixteen numbers at once.
#pragma once
#include "native.h"

INLINE float sum_of(f32x16 x) {
  float parts[8], total = 0;
  for (int lane = 0; lane < 8; lane++) parts[lane] = x[lane] + x[lane + 8];
  for (int lane = 0; lane < 4; lane++) parts[lane] += parts[lane + 4];
  total = (parts[0] + parts[2]) + (parts[1] + parts[3]);
  return total;
}

INLINE float largest_of(f32x16 x) {
  float largest = x[0];
  for (int lane = 1; lane < LANES; lane++) largest = x[lane] > largest ? x[lane] : largest;
  return largest;
}

// e^x to two units in the last place; 0 below -87, no more than e^88 above. What is no number
// stays none.
// x = n * ln 2 + rest; e^rest by the series that Cephes' expf uses.
INLINE f32x16 exp_of(f32x16 x) {
  x = x < -104.0f ? (f32x16)-104.0f : x;
  x = x > 88.0f ? (f32x16)88.0f : x;
  f32x16 n = __builtin_elementwise_roundeven(x * 1.44269504088896341f);
  f32x16 rest = x - n * 0.693359375f + n * 2.12194440e-4f;
  f32x16 y = (f32x16)1.9875691500e-4f;
  y = y * rest + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * (rest * rest) + rest + 1.0f;
  i32x16 exponent = __builtin_convertvector(n, i32x16) + 127;
  f32x16 power = (f32x16)(exponent << 23);
  return (exponent > 0 ? y * power : (f32x16)0.0f) + (x - x);
}
