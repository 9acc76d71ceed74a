// What is done to each token by itself, between the products.
#include "math.h"
#include <math.h>

// A step of few tokens is over before another thread has come.
#define ROWS_PER_ITEM 4

typedef struct {
  const float *x, *weight;
  float *out;
  int64_t num_rows, size;
  float epsilon;
} Rows;

static void norm_rows(const void *job, int64_t item) {
  const Rows *rows = job;
  int64_t end = (item + 1) * ROWS_PER_ITEM < rows->num_rows ? (item + 1) * ROWS_PER_ITEM : rows->num_rows;
  for (int64_t row = item * ROWS_PER_ITEM; row < end; row++) {
    const float *x = rows->x + row * rows->size;
    float *out = rows->out + row * rows->size;
    f32x16 squares = (f32x16)0;
    int64_t at = 0;
    for (; at + LANES <= rows->size; at += LANES) {
      f32x16 part = *(const f32x16 *)(x + at);
      squares = fma_of(part, part, squares);
    }
    float sum = sum_of(squares);
    for (; at < rows->size; at++) sum += x[at] * x[at];
    float scale = 1.0f / sqrtf(sum / (float)rows->size + rows->epsilon);
    for (at = 0; at < rows->size; at++) out[at] = rows->weight[at] * (x[at] * scale);
  }
}

static void gate_rows(const void *job, int64_t item) {
  const Rows *rows = job;
  int64_t end = (item + 1) * ROWS_PER_ITEM < rows->num_rows ? (item + 1) * ROWS_PER_ITEM : rows->num_rows;
  for (int64_t row = item * ROWS_PER_ITEM; row < end; row++) {
    const float *gate = rows->x + 2 * row * rows->size, *up = gate + rows->size;
    float *out = rows->out + row * rows->size;
    int64_t at = 0;
    for (; at + LANES <= rows->size; at += LANES) {
      f32x16 g = *(const f32x16 *)(gate + at);
      *(f32x16 *)(out + at) = g / (1.0f + exp_of(-g)) * *(const f32x16 *)(up + at);
    }
    for (; at < rows->size; at++) out[at] = gate[at] / (1.0f + expf(-gate[at])) * up[at];
  }
}

typedef struct {
  float *qkv; // [tokens][heads + 2 * kv_heads][size]
  const float *turns; // [tokens][turned / 2][2]: cosine, sine
  const int64_t *slots;
  void *keys, *values; // [rows][kv_heads][size]
  int is_bfloat16;
  int64_t num_tokens, heads, kv_heads, size, turned;
} Placed;

// Rounded to the nearest, ties to even; what is no number stays none.
INLINE u16x16 to_bfloat16(f32x16 x) {
  u32x16 bits = (u32x16)x, rounded = bits + 0x7fff + (bits >> 16 & 1);
  return __builtin_convertvector((x != x ? bits | 0x400000 : rounded) >> 16, u16x16);
}

INLINE void store(void *pool, int64_t at, const float *x, int64_t count, int is_bfloat16) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    if (is_bfloat16)
      *(u16x16 *)((uint16_t *)pool + at + i) = to_bfloat16(*(const f32x16 *)(x + i));
    else
      *(f32x16 *)((float *)pool + at + i) = *(const f32x16 *)(x + i);
  for (; i < count; i++)
    if (is_bfloat16)
      ((uint16_t *)pool)[at + i] = to_bfloat16((f32x16)x[i])[0];
    else
      ((float *)pool)[at + i] = x[i];
}

// Eight pairs: (a, b) becomes (a * cosine - b * sine, b * cosine + a * sine).
INLINE f32x16 turned_by(f32x16 x, f32x16 turns) {
  const f32x16 signs = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  f32x16 other = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  f32x16 cosines = __builtin_shufflevector(turns, turns, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
  f32x16 sines = __builtin_shufflevector(turns, turns, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  return x * cosines + other * sines * signs;
}

// 64 tokens of 15 heads of 64: 0.02 ms on one core; one number at a time 0.45.
static void place_token(const void *job, int64_t token) {
  const Placed *p = job;
  float *x = p->qkv + token * (p->heads + 2 * p->kv_heads) * p->size;
  const float *turns = p->turns + token * p->turned;
  for (int64_t head = 0; head < p->heads + p->kv_heads; head++, x += p->size) {
    int64_t i = 0;
    for (; i + LANES <= p->turned; i += LANES)
      *(f32x16 *)(x + i) = turned_by(*(f32x16 *)(x + i), *(const f32x16 *)(turns + i));
    for (; i < p->turned; i += 2) {
      float a = x[i], b = x[i + 1], cosine = turns[i], sine = turns[i + 1];
      x[i] = a * cosine - b * sine;
      x[i + 1] = b * cosine + a * sine;
    }
  }
  int64_t row = p->kv_heads * p->size, at = p->slots[token] * row;
  store(p->keys, at, x - row, row, p->is_bfloat16);
  store(p->values, at, x, row, p->is_bfloat16);
}

static void place_rows(const void *job, int64_t item) {
  const Placed *p = job;
  int64_t end = (item + 1) * ROWS_PER_ITEM < p->num_tokens ? (item + 1) * ROWS_PER_ITEM : p->num_tokens;
  for (int64_t token = item * ROWS_PER_ITEM; token < end; token++) place_token(p, token);
}

static int64_t items(int64_t num_rows) { return (num_rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM; }

// out[row] = weight * x[row] / sqrt(mean of x[row] squared + epsilon)
EXPORT void slipstream_rms_norm(const float *x, const float *weight, float epsilon,
                                int64_t num_rows, int64_t size, float *out) {
  Rows job = {x, weight, out, num_rows, size, epsilon};
  parallel(norm_rows, &job, items(num_rows));
}

// out[row] = silu(gate) * up for x[row] = gate[size], up[size]
EXPORT void slipstream_silu_mul(const float *x, int64_t num_rows, int64_t size, float *out) {
  Rows job = {x, 0, out, num_rows, size, 0};
  parallel(gate_rows, &job, items(num_rows));
}

// out = 1 / (1 + e^-x), of a number the same wherever it stands.
EXPORT void slipstream_sigmoid(const float *x, int64_t count, float *out) {
  for (int64_t at = 0; at < count; at += LANES) {
    int64_t some = least(count - at, LANES);
    f32x16 answers = 1.0f / (1.0f + exp_of(-load_some(x + at, some)));
    for (int64_t lane = 0; lane < some; lane++) out[at + lane] = answers[lane];
  }
}

// Turns pairs of queries and keys in place, and writes keys and values to rows `slots` of a pool
// of `num_slots`. Returns 0, or 1, having done nothing, when a slot is not of the pool.
EXPORT int slipstream_rope_write_kv(float *qkv, const float *turns, const int64_t *slots,
                                    int64_t num_slots, void *keys, void *values, int is_bfloat16,
                                    int64_t num_tokens, int64_t heads, int64_t kv_heads,
                                    int64_t size, int64_t turned) {
  for (int64_t token = 0; token < num_tokens; token++)
    if (slots[token] < 0 || slots[token] >= num_slots) return 1;
  Placed job = {qkv, turns, slots, keys, values, is_bfloat16,
                num_tokens, heads, kv_heads, size, turned};
  parallel(place_rows, &job, items(num_tokens));
  return 0;
}
