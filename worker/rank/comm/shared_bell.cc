#include "worker/rank/comm/shared_bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

namespace titan::comm {
namespace {

uint32_t begin_sleep(AreaHeader& header) {
  header.asleep.value.fetch_add(1);
  return header.bell.value.load();
}

}  // namespace

void ring(AreaHeader& header) {
  header.bell.value.fetch_add(1);
  ::syscall(SYS_futex, &header.bell.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// This fence and the one of Sleep order each side's store before its look at the other's.
void ring_if_asleep(AreaHeader& header) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header.asleep.value.load(std::memory_order_relaxed) != 0) ring(header);
}

Sleep::Sleep(AreaHeader& header) : header_(header), bell_(begin_sleep(header)) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Sleep::until_rung(std::chrono::milliseconds longest) {
  const timespec limit{.tv_sec = longest.count() / 1000, .tv_nsec = longest.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, &header_.bell.value, FUTEX_WAIT, bell_, &limit, nullptr, 0);
}

}  // namespace titan::comm
