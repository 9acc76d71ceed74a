// What both ways of attending share: a sequence's keys in blocks, and one token's way through them.
//
// The order of all sums is that of `attend_row`: scores by lanes and then by a tree, a running
// maximum over blocks of 32 keys, parts of 512. Whoever attends otherwise keeps it to the bit.
#pragma once
#include "math.h"
#include <math.h>

#define BLOCK_KEYS 32
#define PART_KEYS 512
#define MAX_HEADS 4   // query heads at once
#define MAX_VECTORS 16 // head_dim up to 256

// Consecutive rows of the batch that are of one sequence.
typedef struct {
  int64_t row, num_rows;
  int is_row;          // one row, taken by itself: all heads are one item
  int64_t past;        // keys before those of the rows
  const int64_t *runs; // [][2]: first row of the pool, number of rows
  // Of a tree's rows: how many keys after `past` each sees, and the first of them in `own`. NULL:
  // row i sees i + 1, and `runs` hold them too.
  const int64_t *ways; // [num_rows][2]
  int64_t num_parts;     // of the row that sees most
  int64_t first_partial; // [num_rows][num_parts] follow
} Tile;

typedef struct {
  int64_t tile, part, kv_head; // the KV head only where a tile is no single row
} Item;

typedef struct {
  const float *query; // [rows][heads][size], a row every query_stride floats
  int64_t query_stride;
  const void *keys, *values; // [rows][kv_heads][size]
  const int64_t *own;        // rows of the pool
  const Tile *tiles;
  const Item *items;
  float *partials; // [partials][heads][2 + size]
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

// How many keys a row of a tile sees.
INLINE int64_t num_keys(const Tile *tile, int64_t row) {
  return tile->past + (tile->ways ? tile->ways[2 * row] : row + 1);
}

INLINE f32x16 load(const void *pool, int64_t at, int is_bfloat16) {
  if (!is_bfloat16) return *(const f32x16 *)((const float *)pool + at);
  u16x16 bits = *(const u16x16 *)((const uint16_t *)pool + at);
  return (f32x16)(__builtin_convertvector(bits, u32x16) << 16);
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
      f32x16 products[MAX_HEADS], k = load(a->keys, at, is_bfloat16);
#pragma clang loop unroll(full)
      for (int head = 0; head < heads; head++) products[head] = s->query[head * vectors] * k;
#pragma clang loop unroll(full)
      for (int v = 1; v < vectors; v++) {
        k = load(a->keys, at + v * LANES, is_bfloat16);
#pragma clang loop unroll(full)
        for (int head = 0; head < heads; head++)
          products[head] = fma_of(s->query[head * vectors + v], k, products[head]);
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
  for (int key = 0; key < count; key += LANES) {
    f32x16 part = *(f32x16 *)(scores + key);
    largest = part > largest ? part : largest;
  }
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
        sums[head * vectors + v] =
            fma_of((f32x16)s->scores[head][key], value, sums[head * vectors + v]);
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < heads * vectors; i++) s->sum[i] = sums[i];
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

// Where the next key lies, and how many are left to take: first in runs, then in a list.
typedef struct {
  const int64_t *run;
  int64_t row, left_in_runs;
  const int64_t *own;
  int64_t left;
} Cursor;

// Keys [first ─ end) of a row of a tile.
INLINE Cursor keys_between(const Attention *a, const Tile *tile, int64_t row, int64_t first,
                           int64_t end) {
  int64_t in_runs = tile->ways ? least(tile->past, end) : end, skipped = least(first, in_runs);
  const int64_t *run = tile->runs;
  Cursor cursor = {.left_in_runs = in_runs - skipped, .left = end - first};
  if (tile->ways) cursor.own = a->own + tile->ways[2 * row + 1] + (first - skipped);
  for (; cursor.left_in_runs > 0 && skipped >= run[1]; run += 2) skipped -= run[1];
  cursor.run = run;
  cursor.row = skipped;
  return cursor;
}

INLINE void take_block(Cursor *cursor, Block *block) {
  int count = (int)least(cursor->left, BLOCK_KEYS);
  for (int key = 0; key < count; key++) {
    if (cursor->left_in_runs > 0) {
      while (cursor->row == cursor->run[1]) {
        cursor->run += 2;
        cursor->row = 0;
      }
      block->rows[key] = cursor->run[0] + cursor->row++;
      cursor->left_in_runs--;
    } else {
      block->rows[key] = *cursor->own++;
    }
  }
  cursor->left -= count;
  block->count = count;
}

// Where the sums of a part of a row's keys go: of each head its maximum, its weight, its vectors.
INLINE float *partial_of(const Attention *a, const Tile *tile, int64_t row, int64_t part,
                         int64_t head) {
  int64_t partial = tile->first_partial + row * tile->num_parts + part;
  return a->partials + (partial * a->heads + head) * (2 + a->size);
}

// All query heads that share one KV head, of several rows (attention_tiles.c).
void attend_tile(const Attention *a, const Item *item, int is_bfloat16);
