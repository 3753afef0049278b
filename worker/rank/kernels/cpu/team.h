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

// Calls work(member, members) for each member of a team of at most `threads`, on threads of their own, and waits for
// all; one is the caller's own, without OpenMP. They are OpenMP's, which stay between calls; ThreadSanitizer does not
// see those begin and end, and gets others.
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
