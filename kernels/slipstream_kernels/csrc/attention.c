// Causal attention over paged keys and values, which are read where they lie.
//
// One item of work is one token and a part of its keys, of a length that nothing else decides: an
// answer depends on its own sequence alone, however its prompt was cut into chunks. Keys go by in
// blocks with a running maximum (online softmax, Milakov and Gimelshein 2018), each loaded once for
// all query heads that share it; all heads take a block before the next one comes, so that rows of
// the pool are read whole.
#include "math.h"
#include <math.h>

#define BLOCK_KEYS 32
#define PART_KEYS 512
#define MAX_HEADS 4   // query heads at once
#define MAX_VECTORS 16 // head_dim up to 256

typedef struct {
  const float *query; // [rows][heads][size], a row every query_stride floats
  int64_t query_stride;
  const void *keys, *values; // [rows][kv_heads][size]
  const int64_t *tokens;     // [][3]: row of query and out, length of the context, first run
  const int64_t *runs;       // [][2]: first row, number of rows
  const int64_t *first_parts; // [tokens + 1]: the item that a token's first part is
  float *partials;            // [parts][heads][2 + size]
  int64_t heads, kv_heads, size;
  float *out; // [rows][heads][size]
} Attention;

// Up to BLOCK_KEYS keys that follow each other in their sequence: a block begins at the same
// place of a sequence wherever its pages lie, so that nothing else decides the order of sums.
typedef struct {
  int64_t rows[BLOCK_KEYS];
  int count;
} Block;

typedef struct {
  f32x16 query[MAX_HEADS * MAX_VECTORS], sum[MAX_HEADS * MAX_VECTORS];
  float maximum[MAX_HEADS], weight[MAX_HEADS];
  float scores[MAX_HEADS][BLOCK_KEYS];
} State;

INLINE f32x16 load(const void *pool, int64_t at, int is_bfloat16) {
  if (!is_bfloat16) return *(const f32x16 *)((const float *)pool + at);
  u16x16 bits = *(const u16x16 *)((const uint16_t *)pool + at);
  return (f32x16)(__builtin_convertvector(bits, u32x16) << 16);
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

// The processor does not see far enough ahead where rows of other heads lie between.
INLINE void fetch(const void *pool, int64_t at, int vectors, int is_bfloat16) {
  const char *row = (const char *)pool + at * (is_bfloat16 ? 2 : 4);
  for (int v = 0; v < vectors; v += is_bfloat16 ? 2 : 1) __builtin_prefetch(row + v / (is_bfloat16 ? 2 : 1) * 64);
}

// Scores of a block's keys for some heads; their values are fetched meanwhile.
INLINE void score(State *s, const Attention *a, const Block *block, int64_t kv_head, int heads,
                  int vectors, int is_bfloat16) {
  int count = block->count;
  for (int first = 0; first < count; first += LANES) {
    f32x16 sums[MAX_HEADS][LANES];
    int end = count - first < LANES ? count - first : LANES;
    for (int key = 0; key < end; key++) {
      int64_t at = (block->rows[first + key] * a->kv_heads + kv_head) * a->size;
      fetch(a->values, at, vectors, is_bfloat16);
      f32x16 products[MAX_HEADS];
#pragma clang loop unroll(full)
      for (int head = 0; head < heads; head++) products[head] = (f32x16)0;
#pragma clang loop unroll(full)
      for (int v = 0; v < vectors; v++) {
        f32x16 k = load(a->keys, at + v * LANES, is_bfloat16);
#pragma clang loop unroll(full)
        for (int head = 0; head < heads; head++) products[head] += s->query[head * vectors + v] * k;
      }
#pragma clang loop unroll(full)
      for (int head = 0; head < heads; head++) sums[head][key] = products[head];
    }
    for (int head = 0; head < heads; head++) {
      for (int key = end; key < LANES; key++) sums[head][key] = (f32x16)-INFINITY;
      *(f32x16 *)(s->scores[head] + first) = sums_of(sums[head]);
    }
  }
}

INLINE void weigh(State *s, int count, int head, int vectors) {
  float *scores = s->scores[head];
  f32x16 largest = (f32x16)s->maximum[head];
  for (int key = 0; key < count; key += LANES)
    largest = __builtin_elementwise_max(largest, *(f32x16 *)(scores + key));
  float maximum = largest_of(largest);
  float kept = exp_of((f32x16)(s->maximum[head] - maximum))[0];
  f32x16 weight = (f32x16)0;
  for (int key = 0; key < count; key += LANES) {
    f32x16 *block = (f32x16 *)(scores + key);
    *block = exp_of(*block - maximum);
    weight += *block;
  }
  s->weight[head] = s->weight[head] * kept + sum_of(weight);
  s->maximum[head] = maximum;
  for (int v = 0; v < vectors; v++) s->sum[head * vectors + v] *= kept;
}

// Adds up the weighted values; the keys of the next block are fetched meanwhile.
INLINE void gather(State *s, const Attention *a, const Block *block, const Block *next,
                   int64_t kv_head, int heads, int vectors, int is_bfloat16) {
  f32x16 sums[MAX_HEADS * MAX_VECTORS];
#pragma clang loop unroll(full)
  for (int i = 0; i < heads * vectors; i++) sums[i] = s->sum[i];
  for (int key = 0; key < block->count; key++) {
    int64_t at = (block->rows[key] * a->kv_heads + kv_head) * a->size;
    if (key < next->count)
      fetch(a->keys, (next->rows[key] * a->kv_heads + kv_head) * a->size, vectors, is_bfloat16);
#pragma clang loop unroll(full)
    for (int v = 0; v < vectors; v++) {
      f32x16 value = load(a->values, at + v * LANES, is_bfloat16);
#pragma clang loop unroll(full)
      for (int head = 0; head < heads; head++)
        sums[head * vectors + v] += s->scores[head][key] * value;
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < heads * vectors; i++) s->sum[i] = sums[i];
}

// Which query heads a state is for.
INLINE State *state_of(State *states, const Attention *a, int64_t kv_head, int64_t head) {
  int64_t shared = a->heads / a->kv_heads;
  return states + kv_head * ((shared + MAX_HEADS - 1) / MAX_HEADS) + head / MAX_HEADS;
}

INLINE void begin(State *s, const Attention *a, const float *query, int heads, int vectors) {
  float scale = 1.0f / sqrtf((float)a->size);
  for (int i = 0; i < heads * vectors; i++) {
    s->query[i] = *(const f32x16 *)(query + i * LANES) * scale;
    s->sum[i] = (f32x16)0;
  }
  for (int head = 0; head < heads; head++) {
    s->maximum[head] = -INFINITY;
    s->weight[head] = 0;
  }
}

INLINE void add_block(State *s, const Attention *a, const Block *block, const Block *next,
                      int64_t kv_head, int heads, int vectors, int is_bfloat16) {
  score(s, a, block, kv_head, heads, vectors, is_bfloat16);
  for (int head = 0; head < heads; head++) weigh(s, block->count, head, vectors);
  gather(s, a, block, next, kv_head, heads, vectors, is_bfloat16);
}

// The usual numbers of heads are compiled by themselves: their sums stay in registers.
INLINE void add_block_of(int64_t heads, State *s, const Attention *a, const Block *block,
                         const Block *next, int64_t kv_head, int vectors, int is_bfloat16) {
  switch (heads) {
  case 1: add_block(s, a, block, next, kv_head, 1, vectors, is_bfloat16); break;
  case 2: add_block(s, a, block, next, kv_head, 2, vectors, is_bfloat16); break;
  case 3: add_block(s, a, block, next, kv_head, 3, vectors, is_bfloat16); break;
  default: add_block(s, a, block, next, kv_head, MAX_HEADS, vectors, is_bfloat16);
  }
}

// Where in a sequence's runs the next key is, and how many are left to take.
typedef struct {
  const int64_t *run;
  int64_t row, left;
} Cursor;

INLINE Cursor begin_at(const Attention *a, int64_t first_run, int64_t skipped, int64_t left) {
  const int64_t *run = a->runs + 2 * first_run;
  for (; left > 0 && skipped >= run[1]; run += 2) skipped -= run[1];
  return (Cursor){run, skipped, left};
}

static void take_block(Cursor *cursor, Block *block) {
  int count = cursor->left < BLOCK_KEYS ? (int)cursor->left : BLOCK_KEYS;
  for (int key = 0; key < count; key++) {
    if (cursor->row == cursor->run[1]) {
      cursor->run += 2;
      cursor->row = 0;
    }
    block->rows[key] = cursor->run[0] + cursor->row++;
  }
  cursor->left -= count;
  block->count = count;
}

// The sums of a part go to `partial`: of each head its maximum, its weight and its vectors.
INLINE void end(const State *s, float *partial, int heads, int vectors) {
  for (int head = 0; head < heads; head++, partial += 2 + vectors * LANES) {
    partial[0] = s->maximum[head];
    partial[1] = s->weight[head];
    for (int v = 0; v < vectors; v++)
      *(f32x16 *)(partial + 2 + v * LANES) = s->sum[head * vectors + v];
  }
}

// One part of a token's keys, all heads: a row of the pool is read once and whole.
INLINE void attend(const Attention *a, int64_t item, int vectors, int is_bfloat16) {
  int64_t token = 0;
  while (item >= a->first_parts[token + 1]) token++;
  int64_t part = item - a->first_parts[token], shared = a->heads / a->kv_heads;
  const int64_t *facts = a->tokens + token * 3;
  State states[a->heads];
#define EACH_STATE                                                                                 \
  for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head++)                                      \
    for (int64_t head = 0, heads; head < shared; head += MAX_HEADS)                                \
      if ((heads = shared - head < MAX_HEADS ? shared - head : MAX_HEADS))
  EACH_STATE begin(state_of(states, a, kv_head, head), a,
                   a->query + facts[0] * a->query_stride + (kv_head * shared + head) * a->size,
                   (int)heads, vectors);
  int64_t skipped = part * PART_KEYS, left = facts[1] - skipped;
  Cursor cursor = begin_at(a, facts[2], skipped, left < PART_KEYS ? left : PART_KEYS);
  Block blocks[2];
  take_block(&cursor, &blocks[0]);
  for (int now = 0; blocks[now].count; now = !now) {
    take_block(&cursor, &blocks[!now]);
    EACH_STATE add_block_of(heads, state_of(states, a, kv_head, head), a, &blocks[now],
                            &blocks[!now], kv_head, vectors, is_bfloat16);
  }
  float *partial = a->partials + item * a->heads * (2 + a->size);
  EACH_STATE end(state_of(states, a, kv_head, head),
                 partial + (kv_head * shared + head) * (2 + a->size), (int)heads, vectors);
}

// The usual sizes of a head are compiled by themselves: their sums stay in registers.
#define ITEMS(type, is_bfloat16)                                                                   \
  static void attend_##type(const void *job, int64_t item) {                                       \
    const Attention *a = job;                                                                      \
    switch (a->size) {                                                                             \
    case 64: attend(a, item, 4, is_bfloat16); break;                                               \
    case 128: attend(a, item, 8, is_bfloat16); break;                                              \
    default: attend(a, item, (int)(a->size / LANES), is_bfloat16);                                 \
    }                                                                                              \
  }
ITEMS(float32, 0)
ITEMS(bfloat16, 1)

// One answer from those of a token's parts, in their order.
static void join(const Attention *a, int64_t token, int64_t head) {
  int64_t first = a->first_parts[token], last = a->first_parts[token + 1];
  int64_t stride = a->heads * (2 + a->size);
  const float *partials = a->partials + head * (2 + a->size);
  float *out = a->out + (a->tokens[token * 3] * a->heads + head) * a->size;
  float maximum = -INFINITY, weight = 0;
  for (int64_t part = first; part < last; part++)
    maximum = partials[part * stride] > maximum ? partials[part * stride] : maximum;
  for (int64_t i = 0; i < a->size; i++) out[i] = 0;
  for (int64_t part = first; part < last; part++) {
    const float *partial = partials + part * stride;
    float share = exp_of((f32x16)(partial[0] - maximum))[0];
    weight += share * partial[1];
    for (int64_t i = 0; i < a->size; i++) out[i] += share * partial[2 + i];
  }
  for (int64_t i = 0; i < a->size; i++) out[i] /= weight;
}

// size: a multiple of 16, 256 at the most; heads: 128 at the most. Every token has one key at
// least. Returns 0, or 1 when there is no memory.
EXPORT int slipstream_attention(const float *query, int64_t query_stride, const void *keys,
                                const void *values, int is_bfloat16, const int64_t *tokens,
                                int64_t num_tokens, const int64_t *runs, int64_t heads,
                                int64_t kv_heads, int64_t size, float *out) {
  int64_t *first_parts = scratch(SCRATCH_PARTS, (num_tokens + 1) * (int64_t)sizeof(int64_t));
  if (!first_parts) return 1;
  first_parts[0] = 0;
  for (int64_t token = 0; token < num_tokens; token++)
    first_parts[token + 1] = first_parts[token] + (tokens[token * 3 + 1] + PART_KEYS - 1) / PART_KEYS;
  int64_t num_parts = first_parts[num_tokens];
  float *partials =
      scratch(SCRATCH_PARTIALS, num_parts * heads * (2 + size) * (int64_t)sizeof(float));
  if (!partials) return 1;
  Attention job = {query, query_stride, keys, values, tokens, runs, first_parts, partials,
                   heads, kv_heads, size, out};
  parallel(is_bfloat16 ? attend_bfloat16 : attend_float32, &job, num_parts);
  for (int64_t token = 0; token < num_tokens; token++)
    for (int64_t head = 0; head < heads; head++) join(&job, token, head);
  return 0;
}
