// Products with matrices of 4- and 8-bit codes; activations are rounded to 8 bits, per group.
//
// value = code * scale + minimum, so over a group of 32 columns
//   sum(x * value) = step * (scale * sum(q * code) + minimum * sum(q)),  x = step * q.
// The sums of q * code are exact integers. Each output is computed alone and in one order: the
// same whatever else is in the batch, and on any number of threads.
#include "math.h"
#include <stddef.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define GROUP 32
// How far ahead memory is asked, and a thread's share at once: 3.2 ms for 76 matrices of 3072 x 576
// with one row of x, 3.7 with a quarter of the tiles, 4.0 without asking (two cores of an EPYC).
#define AHEAD_BYTES 4096
#define MAX_ITEM_TILES 16
// 127 divided by less is infinite. A group of so small numbers counts as zeros.
#define SMALLEST 0x1p-119f
#define BLOCK_ROWS 8 // rows of x at once: eight sums and eight totals stay in registers

// A group of a row of x: its codes, and what they stand for.
typedef struct {
  int8_t codes[GROUP];
  float step;
  float sum; // step * sum of the codes
} Quantised;

typedef struct {
  const float *x;
  int64_t x_stride;
  Quantised *quantised;
  int64_t num_rows, num_groups;
  const uint8_t *matrix;
  int64_t num_tiles, item_tiles;
  int bits;
  const float *bias;
  float *y;
  int64_t y_stride;
} Product;

static void quantise_row(const void *job, int64_t row) {
  const Product *product = job;
  const float *x = product->x + row * product->x_stride;
  Quantised *out = product->quantised + row * product->num_groups;
  for (int64_t group = 0; group < product->num_groups; group++, x += GROUP, out++) {
    f32x16 low = *(const f32x16 *)x, high = *(const f32x16 *)(x + LANES);
    float largest = largest_of(__builtin_elementwise_max(__builtin_elementwise_abs(low),
                                                         __builtin_elementwise_abs(high)));
    float inverse = largest > SMALLEST ? 127.0f / largest : 0.0f;
    int32_t sum = 0;
    f32x16 halves[2] = {__builtin_elementwise_roundeven(low * inverse),
                        __builtin_elementwise_roundeven(high * inverse)};
    for (int half = 0; half < 2; half++) {
      f32x16 whole = halves[half] == halves[half] ? halves[half] : (f32x16)0;
      i32x16 codes = __builtin_convertvector(whole, i32x16);
      for (int lane = 0; lane < LANES; lane++) {
        out->codes[half * LANES + lane] = (int8_t)codes[lane];
        sum += codes[lane];
      }
    }
    // What is no number has no code: its group's step is none either.
    out->step = largest / 127.0f + sum_of(low * 0.0f + high * 0.0f);
    out->sum = out->step * (float)sum;
  }
}

// sums[lane] += sum over b of codes[4 * lane + b] * x[b]
#if defined(__AVX512VNNI__)
INLINE i32x16 add_products(i32x16 sums, u8x64 codes, int32_t x, int bits) {
  (void)bits;
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(x));
}
#else
INLINE __m256i add_half(__m256i sums, __m256i codes, __m256i x) {
  // Two products of 8 and 8 bits must fit into 16: those of 4-bit codes do.
  __m256i pairs = _mm256_maddubs_epi16(codes, x);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE i32x16 add_products(i32x16 sums, u8x64 codes, int32_t x, int bits) {
  union {
    i32x16 sums;
    __m256i half[2];
  } total = {.sums = sums};
  union {
    u8x64 codes;
    __m256i half[2];
  } all = {.codes = codes};
  __m256i wide = _mm256_set1_epi32(x);
  for (int i = 0; i < 2; i++) {
    if (bits == 4) {
      total.half[i] = add_half(total.half[i], all.half[i], wide);
    } else {
      __m256i mask = _mm256_set1_epi8(15);
      __m256i high = _mm256_and_si256(_mm256_srli_epi16(all.half[i], 4), mask);
      __m256i high_sums = add_half(_mm256_setzero_si256(), high, wide);
      total.half[i] = add_half(total.half[i], _mm256_and_si256(all.half[i], mask), wide);
      total.half[i] = _mm256_add_epi32(total.half[i], _mm256_slli_epi32(high_sums, 4));
    }
  }
  return total.sums;
}
#endif

INLINE int32_t four_of(const int8_t *codes) {
  int32_t four;
  __builtin_memcpy(&four, codes, sizeof(four));
  return four;
}

INLINE void sum_group(i32x16 *sums, const uint8_t *codes, const Quantised *x, int64_t stride,
                      int num_rows, int bits) {
  for (int row = 0; row < num_rows; row++) sums[row] = (i32x16)0;
#pragma clang loop unroll(full)
  for (int part = 0; part < (bits == 4 ? 4 : 8); part++) {
    u8x64 packed = *(const u8x64 *)(codes + 64 * part);
    u8x64 low = bits == 4 ? packed & 15 : packed;
    u8x64 high = packed >> 4;
#pragma clang loop unroll(full)
    for (int row = 0; row < num_rows; row++) {
      const int8_t *q = x[row * stride].codes;
      sums[row] = add_products(sums[row], low, four_of(q + 4 * part), bits);
      if (bits == 4) sums[row] = add_products(sums[row], high, four_of(q + 4 * (part + 4)), bits);
    }
  }
}

// Sixteen outputs of `num_rows` rows of x.
INLINE void multiply(const Product *p, int64_t tile, int64_t first, int num_rows, int bits) {
  const int64_t code_bytes = GROUP * LANES * bits / 8;
  const int64_t group_bytes = code_bytes + 2 * LANES * (int64_t)sizeof(_Float16);
  const uint8_t *codes = p->matrix + tile * p->num_groups * group_bytes;
  const Quantised *x = p->quantised + first * p->num_groups;
  f32x16 totals[BLOCK_ROWS];
  f32x16 begin = p->bias ? *(const f32x16 *)(p->bias + tile * LANES) : (f32x16)0;
#pragma clang loop unroll(full)
  for (int row = 0; row < num_rows; row++) totals[row] = begin;
  for (int64_t group = 0; group < p->num_groups; group++) {
    i32x16 sums[BLOCK_ROWS];
    for (int64_t line = 0; line < group_bytes; line += 64)
      __builtin_prefetch(codes + AHEAD_BYTES + line);
    sum_group(sums, codes, x + group, p->num_groups, num_rows, bits);
    const _Float16 *scales = (const _Float16 *)(codes + code_bytes);
    f32x16 scale = __builtin_convertvector(*(const f16x16 *)scales, f32x16);
    f32x16 minimum = __builtin_convertvector(*(const f16x16 *)(scales + LANES), f32x16);
#pragma clang loop unroll(full)
    for (int row = 0; row < num_rows; row++) {
      const Quantised *q = x + row * p->num_groups + group;
      f32x16 exact = __builtin_convertvector(sums[row], f32x16);
      totals[row] = fma_of(scale * q->step, exact, totals[row]);
      totals[row] = fma_of(minimum, (f32x16)q->sum, totals[row]);
    }
    codes += group_bytes;
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < num_rows; row++)
    *(f32x16 *)(p->y + (first + row) * p->y_stride + tile * LANES) = totals[row];
}

INLINE void multiply_tile(const Product *p, int64_t tile, int bits) {
  int64_t row = 0;
  for (; row + BLOCK_ROWS <= p->num_rows; row += BLOCK_ROWS) multiply(p, tile, row, BLOCK_ROWS, bits);
  switch (p->num_rows - row) {
  case 7: multiply(p, tile, row, 7, bits); break;
  case 6: multiply(p, tile, row, 6, bits); break;
  case 5: multiply(p, tile, row, 5, bits); break;
  case 4: multiply(p, tile, row, 4, bits); break;
  case 3: multiply(p, tile, row, 3, bits); break;
  case 2: multiply(p, tile, row, 2, bits); break;
  case 1: multiply(p, tile, row, 1, bits); break;
  }
}

INLINE void multiply_tiles(const Product *p, int64_t item, int bits) {
  int64_t end = (item + 1) * p->item_tiles < p->num_tiles ? (item + 1) * p->item_tiles : p->num_tiles;
  for (int64_t tile = item * p->item_tiles; tile < end; tile++) multiply_tile(p, tile, bits);
}

// As many items as make whole rounds of all threads.
static int64_t tiles_per_item(int64_t num_tiles) {
  int64_t round = num_threads() * (int64_t)MAX_ITEM_TILES;
  int64_t num_items = num_threads() * ((num_tiles + round - 1) / round);
  return (num_tiles + num_items - 1) / num_items;
}

static void four_bits(const void *job, int64_t item) { multiply_tiles(job, item, 4); }
static void eight_bits(const void *job, int64_t item) { multiply_tiles(job, item, 8); }

// y[num_rows][num_tiles * 16] = x[num_rows][num_groups * 32] times the transposed matrix, which is
// in `Packed`'s order. Strides count floats. Returns 0, or 1 when there is no memory.
EXPORT int slipstream_linear(const float *x, int64_t x_stride, int64_t num_rows, int64_t num_groups,
                             const uint8_t *matrix, int64_t num_tiles, int bits, const float *bias,
                             float *y) {
  Product product = {
      .x = x, .x_stride = x_stride, .num_rows = num_rows, .num_groups = num_groups,
      .matrix = matrix, .num_tiles = num_tiles, .item_tiles = tiles_per_item(num_tiles), .bits = bits, .bias = bias,
      .y = y, .y_stride = num_tiles * LANES,
      .quantised = scratch(SCRATCH_QUANTISED, num_rows * num_groups * (int64_t)sizeof(Quantised)),
  };
  if (!product.quantised) return 1;
  // Less is done before another thread has come.
  if (num_rows * num_groups < 1024)
    for (int64_t row = 0; row < num_rows; row++) quantise_row(&product, row);
  else
    parallel(quantise_row, &product, num_rows);
  parallel(bits == 4 ? four_bits : eight_bits, &product, (num_tiles + product.item_tiles - 1) / product.item_tiles);
  return 0;
}
