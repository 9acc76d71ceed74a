// What the kernels share: vectors of sixteen lanes, and the threads.
#pragma once
#include <stdint.h>

// Clang lowers these to whatever the target has: one 512-bit register or two of 256.
typedef float f32x16 __attribute__((ext_vector_type(16), aligned(4)));
typedef float f32x8 __attribute__((ext_vector_type(8), aligned(4)));
typedef float f32x4 __attribute__((ext_vector_type(4), aligned(4)));
typedef float f32x2 __attribute__((ext_vector_type(2), aligned(4)));
typedef _Float16 f16x16 __attribute__((ext_vector_type(16), aligned(2)));
typedef uint16_t u16x16 __attribute__((ext_vector_type(16), aligned(2)));
typedef int32_t i32x16 __attribute__((ext_vector_type(16), aligned(4)));
typedef uint32_t u32x16 __attribute__((ext_vector_type(16), aligned(4)));
typedef uint8_t u8x64 __attribute__((ext_vector_type(64), aligned(1)));

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef void (*Work)(const void *job, int64_t item);

// Calls work(job, item) for every item in [0, num_items), on all threads; returns when all are
// done. Items are taken one by one: a core that others use too takes fewer of them.
void parallel(Work work, const void *job, int64_t num_items);

int num_threads(void);

// Memory that lasts until the next call with the same slot; NULL when there is none.
enum { SCRATCH_QUANTISED, SCRATCH_TILES, SCRATCH_ITEMS, SCRATCH_PARTIALS, NUM_SCRATCHES };
void *scratch(int slot, int64_t num_bytes);
