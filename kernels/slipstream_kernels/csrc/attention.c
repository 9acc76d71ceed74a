// Attention over paged keys and values, which are read where they lie: causal, or of trees.
//
// One item of work is a tile of rows and a part of their keys, of a length that nothing else
// decides: an answer depends on its own sequence alone, however its prompt was cut into chunks.
// A tile of one row takes all heads at once, so that rows of the pool are read whole: each key is
// loaded once for the query heads that share it, in blocks with a running maximum (online softmax,
// Milakov and Gimelshein 2018). Tiles of more rows: attention_tiles.c.
#include "attention.h"

// Fewer rows of a sequence are attended one by one. Tiles take, of rows by themselves, 0.85 to 1.1
// times as long with three rows and 0.5 to 0.95 with four, whatever the number and size of heads
// (bfloat16, one core of an EPYC with AVX-512).
#define MIN_ROWS 4
// Rows times heads that share a KV head: 32 takes 8 % longer, 64 no less.
#define MAX_QUERIES_IN_TILE 48
// Answers to parts are kept in so much memory at once; beyond, tiles wait for their turn.
#define PARTIAL_BYTES ((int64_t)16 << 20)
// Joined on this thread alone: less is done before another thread has come.
#define FEW_PARTIALS 64

INLINE int64_t states_per_kv_head(const Attention *a) {
  return (a->heads / a->kv_heads + MAX_HEADS - 1) / MAX_HEADS;
}

// Which query heads a state is for.
INLINE State *state_of(State *states, const Attention *a, int64_t kv_head, int64_t head) {
  return states + kv_head * states_per_kv_head(a) + head / MAX_HEADS;
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

INLINE void end(const State *s, float *partial, int heads, int vectors) {
  for (int head = 0; head < heads; head++, partial += 2 + vectors * LANES) {
    partial[0] = s->maximum[head];
    partial[1] = s->weight[head];
    for (int v = 0; v < vectors; v++)
      *(f32x16 *)(partial + 2 + v * LANES) = s->sum[head * vectors + v];
  }
}

// One part of one row's keys, all heads: a row of the pool is read once and whole.
INLINE void attend_row(const Attention *a, const Item *item, int vectors, int is_bfloat16) {
  const Tile *tile = a->tiles + item->tile;
  int64_t shared = a->heads / a->kv_heads;
  State states[a->kv_heads * states_per_kv_head(a)];
#define EACH_STATE                                                                                 \
  for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head++)                                      \
    for (int64_t head = 0, heads; head < shared; head += MAX_HEADS)                                \
      if ((heads = least(shared - head, MAX_HEADS)))
  EACH_STATE begin(state_of(states, a, kv_head, head), a,
                   a->query + tile->row * a->query_stride + (kv_head * shared + head) * a->size,
                   (int)heads, vectors);
  int64_t first = item->part * PART_KEYS;
  Cursor cursor = keys_between(a, tile, 0, first, least(num_keys(tile, 0), first + PART_KEYS));
  Block blocks[2];
  take_block(&cursor, &blocks[0]);
  for (int now = 0; blocks[now].count; now = !now) {
    take_block(&cursor, &blocks[!now]);
    EACH_STATE add_block_of(heads, state_of(states, a, kv_head, head), a, &blocks[now],
                            &blocks[!now], kv_head, vectors, is_bfloat16);
  }
  EACH_STATE end(state_of(states, a, kv_head, head),
                 partial_of(a, tile, 0, item->part, kv_head * shared + head), (int)heads, vectors);
}

// The usual sizes of a head are compiled by themselves: their sums stay in registers.
#define ITEMS(type, is_bfloat16)                                                                   \
  static void attend_##type(const void *job, int64_t number) {                                     \
    const Attention *a = job;                                                                      \
    const Item *item = a->items + number;                                                          \
    if (!a->tiles[item->tile].is_row) {                                                            \
      attend_tile(a, item, is_bfloat16);                                                           \
      return;                                                                                      \
    }                                                                                              \
    switch (a->size) {                                                                             \
    case 64: attend_row(a, item, 4, is_bfloat16); break;                                           \
    case 128: attend_row(a, item, 8, is_bfloat16); break;                                          \
    default: attend_row(a, item, (int)(a->size / LANES), is_bfloat16);                             \
    }                                                                                              \
  }
ITEMS(float32, 0)
ITEMS(bfloat16, 1)

// One answer from those of a row's parts, in their order.
static void join_parts(const Attention *a, const Tile *tile, int64_t row, int64_t head) {
  int64_t num_parts = (num_keys(tile, row) + PART_KEYS - 1) / PART_KEYS;
  int64_t stride = a->heads * (2 + a->size);
  const float *partials = partial_of(a, tile, row, 0, head);
  float *out = a->out + ((tile->row + row) * a->heads + head) * a->size;
  float maximum = -INFINITY, weight = 0;
  for (int64_t part = 0; part < num_parts; part++)
    maximum = partials[part * stride] > maximum ? partials[part * stride] : maximum;
  for (int64_t i = 0; i < a->size; i++) out[i] = 0;
  for (int64_t part = 0; part < num_parts; part++) {
    const float *partial = partials + part * stride;
    float share = exp_of((f32x16)(partial[0] - maximum))[0];
    weight += share * partial[1];
    for (int64_t i = 0; i < a->size; i++) out[i] += share * partial[2 + i];
  }
  for (int64_t i = 0; i < a->size; i++) out[i] /= weight;
}

static void join(const void *job, int64_t number) {
  const Attention *a = job;
  const Tile *tile = a->tiles + number;
  for (int64_t row = 0; row < tile->num_rows; row++)
    for (int64_t head = 0; head < a->heads; head++) join_parts(a, tile, row, head);
}

// A span as Python writes it: first row of the batch, number of rows, keys before them, first run,
// first way (-1: causal).
enum { ROW, NUM_ROWS, PAST, FIRST_RUN, FIRST_WAY, SPAN_FIELDS };

// Cuts spans into tiles of equal numbers of rows; returns how many.
static int64_t cut(const int64_t *spans, int64_t num_spans, const int64_t *runs,
                   const int64_t *ways, int64_t shared, Tile *tiles) {
  int64_t num_tiles = 0;
  for (const int64_t *span = spans; span < spans + num_spans * SPAN_FIELDS; span += SPAN_FIELDS) {
    int is_row = span[NUM_ROWS] < MIN_ROWS;
    int64_t most = is_row || shared > MAX_QUERIES_IN_TILE ? 1 : MAX_QUERIES_IN_TILE / shared;
    int64_t count = (span[NUM_ROWS] + most - 1) / most;
    for (int64_t i = 0; i < count; i++) {
      int64_t first = span[NUM_ROWS] * i / count, num_rows = span[NUM_ROWS] * (i + 1) / count - first;
      Tile tile = {.row = span[ROW] + first, .num_rows = num_rows, .is_row = is_row,
                   .past = span[PAST], .runs = runs + 2 * span[FIRST_RUN]};
      if (span[FIRST_WAY] < 0)
        tile.past += first;
      else
        tile.ways = ways + 2 * (span[FIRST_WAY] + first);
      for (int64_t row = 0; row < num_rows; row++) {
        int64_t num_parts = (num_keys(&tile, row) + PART_KEYS - 1) / PART_KEYS;
        tile.num_parts = num_parts > tile.num_parts ? num_parts : tile.num_parts;
      }
      tiles[num_tiles++] = tile;
    }
  }
  return num_tiles;
}

// As many tiles, from `first` on, as have room for their partial answers; returns the next one.
static int64_t gather_round(Tile *tiles, int64_t first, int64_t num_tiles, const Attention *a,
                            Item *items, int64_t *num_items, int64_t *num_partials) {
  int64_t room = PARTIAL_BYTES / (a->heads * (2 + a->size) * (int64_t)sizeof(float));
  int64_t tile = first;
  *num_items = *num_partials = 0;
  for (; tile < num_tiles; tile++) {
    int64_t more = tiles[tile].num_rows * tiles[tile].num_parts;
    if (tile > first && *num_partials + more > room) break;
    tiles[tile].first_partial = *num_partials;
    *num_partials += more;
    int64_t kv_heads = tiles[tile].is_row ? 1 : a->kv_heads;
    for (int64_t part = 0; part < tiles[tile].num_parts; part++)
      for (int64_t kv_head = 0; kv_head < kv_heads; kv_head++)
        items[(*num_items)++] = (Item){tile, part, kv_head};
  }
  return tile;
}

// size: a multiple of 16, 256 at the most; heads: 128 at the most. Every row has one key at least.
// Returns 0, or 1 when there is no memory.
EXPORT int slipstream_attention(const float *query, int64_t query_stride, const void *keys,
                                const void *values, int is_bfloat16, const int64_t *spans,
                                int64_t num_spans, const int64_t *runs, const int64_t *ways,
                                const int64_t *own, int64_t heads, int64_t kv_heads, int64_t size,
                                float *out) {
  int64_t num_rows = 0, num_all_items = 0;
  for (int64_t span = 0; span < num_spans; span++) num_rows += spans[span * SPAN_FIELDS + NUM_ROWS];
  if (!num_rows) return 0;
  Tile *tiles = scratch(SCRATCH_TILES, num_rows * (int64_t)sizeof(Tile));
  if (!tiles) return 1;
  int64_t num_tiles = cut(spans, num_spans, runs, ways, heads / kv_heads, tiles);
  for (int64_t tile = 0; tile < num_tiles; tile++) num_all_items += tiles[tile].num_parts * kv_heads;
  Item *items = scratch(SCRATCH_ITEMS, num_all_items * (int64_t)sizeof(Item));
  if (!items) return 1;
  Attention job = {.query = query, .query_stride = query_stride, .keys = keys, .values = values,
                   .own = own, .items = items, .heads = heads, .kv_heads = kv_heads, .size = size,
                   .out = out};
  for (int64_t first = 0, next; first < num_tiles; first = next) {
    int64_t num_items, num_partials;
    next = gather_round(tiles, first, num_tiles, &job, items, &num_items, &num_partials);
    job.tiles = tiles;
    job.partials = scratch(SCRATCH_PARTIALS,
                           num_partials * heads * (2 + size) * (int64_t)sizeof(float));
    if (!job.partials) return 1;
    parallel(is_bfloat16 ? attend_bfloat16 : attend_float32, &job, num_items);
    job.tiles = tiles + first;
    if (num_partials > FEW_PARTIALS)
      parallel(join, &job, next - first);
    else
      for (int64_t tile = 0; tile < next - first; tile++) join(&job, tile);
  }
  return 0;
}
