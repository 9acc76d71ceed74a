// Products with matrices of float32, read as they lie: a row's answer is the same in any batch.
//
// An output is summed in sixteen lanes, each a chain over the columns, then by a tree (`sums_of`):
// for one row as for many. A library's products choose their order by the number of rows.
#include "math.h"

// What is kept in registers: sums of so many rows and outputs.
#if defined(__AVX512F__)
#define ROWS 4
#define OUTS 4
#else
#define ROWS 2
#define OUTS 2
#endif
#define SQUARE 4                    // rows and outputs whose sums are added up in one go
#define BLOCK_FLOATS (64 * 1024)    // of x, taken for all outputs of an item: they stay in L2

typedef struct {
  const float *x;
  int64_t x_stride, num_rows;
  const float *matrix; // [num_outputs][size]
  int64_t num_outputs, size;
  const float *bias;
  float *y; // [num_rows][num_outputs]
} Dense;

// sums[row * stride + out] = the lanes of x[row] times w[out].
INLINE void multiply(const float *const *x, const float *const *w, int64_t size, f32x16 *sums,
                     int stride, int rows, int outs) {
  f32x16 totals[16];
#pragma clang loop unroll(full)
  for (int i = 0; i < rows * outs; i++) totals[i] = (f32x16)0;
  int64_t at = 0;
  for (; at + LANES <= size; at += LANES) {
    f32x16 columns[16];
#pragma clang loop unroll(full)
    for (int out = 0; out < outs; out++) columns[out] = *(const f32x16 *)(w[out] + at);
#pragma clang loop unroll(full)
    for (int row = 0; row < rows; row++) {
      f32x16 part = *(const f32x16 *)(x[row] + at);
#pragma clang loop unroll(full)
      for (int out = 0; out < outs; out++)
        totals[row * outs + out] = fma_of(part, columns[out], totals[row * outs + out]);
    }
  }
  if (at < size)
#pragma clang loop unroll(full)
    for (int row = 0; row < rows; row++) {
      f32x16 part = load_some(x[row] + at, size - at);
#pragma clang loop unroll(full)
      for (int out = 0; out < outs; out++)
        totals[row * outs + out] = fma_of(part, load_some(w[out] + at, size - at), totals[row * outs + out]);
    }
#pragma clang loop unroll(full)
  for (int row = 0; row < rows; row++)
#pragma clang loop unroll(full)
    for (int out = 0; out < outs; out++) sums[row * stride + out] = totals[row * outs + out];
}

INLINE void put(const Dense *d, int64_t row, int64_t first, int64_t count, const float *sums) {
  for (int64_t out = 0; out < count; out++)
    d->y[row * d->num_outputs + first + out] = d->bias ? sums[out] + d->bias[first + out] : sums[out];
}

// One row, sixteen outputs.
INLINE void multiply_row(const Dense *d, int64_t row, int64_t first) {
  f32x16 sums[LANES];
  const float *x = d->x + row * d->x_stride, *w[LANES];
  for (int out = 0; out < LANES; out++)
    w[out] = d->matrix + least(first + out, d->num_outputs - 1) * d->size;
  for (int out = 0; out < LANES; out += 2 * OUTS) multiply(&x, w + out, d->size, sums + out, 0, 1, 2 * OUTS);
  f32x16 all = sums_of(sums);
  put(d, row, first, least(LANES, d->num_outputs - first), (const float *)&all);
}

// Four rows, four outputs. What is beyond the last row or output is that one again.
INLINE void multiply_square(const Dense *d, int64_t row, int64_t end, int64_t first) {
  f32x16 sums[SQUARE * SQUARE];
  const float *x[SQUARE], *w[SQUARE];
  for (int i = 0; i < SQUARE; i++) {
    x[i] = d->x + least(row + i, end - 1) * d->x_stride;
    w[i] = d->matrix + least(first + i, d->num_outputs - 1) * d->size;
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < SQUARE; i += ROWS)
#pragma clang loop unroll(full)
    for (int out = 0; out < SQUARE; out += OUTS)
      multiply(x + i, w + out, d->size, sums + i * SQUARE + out, SQUARE, ROWS, OUTS);
  f32x16 all = sums_of(sums);
  for (int i = 0; i < SQUARE && row + i < end; i++)
    put(d, row + i, first, least(SQUARE, d->num_outputs - first), (const float *)&all + i * SQUARE);
}

// Sixteen outputs of all rows.
static void multiply_outputs(const void *job, int64_t item) {
  const Dense *d = job;
  int64_t block = BLOCK_FLOATS / d->size / SQUARE * SQUARE, first = item * LANES;
  if (block < SQUARE) block = SQUARE;
  for (int64_t begin = 0; begin < d->num_rows; begin += block) {
    int64_t end = least(begin + block, d->num_rows);
    if (end - begin == 1) {
      multiply_row(d, begin, first);
      continue;
    }
    for (int64_t out = first; out < least(first + LANES, d->num_outputs); out += SQUARE)
      for (int64_t row = begin; row < end; row += SQUARE) multiply_square(d, row, end, out);
  }
}

// y = x times the transposed matrix, plus the bias where there is one. x_stride counts floats.
EXPORT void slipstream_dense(const float *x, int64_t x_stride, int64_t num_rows,
                             const float *matrix, int64_t num_outputs, int64_t size,
                             const float *bias, float *y) {
  Dense job = {x, x_stride, num_rows, matrix, num_outputs, size, bias, y};
  parallel(multiply_outputs, &job, (num_outputs + LANES - 1) / LANES);
}
