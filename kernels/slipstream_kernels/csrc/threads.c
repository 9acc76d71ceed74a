// A fixed set of threads that wait for each other for microseconds, then sleep.
//
// Torch's own (libgomp's) cannot be used: its wheels carry a private copy. Nobody waits for a
// thread that has not come: what it has not taken, others do.
#define _GNU_SOURCE
#include "native.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 256
// About 60 microseconds: longer than the pause between two products of a step, shorter than
// what another process would miss.
#define SPINS 3000
// Attention keeps a megabyte there; what a thread gets by itself depends on who starts the process.
#define STACK_BYTES ((size_t)4 << 20)

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
  // The caller's is the first.
  _Atomic int num_threads;
  int num_started;
} pool = {.num_threads = 1, .num_started = 1};

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

static void *live(void *number) {
  uint32_t heard = 0;
  for (;;) {
    heard = wait_for_bell(heard);
    // Fewer may be wanted than were started.
    if ((intptr_t)number >= atomic_load_explicit(&pool.num_threads, memory_order_relaxed)) continue;
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
  if (num_threads() == 1 || num_items <= 1) {
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

// A child of fork has the thread that forked and no other.
static void forget_threads(void) {
  pool.num_started = 1;
  atomic_store(&pool.num_threads, 1);
  atomic_store(&pool.num_sleeping, 0);
}

static int start_thread(int number) {
  pthread_t thread;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes)) return 1;
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // Signals are for the process's own threads, but for those that tell of this one's faults.
  sigset_t blocked, before;
  sigfillset(&blocked);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int failed = pthread_create(&thread, &attributes, live, (void *)(intptr_t)number);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return failed;
}

// Returns how many threads there are now: fewer than asked for where the system gives no more.
EXPORT int slipstream_set_threads(int count) {
  static int is_told_of_forks = 0;
  if (!is_told_of_forks) is_told_of_forks = !pthread_atfork(NULL, NULL, forget_threads);
  if (count > MAX_THREADS) count = MAX_THREADS;
  if (count < 1) count = 1;
  while (pool.num_started < count && !start_thread(pool.num_started)) pool.num_started++;
  if (count > pool.num_started) count = pool.num_started;
  atomic_store(&pool.num_threads, count);
  return count;
}

int num_threads(void) { return atomic_load_explicit(&pool.num_threads, memory_order_relaxed); }

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
