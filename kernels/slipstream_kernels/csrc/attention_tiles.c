// Attention of several rows of one sequence: each block of keys is loaded and turned once for all
// rows and all heads that share it.
//
// A vector holds one dimension of sixteen keys, so that scores need no shuffles: the sums that
// `sums_of` makes across lanes are made here between registers, in the same order.
#include "attention.h"

// What is kept in registers: scores of QUERIES queries at once, and sums of QUERIES x CHUNK vectors.
#if defined(__AVX512F__)
#define QUERIES 4
#define CHUNK 4
#else
#define QUERIES 2
#define CHUNK 2
#endif
#define MAX_QUERIES 64
#define MAX_SIZE (MAX_VECTORS * LANES)

// The queries of some heads of all rows, row by row, filled up with zeros to a multiple of QUERIES.
typedef struct {
  _Alignas(64) float query[MAX_QUERIES * MAX_SIZE];
  _Alignas(64) float sum[MAX_QUERIES * MAX_SIZE];
  _Alignas(64) float maximum[MAX_QUERIES], weight[MAX_QUERIES], kept[MAX_QUERIES];
  _Alignas(64) float scores[MAX_QUERIES][BLOCK_KEYS];
  int counts[MAX_QUERIES]; // how many keys of the block each sees
  _Alignas(64) float keys[2][MAX_SIZE * LANES]; // [half of the block][dimension][key]
  _Alignas(64) float values[BLOCK_KEYS * MAX_SIZE]; // [key][dimension]
} Queries;

// Sixteen vectors become their columns.
INLINE void turn(f32x16 *x) {
  f32x16 y[LANES];
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i += 2) {
    y[i] = SHUFFLE(x[i], x[i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    y[i + 1] = SHUFFLE(x[i], x[i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i += 4)
#pragma clang loop unroll(full)
    for (int j = i; j < i + 2; j++) {
      x[j] = SHUFFLE(y[j], y[j + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      x[j + 2] = SHUFFLE(y[j], y[j + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
#pragma clang loop unroll(full)
  for (int i = 0; i < LANES; i += 8)
#pragma clang loop unroll(full)
    for (int j = i; j < i + 4; j++) {
      y[j] = SHUFFLE(x[j], x[j + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
      y[j + 4] = SHUFFLE(x[j], x[j + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
#pragma clang loop unroll(full)
  for (int j = 0; j < 8; j++) {
    x[j] = SHUFFLE(y[j], y[j + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    x[j + 8] = SHUFFLE(y[j], y[j + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}

// Keys and values of a block as the loops take them. What follows its last key is that key again.
INLINE void take_in(Queries *s, const Attention *a, const Block *block, int64_t kv_head,
                    int vectors, int is_bfloat16) {
  for (int first = 0; first < block->count; first += LANES) {
    int64_t at[LANES];
    for (int key = 0; key < LANES; key++)
      at[key] = (block->rows[least(first + key, block->count - 1)] * a->kv_heads + kv_head) * a->size;
    for (int v = 0; v < vectors; v++) {
      f32x16 keys[LANES], *to = (f32x16 *)s->keys[first / LANES] + v * LANES;
#pragma clang loop unroll(full)
      for (int key = 0; key < LANES; key++) keys[key] = load(a->keys, at[key] + v * LANES, is_bfloat16);
      turn(keys);
#pragma clang loop unroll(full)
      for (int i = 0; i < LANES; i++) to[i] = keys[i];
    }
    for (int key = 0; key < LANES; key++)
      for (int v = 0; v < vectors; v++)
        *(f32x16 *)(s->values + ((first + key) * vectors + v) * LANES) =
            load(a->values, at[key] + v * LANES, is_bfloat16);
  }
}

INLINE void fetch_block(const Attention *a, const Block *block, int64_t kv_head, int vectors,
                        int is_bfloat16) {
  for (int key = 0; key < block->count; key++) {
    int64_t at = (block->rows[key] * a->kv_heads + kv_head) * a->size;
    fetch(a->keys, at, vectors, is_bfloat16);
    fetch(a->values, at, vectors, is_bfloat16);
  }
}

// Scores of sixteen keys for QUERIES queries. Lane by lane of `score`'s vectors, and a lane's sum
// waits for its neighbour's as in `sums_of`: sums[level] are those of 2^level lanes.
INLINE void score_keys(const float *query, const f32x16 *keys, float (*scores)[BLOCK_KEYS],
                       int vectors) {
  f32x16 sums[4][QUERIES];
#pragma clang loop unroll(full)
  for (int lane = 0; lane < LANES; lane++) {
    f32x16 sum[QUERIES], k = keys[lane];
#pragma clang loop unroll(full)
    for (int q = 0; q < QUERIES; q++) sum[q] = query[q * vectors * LANES + lane] * k;
#pragma clang loop unroll(full)
    for (int v = 1; v < vectors; v++) {
      k = keys[v * LANES + lane];
#pragma clang loop unroll(full)
      for (int q = 0; q < QUERIES; q++)
        sum[q] = fma_of((f32x16)query[(q * vectors + v) * LANES + lane], k, sum[q]);
    }
#pragma clang loop unroll(full)
    for (int level = 0; level < 4; level++) {
      if (lane >> level & 1) {
#pragma clang loop unroll(full)
        for (int q = 0; q < QUERIES; q++) sum[q] = sums[level][q] + sum[q];
        continue;
      }
#pragma clang loop unroll(full)
      for (int q = 0; q < QUERIES; q++) sums[level][q] = sum[q];
      break;
    }
    if (lane == LANES - 1)
#pragma clang loop unroll(full)
      for (int q = 0; q < QUERIES; q++) *(f32x16 *)scores[q] = sum[q];
  }
}

// As `weigh`, for all queries: what a query does not see weighs nothing.
INLINE void weigh_all(Queries *s, int num_queries, int vectors) {
  const i32x16 places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  _Alignas(64) float maximum[MAX_QUERIES];
  for (int q = 0; q < num_queries; q++) {
    f32x16 *scores = (f32x16 *)s->scores[q], largest = (f32x16)s->maximum[q];
    for (int half = 0; half < 2; half++) {
      if (s->counts[q] < (half + 1) * LANES)
        scores[half] = places < s->counts[q] - half * LANES ? scores[half] : (f32x16)-INFINITY;
      largest = scores[half] > largest ? scores[half] : largest;
    }
    maximum[q] = largest_of(largest);
  }
  for (int q = 0; q < num_queries; q += LANES)
    *(f32x16 *)(s->kept + q) = exp_of(*(f32x16 *)(s->maximum + q) - *(f32x16 *)(maximum + q));
  for (int q = 0; q < num_queries; q++) {
    if (!s->counts[q]) continue;
    f32x16 *scores = (f32x16 *)s->scores[q];
    scores[0] = exp_of(scores[0] - maximum[q]);
    scores[1] = exp_of(scores[1] - maximum[q]);
    s->weight[q] = s->weight[q] * s->kept[q] + sum_of(scores[0] + scores[1]);
    s->maximum[q] = maximum[q];
    if (s->kept[q] == 1.0f) continue;
    for (int v = 0; v < vectors; v++) *(f32x16 *)(s->sum + (q * vectors + v) * LANES) *= s->kept[q];
  }
}

// Adds up keys [from ─ to) of `count` queries, `chunk` vectors of each.
INLINE void gather_keys(Queries *s, int first, int v, int from, int to, int count, int chunk,
                        int vectors) {
  f32x16 sums[QUERIES * CHUNK];
  float *kept = s->sum + (first * vectors + v) * LANES;
#pragma clang loop unroll(full)
  for (int q = 0; q < count; q++)
#pragma clang loop unroll(full)
    for (int i = 0; i < chunk; i++) sums[q * chunk + i] = *(f32x16 *)(kept + (q * vectors + i) * LANES);
  for (int key = from; key < to; key++) {
    f32x16 value[CHUNK];
#pragma clang loop unroll(full)
    for (int i = 0; i < chunk; i++)
      value[i] = *(f32x16 *)(s->values + (key * vectors + v + i) * LANES);
#pragma clang loop unroll(full)
    for (int q = 0; q < count; q++)
#pragma clang loop unroll(full)
      for (int i = 0; i < chunk; i++)
        sums[q * chunk + i] = fma_of((f32x16)s->scores[first + q][key], value[i], sums[q * chunk + i]);
  }
#pragma clang loop unroll(full)
  for (int q = 0; q < count; q++)
#pragma clang loop unroll(full)
    for (int i = 0; i < chunk; i++) *(f32x16 *)(kept + (q * vectors + i) * LANES) = sums[q * chunk + i];
}

INLINE void gather_all(Queries *s, int num_queries, int vectors) {
  for (int first = 0; first < num_queries; first += QUERIES) {
    // Later rows of a sequence see more: what all see is added together, the rest one by one.
    int common = s->counts[first];
    int v = 0;
    for (; v + CHUNK <= vectors; v += CHUNK) gather_keys(s, first, v, 0, common, QUERIES, CHUNK, vectors);
    for (; v < vectors; v++) gather_keys(s, first, v, 0, common, QUERIES, 1, vectors);
    for (int q = first + 1; q < first + QUERIES; q++)
      if (s->counts[q] > common)
        for (v = 0; v < vectors; v++) gather_keys(s, q, v, common, s->counts[q], 1, 1, vectors);
  }
}

typedef struct {
  int64_t head; // the first of `heads`
  int heads, num_rows, num_queries, num_filled;
} Group;

INLINE void begin_group(Queries *s, const Attention *a, const Tile *tile, const Group *group,
                        int vectors) {
  float scale = 1.0f / sqrtf((float)a->size);
  for (int q = 0; q < group->num_filled; q++) {
    const float *query = a->query + (tile->row + q / group->heads) * a->query_stride +
                         (group->head + q % group->heads) * a->size;
    for (int v = 0; v < vectors; v++) {
      f32x16 part = q < group->num_queries ? *(const f32x16 *)(query + v * LANES) * scale : (f32x16)0;
      *(f32x16 *)(s->query + (q * vectors + v) * LANES) = part;
      *(f32x16 *)(s->sum + (q * vectors + v) * LANES) = (f32x16)0;
    }
    s->maximum[q] = -INFINITY;
    s->weight[q] = 0;
    s->counts[q] = 0;
  }
}

// Blocks that all rows of a tree, or of a chain with its edge, see together.
INLINE void add_shared(Queries *s, const Attention *a, const Tile *tile, const Group *group,
                       int64_t kv_head, int64_t begin, int64_t end, int vectors, int is_bfloat16) {
  if (begin >= end) return;
  Cursor cursor = keys_between(a, tile, 0, begin, end);
  Block blocks[2];
  take_block(&cursor, &blocks[0]);
  for (int now = 0; blocks[now].count; now = !now, begin += BLOCK_KEYS) {
    const Block *block = &blocks[now];
    take_block(&cursor, &blocks[!now]);
    take_in(s, a, block, kv_head, vectors, is_bfloat16);
    fetch_block(a, &blocks[!now], kv_head, vectors, is_bfloat16);
    for (int q = 0; q < group->num_queries; q++) {
      int64_t seen = num_keys(tile, q / group->heads) - begin;
      s->counts[q] = (int)least(seen > 0 ? seen : 0, block->count);
    }
    for (int first = 0; first < block->count; first += LANES)
      for (int q = 0; q < group->num_filled; q += QUERIES)
        score_keys(s->query + q * vectors * LANES, (f32x16 *)s->keys[first / LANES],
                   (float (*)[BLOCK_KEYS]) & s->scores[q][first], vectors);
    weigh_all(s, group->num_queries, vectors);
    gather_all(s, group->num_filled, vectors);
  }
}

// What each row of a tree sees alone.
INLINE void add_ways(Queries *s, const Attention *a, const Tile *tile, const Group *group,
                     int64_t kv_head, int64_t begin, int64_t end, int vectors, int is_bfloat16) {
  for (int q = 0; q < group->num_queries; q += group->heads) {
    int64_t row = q / group->heads;
    for (int head = 0; head < group->heads; head += MAX_HEADS) {
      int heads = (int)least(group->heads - head, MAX_HEADS), at = q + head;
      Cursor cursor = keys_between(a, tile, row, begin, least(end, num_keys(tile, row)));
      if (cursor.left <= 0) continue;
      State state;
      for (int i = 0; i < heads * vectors; i++) {
        state.query[i] = *(f32x16 *)(s->query + (at * vectors + i) * LANES);
        state.sum[i] = *(f32x16 *)(s->sum + (at * vectors + i) * LANES);
      }
      for (int i = 0; i < heads; i++) {
        state.maximum[i] = s->maximum[at + i];
        state.weight[i] = s->weight[at + i];
      }
      Block blocks[2];
      take_block(&cursor, &blocks[0]);
      for (int now = 0; blocks[now].count; now = !now) {
        take_block(&cursor, &blocks[!now]);
        add_block_of(heads, &state, a, &blocks[now], &blocks[!now], kv_head, vectors, is_bfloat16);
      }
      for (int i = 0; i < heads * vectors; i++)
        *(f32x16 *)(s->sum + (at * vectors + i) * LANES) = state.sum[i];
      for (int i = 0; i < heads; i++) {
        s->maximum[at + i] = state.maximum[i];
        s->weight[at + i] = state.weight[i];
      }
    }
  }
}

INLINE void attend_group(Queries *s, const Attention *a, const Item *item, const Group *group,
                         int vectors, int is_bfloat16) {
  const Tile *tile = a->tiles + item->tile;
  int64_t begin = item->part * PART_KEYS, end = begin + PART_KEYS;
  begin_group(s, a, tile, group, vectors);
  // A block is shared as a whole or not at all.
  int64_t shared = tile->ways ? tile->past / BLOCK_KEYS * BLOCK_KEYS : num_keys(tile, tile->num_rows - 1);
  add_shared(s, a, tile, group, item->kv_head, begin, least(end, shared), vectors, is_bfloat16);
  if (tile->ways)
    add_ways(s, a, tile, group, item->kv_head, begin > shared ? begin : shared, end, vectors, is_bfloat16);
  for (int q = 0; q < group->num_queries; q++) {
    if (num_keys(tile, q / group->heads) <= begin) continue;
    float *partial = partial_of(a, tile, q / group->heads, item->part, group->head + q % group->heads);
    partial[0] = s->maximum[q];
    partial[1] = s->weight[q];
    for (int v = 0; v < vectors; v++)
      *(f32x16 *)(partial + 2 + v * LANES) = *(f32x16 *)(s->sum + (q * vectors + v) * LANES);
  }
}

INLINE void attend_all(const Attention *a, const Item *item, int vectors, int is_bfloat16) {
  Queries queries;
  int64_t shared = a->heads / a->kv_heads, num_rows = a->tiles[item->tile].num_rows;
  int64_t at_once = MAX_QUERIES / num_rows;
  for (int64_t head = 0; head < shared; head += at_once) {
    Group group = {.head = item->kv_head * shared + head,
                   .heads = (int)least(shared - head, at_once),
                   .num_rows = (int)num_rows};
    group.num_queries = group.heads * group.num_rows;
    group.num_filled = (group.num_queries + QUERIES - 1) / QUERIES * QUERIES;
    attend_group(&queries, a, item, &group, vectors, is_bfloat16);
  }
}

static __attribute__((noinline)) void attend_64(const Attention *a, const Item *item, int is_bfloat16) {
  attend_all(a, item, 4, is_bfloat16);
}
static __attribute__((noinline)) void attend_128(const Attention *a, const Item *item, int is_bfloat16) {
  attend_all(a, item, 8, is_bfloat16);
}

void attend_tile(const Attention *a, const Item *item, int is_bfloat16) {
  switch (a->size) {
  case 64: attend_64(a, item, is_bfloat16); break;
  case 128: attend_128(a, item, is_bfloat16); break;
  default: attend_all(a, item, (int)(a->size / LANES), is_bfloat16);
  }
}
