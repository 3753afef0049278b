#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "worker/rank/kernels/cuda/rows.h"

// Teams of a GPU's threads, and the grid that gives them rows (rows.h). Only nvcc compiles this file.
namespace titan::kernels::device {

constexpr int kWarp = 32;

template <typename A>
__device__ A shuffled(const A& value, int from) {
  static_assert(sizeof(A) % sizeof(int) == 0);
  int words[sizeof(A) / sizeof(int)];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (int& word : words) word = __shfl_sync(~0U, word, from);
  A result;
  memcpy(&result, words, sizeof result);
  return result;
}

// Returns lane 0's result to all lanes, because another order of operands could change the last bit.
template <typename A, typename Merge>
__device__ A merged_over_warp(A value, const Merge& merge) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    const int lane = threadIdx.x % kWarp;
    value = merge(value, shuffled(value, (lane + apart) % kWarp));
  }
  return shuffled(value, 0);
}

class Threads {
 public:
  __device__ Threads(int rank, int size, float* memory) : rank_(rank), size_(size), memory_(memory) {}

  __device__ float* memory() const { return memory_; }
  template <typename F>
  __device__ void each(int64_t n, const F& f) const {
    for (int64_t i = rank_; i < n; i += size_) f(i);
  }
  template <typename F>
  __device__ void once(const F& f) const {
    if (rank_ == 0) f();
  }

 protected:
  template <typename A, typename Step>
  __device__ A own(int64_t n, A result, const Step& step) const {
    for (int64_t i = rank_; i < n; i += size_) result = step(result, i);
    return result;
  }

 private:
  const int rank_, size_;
  float* const memory_;
};

// The lanes run in step: after a fold all have its result, and all earlier reads are done.
class WarpTeam : public Threads {
 public:
  __device__ void barrier() const { __syncwarp(); }
  __device__ explicit WarpTeam(float* memory) : Threads(static_cast<int>(threadIdx.x) % kWarp, kWarp, memory) {}

  template <typename A, typename Step, typename Merge>
  __device__ A fold(int64_t n, A start, const Step& step, const Merge& merge) const {
    return merged_over_warp(own(n, start, step), merge);
  }
};

class BlockTeam : public Threads {
 public:
  __device__ void barrier() const { __syncthreads(); }
  __device__ explicit BlockTeam(float* memory)
      : Threads(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), memory) {}

  template <typename A, typename Step, typename Merge>
  __device__ A fold(int64_t n, A start, const Step& step, const Merge& merge) const {
    constexpr int kMaxWarps = 1024 / kWarp;
    __shared__ alignas(A) unsigned char space[kMaxWarps * sizeof(A)];
    A* const of_warps = reinterpret_cast<A*>(space);
    const A of_warp = merged_over_warp(own(n, start, step), merge);
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
    __syncthreads();
    A result = of_warps[0];
    for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) result = merge(result, of_warps[warp]);
    __syncthreads();  // All threads read before the next fold writes.
    return result;
  }
};

// The threads of one x of a block [kWarp, kColumnThreads], so that neighbours read neighbouring columns.
class ColumnTeam : public Threads {
 public:
  __device__ ColumnTeam() : Threads(static_cast<int>(threadIdx.y), kColumnThreads, nullptr) {}

  template <typename A, typename Step, typename Merge>
  __device__ A fold(int64_t n, A start, const Step& step, const Merge& merge) const {
    __shared__ A of_threads[kColumnThreads][kWarp];
    of_threads[threadIdx.y][threadIdx.x] = own(n, start, step);
    __syncthreads();
    A result = of_threads[0][threadIdx.x];
    for (int thread = 1; thread < kColumnThreads; ++thread) result = merge(result, of_threads[thread][threadIdx.x]);
    __syncthreads();
    return result;
  }
};

extern __shared__ float4 shared_memory[];

template <typename Body>
__global__ void rows_by_warps(Body body, int64_t rows, int64_t floats) {
  const unsigned warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  WarpTeam team(floats == 0 ? nullptr : reinterpret_cast<float*>(shared_memory) + warp * floats);
  const int64_t step = static_cast<int64_t>(gridDim.x) * warps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * warps + warp; row < rows; row += step) body(team, row);
}

template <typename Body>
__global__ void rows_by_blocks(Body body, int64_t rows, int64_t floats) {
  BlockTeam team(floats == 0 ? nullptr : reinterpret_cast<float*>(shared_memory));
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) body(team, row);
}

// Threads past the last column repeat its work and write the same number.
template <typename Body>
__global__ void columns_by_threads(Body body, int64_t columns) {
  ColumnTeam team;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  body(team, column < columns ? column : columns - 1);
}

// Launches on a stream. `error` is that of the first launch that the device refused.
struct CudaGrid {
  cudaStream_t stream;
  cudaError_t error = cudaSuccess;

  template <typename Body>
  void operator()(const Body& body, int64_t rows, int threads, int64_t floats = 0) {
    if (rows == 0 || error != cudaSuccess) return;
    constexpr int64_t kMaxBlocks = int64_t{1} << 30;
    constexpr int kWarps = 4;              // Warps per block if each warp has its own row.
    constexpr int64_t kMemory = 46 << 10;  // Bytes for bodies. Folds use the rest of 48 KiB.
    const int teams = threads == kWarp ? kWarps : 1;
    floats = (floats + 3) / 4 * 4;
    if (floats * static_cast<int64_t>(sizeof(float)) * teams > kMemory) floats = 0;
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float) * teams;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((rows + teams - 1) / teams, kMaxBlocks));
    if (threads == kWarp) {
      rows_by_warps<<<blocks, kWarp * kWarps, bytes, stream>>>(body, rows, floats);
    } else {
      rows_by_blocks<<<blocks, threads, bytes, stream>>>(body, rows, floats);
    }
    error = cudaGetLastError();
  }

  template <typename Body>
  void columns(const Body& body, int64_t columns) {
    if (columns == 0 || error != cudaSuccess) return;
    const auto blocks = static_cast<unsigned>((columns + kWarp - 1) / kWarp);
    columns_by_threads<<<blocks, dim3(kWarp, kColumnThreads), 0, stream>>>(body, columns);
    error = cudaGetLastError();
  }
};

}  // namespace titan::kernels::device
