// Counts the memory that torch's CPU allocator holds, below torch: preloaded, it stands before libc's functions.
// What others allocate in the same way, oneDNN's scratch memory for example, is counted apart: it is no tensor's.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t SLOTS = 1u << 20;
constexpr size_t CALLERS = 64;

struct Block {
  uintptr_t address;  // 0: never used; the lowest bit is set: freed
  size_t nbytes;
  bool is_torchs;
};
struct Caller {
  const void* address;
  bool is_torch;
};
struct Count {
  long now, highest;
};

Block blocks[SLOTS];
Count torchs, others;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t slot_of(uintptr_t address) {
  return (size_t)(((uint64_t)(address >> 6) * 0x9E3779B97F4A7C15ull) >> 44) & (SLOTS - 1);
}

// torch's allocator is in libc10; oneDNN, which has its own, in libtorch_cpu.
bool is_torch(const void* caller) {
  static thread_local Caller known[CALLERS];
  Caller& found = known[((uintptr_t)caller >> 2) % CALLERS];
  if (found.address != caller) {
    Dl_info where;
    found.is_torch = dladdr(caller, &where) && where.dli_fname && strstr(where.dli_fname, "libc10");
    found.address = caller;
  }
  return found.is_torch;
}

void add(Count& count, long nbytes) {
  count.now += nbytes;
  if (count.now > count.highest) count.highest = count.now;
}

}  // namespace

extern "C" {

int posix_memalign(void** result, size_t alignment, size_t nbytes) noexcept {
  static auto real = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  const void* caller = __builtin_return_address(0);
  int failed = real(result, alignment, nbytes);
  if (failed || alignment < 64) return failed;
  bool torch = is_torch(caller);  // not under the lock: the loader has one of its own, under which it frees
  pthread_mutex_lock(&lock);
  uintptr_t address = (uintptr_t)*result;
  size_t slot = slot_of(address);
  while (blocks[slot].address && !(blocks[slot].address & 1)) slot = (slot + 1) & (SLOTS - 1);
  blocks[slot] = {address, nbytes, torch};
  add(torch ? torchs : others, (long)nbytes);
  pthread_mutex_unlock(&lock);
  return failed;
}

void free(void* block) noexcept {
  static auto real = (void (*)(void*))dlsym(RTLD_NEXT, "free");
  uintptr_t address = (uintptr_t)block;
  if (address && !(address & 63)) {
    pthread_mutex_lock(&lock);
    for (size_t slot = slot_of(address); blocks[slot].address; slot = (slot + 1) & (SLOTS - 1)) {
      if (blocks[slot].address == address) {
        add(blocks[slot].is_torchs ? torchs : others, -(long)blocks[slot].nbytes);
        blocks[slot].address |= 1;
        break;
      }
    }
    pthread_mutex_unlock(&lock);
  }
  real(block);
}

long metered_now() { return torchs.now; }
long metered_highest() { return torchs.highest; }
long metered_others() { return others.highest - others.now; }
void metered_reset() {
  torchs.highest = torchs.now;
  others.highest = others.now;
}
}
