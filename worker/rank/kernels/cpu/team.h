#pragma once

#ifdef TITAN_THREAD_SANITIZER
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

#include "worker/rank/kernels/cpu/inline.h"

namespace titan::kernels {
namespace {

// Calls work(member, members) for each member of a team of at most `threads`, on separate threads, and waits for all.
// One is the calling thread, and a team of one uses no OpenMP. The threads are OpenMP's and persist between calls.
// ThreadSanitizer does not see those start and end, so under it each call starts its own.
template <typename Work>
TITAN_INLINE void in_team(int threads, const Work& work) {
  if (threads <= 1) return work(0, 1);
#ifdef TITAN_THREAD_SANITIZER
  std::vector<std::thread> others;
  for (int member = 1; member < threads; ++member)
    others.emplace_back([&work, member, threads] { work(member, threads); });
  work(0, threads);
  for (std::thread& other : others) other.join();
#else
#pragma omp parallel num_threads(threads)
  work(omp_get_thread_num(), omp_get_num_threads());
#endif
}

}  // namespace
}  // namespace titan::kernels
