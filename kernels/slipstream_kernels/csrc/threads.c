// A fixed set of threads that wait for each other for microseconds, then sleep.
//
// Torch's own (libgomp's) cannot be used: its wheels carry a private copy. Nobody waits for a
// thread that has not come: what it has not taken, others do.
#define _GNU_SOURCE
#include "native.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 256
// About 60 microseconds: longer than the pause between two products of a step, shorter than
// what another process would miss.
#define SPINS 3000

static struct {
  Work work;
  const void *job;
  int64_t num_items;
  _Alignas(64) _Atomic int64_t next_item;
  // Low half: threads at work; high half: which job, odd while it may be joined.
  _Alignas(64) _Atomic uint64_t state;
  // The high half again, as the 32 bits that a futex takes.
  _Alignas(64) _Atomic uint32_t bell;
  _Atomic int num_sleeping;
  int num_threads;
} pool = {.num_threads = 1};

INLINE void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void take_items(void) {
  for (;;) {
    int64_t item = atomic_fetch_add_explicit(&pool.next_item, 1, memory_order_relaxed);
    if (item >= pool.num_items) return;
    pool.work(pool.job, item);
  }
}

static uint32_t wait_for_bell(uint32_t heard) {
  for (int spin = 0; spin < SPINS; spin++) {
    uint32_t now = atomic_load_explicit(&pool.bell, memory_order_acquire);
    if (now != heard) return now;
    pause_briefly();
  }
  atomic_fetch_add(&pool.num_sleeping, 1);
  while (atomic_load(&pool.bell) == heard)
    syscall(SYS_futex, &pool.bell, FUTEX_WAIT_PRIVATE, heard, NULL, NULL, 0);
  atomic_fetch_sub(&pool.num_sleeping, 1);
  return atomic_load(&pool.bell);
}

static void *live(void *nothing) {
  (void)nothing;
  uint32_t heard = 0;
  for (;;) {
    heard = wait_for_bell(heard);
    uint64_t state = atomic_load(&pool.state);
    // Joined only while it is open: a late thread finds the job closed, or the next one.
    while (state >> 32 & 1 && !atomic_compare_exchange_weak(&pool.state, &state, state + 1))
      ;
    if (!(state >> 32 & 1)) continue;
    take_items();
    atomic_fetch_sub_explicit(&pool.state, 1, memory_order_release);
  }
  return NULL;
}

void parallel(Work work, const void *job, int64_t num_items) {
  if (pool.num_threads == 1 || num_items == 1) {
    for (int64_t item = 0; item < num_items; item++) work(job, item);
    return;
  }
  pool.work = work;
  pool.job = job;
  pool.num_items = num_items;
  atomic_store_explicit(&pool.next_item, 0, memory_order_relaxed);
  uint64_t opened = (atomic_load(&pool.state) >> 32) + 1;
  atomic_store(&pool.state, opened << 32);
  atomic_store(&pool.bell, (uint32_t)opened);
  if (atomic_load(&pool.num_sleeping))
    syscall(SYS_futex, &pool.bell, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
  take_items();
  // Closed for those who come late; those who came are waited for.
  atomic_fetch_add(&pool.state, (uint64_t)1 << 32);
  for (int spin = 0; (uint32_t)atomic_load_explicit(&pool.state, memory_order_acquire); spin++)
    if (spin < SPINS)
      pause_briefly();
    else
      sched_yield(); // it may wait for this core
}

// Returns how many threads there are now: fewer than asked for where the system gives no more.
EXPORT int slipstream_set_threads(int count) {
  static int num_started = 1;
  if (count > MAX_THREADS) count = MAX_THREADS;
  for (; num_started < count; num_started++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, live, NULL)) break;
    pthread_detach(thread);
  }
  pool.num_threads = num_started < count ? num_started : count;
  return pool.num_threads;
}

int num_threads(void) { return pool.num_threads; }

void *scratch(int slot, int64_t num_bytes) {
  static struct {
    void *memory;
    int64_t num_bytes;
  } kept[NUM_SCRATCHES];
  if (kept[slot].num_bytes < num_bytes) {
    free(kept[slot].memory);
    kept[slot].memory = aligned_alloc(64, (num_bytes + 63) & ~(int64_t)63);
    kept[slot].num_bytes = kept[slot].memory ? num_bytes : 0;
  }
  return kept[slot].memory;
}
