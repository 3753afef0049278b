#pragma once

#include <cstdint>

// How rows are dealt to threads. A body is written for a team of threads that share a row:
//
//   team.each(n, f)                     f(i) for i in [0, n), always the same thread for the same i: results may lie
//                                       over what that thread has read
//   team.fold(n, start, step, merge)    every thread: start, then step(so far, i) for its i in order; then merged over
//                                       the team in an order that its size alone decides. All threads get the result,
//                                       and what any thread read before, no thread overwrites until all are here
//   team.once(f)                        one thread
//   team.barrier()                      what any thread wrote before, all see afterwards
//   team.memory()                       the floats that the body asked for, of this team alone; null: none were free
//
// and is the same source on a GPU (team.h) and on the host, where tests play the threads one after another.
//
// A grid runs a body for all rows: grid(body, rows, threads of a team, floats of memory a team), body(team, row), and
// for single columns grid.columns(body, columns).
namespace titan::kernels::device {

// Threads for a row of `items`: a warp where that leaves each of them few, or a block.
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
