#pragma once

#include <cstdint>

// Assigns rows to threads. A body is written for a team of threads that share a row:
//
//   team.each(n, f)                     calls f(i) for i in [0, n), always on the same thread for the same i, so that
//                                       results may overwrite what that thread has read
//   team.fold(n, start, step, merge)    each thread begins with start and applies step(so far, i) for its i in order.
//                                       The results are merged in an order that depends only on the team's size. All
//                                       threads get the result, and fold returns only after all threads have done
//                                       their reads
//   team.once(f)                        calls f on one thread
//   team.barrier()                      makes what any thread wrote before visible to all
//   team.memory()                       returns the floats that the body requested, private to the team; null if none
//                                       were free
//
// The same source runs on a GPU (team.h) and on the host, where tests run the threads one after another.
//
// A grid runs a body for all rows: grid(body, rows, threads per team, floats of memory per team) calls body(team, row).
// grid.columns(body, columns) does so for single columns.
namespace titan::kernels::device {

// Returns the threads for a row of `items`: a warp if each of its threads gets few, else a block.
inline int threads_for(int64_t items) { return items <= 64 ? 32 : items <= 512 ? 128 : items <= 2048 ? 256 : 512; }

constexpr int kColumnThreads = 8;

struct Sum {
  template <typename T>
#if defined(__CUDACC__)
  __device__
#endif
      T
      operator()(T a, T b) const {
    return a + b;
  }
};

}  // namespace titan::kernels::device
