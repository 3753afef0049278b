#pragma once

#include <string.h>

#include "worker/rank/kernels/cpu/gemm.h"
#if defined(__AMX_BF16__) || defined(TITAN_EMULATED_TILES)
#include "worker/rank/kernels/cpu/gemm_tiles.h"
#elif defined(__AVX512BF16__) || defined(TITAN_EMULATED_DOTS)
#include "worker/rank/kernels/cpu/gemm_dots.h"
#else
#include "worker/rank/kernels/cpu/gemm_fma.h"
#endif

// Decides when operands are packed and which blocks are multiplied. The header that is included above has the level's
// inner product.
namespace titan::kernels::TITAN_LEVEL {
namespace {

constexpr int64_t kBlockRows = kStrip * kStripsPerBlock;
static_assert(kBlockRows <= kGemmBlockRows && kBlockDepth <= kGemmBlockDepth && 32 % kPanel == 0);

TITAN_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TITAN_INLINE int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }
TITAN_INLINE int64_t padded(int64_t depth) { return parts_of(depth, kDepthUnit) * kDepthUnit; }

// The second operand in panels, for some blocks of the depth. The blocks follow one another, each with all panels.
struct Panels {
  Packed* data;
  int64_t columns;

  int64_t count() const { return parts_of(columns, kPanel); }
  Packed* panel(int64_t depth_before, int64_t depth, int64_t index) const {
    return data + count() * kPanel * depth_before + index * kPanel * padded(depth);
  }
};

void pack_panels(const Operand& b, const Panels& to, int64_t first_depth, int64_t depth, int threads) {
  const int64_t blocks = parts_of(depth, kBlockDepth), groups = parts_of(to.count(), kPanelsPacked);
  in_parts(threads, groups * blocks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t before = i / groups * kBlockDepth, index = i % groups * kPanelsPacked, column = index * kPanel;
      const int64_t size = least(depth - before, kBlockDepth);
      pack_panels_of(b, column, least(to.columns - column, kPanel * kPanelsPacked), first_depth + before, size,
                     to.panel(before, size, index));
    }
  });
}

// Memory of one thread.
struct Workspace {
  Packed* strips;
  float* sums;

  Workspace(void* scratch, int64_t columns, int64_t thread)
      : strips(reinterpret_cast<Packed*>(static_cast<char*>(scratch) + thread * gemm_thread_scratch(columns))),
        sums(reinterpret_cast<float*>(strips) + kGemmBlockRows * kGemmBlockDepth) {}
};

// Sums of a result [kStrip, kPanel * kPanelsAtOnce], which stay in the L1 cache until a block of the depth is done.
struct Sums {
  static constexpr int64_t kStride = kPanel * kPanelsAtOnce;
  alignas(64) float data[kStrip * kStride];

  template <typename T>
  void take(const T* from, int64_t stride, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for_vectors(columns, [=, this](int64_t j, auto lanes) {
        store(data + i * kStride + j, load(from + i * stride + j, lanes), lanes);
      });
    }
  }
  template <typename T>
  void give(T* to, int64_t stride, int64_t rows, int64_t columns) const {
    for (int64_t i = 0; i < rows; ++i) {
      for_vectors(columns, [=, this](int64_t j, auto lanes) {
        store(to + i * stride + j, load(data + i * kStride + j, lanes), lanes);
      });
    }
  }
};

// Computes to [rows, columns] = before (null: 0) + a's rows from `first` on times b's panels, over one block of the
// depth.
template <typename From, typename To>
void multiply_block(const Operand& a, int64_t first, int64_t rows, int64_t done, int64_t depth, const Panels& b,
                    Packed* strips, const From* before, int64_t before_stride, To* to, int64_t stride) {
  const int64_t strip = kStrip * padded(depth), panel = kPanel * padded(depth);
  pack_strips(a, first, rows, done, depth, strips);
  const int64_t strips_here = parts_of(rows, kStrip);
  Sums sums;
  for (int64_t index = 0; index < b.count(); index += kPanelsAtOnce) {
    const int64_t column = index * kPanel, columns = least(b.columns - column, Sums::kStride);
    const int64_t next = index + kPanelsAtOnce < b.count() ? index + kPanelsAtOnce : 0;
    PanelPrefetch ahead(b.panel(done, depth, next), strips_here);
    for (int64_t i = 0; i < strips_here; ++i) {
      const int64_t row = i * kStrip, height = least(rows - row, kStrip);
      if (before != nullptr) sums.take(before + row * before_stride + column, before_stride, height, columns);
      multiply(strips + i * strip, b.panel(done, depth, index), panel, parts_of(columns, kPanel), padded(depth),
               sums.data, before != nullptr, ahead);
      sums.give(to + row * stride + column, stride, height, columns);
    }
  }
}

// Describes c [rows, b's columns] (+)= a [rows, depth] b for one group.
struct Product {
  Operand a;
  int64_t rows, depth;
  Operand b;
  void* c;
  Dtype c_type;
  int64_t c_stride;
  bool add;
};

// Computes all of rows [first, first + rows) of c, of type T. Until the last block of the depth, sums are in c itself
// or, if c is bf16, in this thread's memory.
template <typename T>
void finish_rows(const Product& p, int64_t first, int64_t rows, const Panels& b, const Workspace& mine) {
  constexpr bool kWide = sizeof(T) == sizeof(float);
  T* const c = at<T>(p.c, first * p.c_stride);
  float* const sums = kWide ? reinterpret_cast<float*>(c) : mine.sums;
  const int64_t stride = kWide ? p.c_stride : gemm_panels(b.columns);
  for (int64_t done = 0; done < p.depth || done == 0; done += kBlockDepth) {
    const int64_t depth = least(p.depth - done, kBlockDepth);
    const auto add_block = [&](const auto* before, int64_t before_stride, auto* to, int64_t to_stride) {
      multiply_block(p.a, first, rows, done, depth, b, mine.strips, before, before_stride, to, to_stride);
    };
    const bool begins = done == 0, ends = done + depth >= p.depth;
    const T* const start = p.add ? c : nullptr;
    if (begins && ends) {
      add_block(start, p.c_stride, c, p.c_stride);
    } else if (begins) {
      add_block(start, p.c_stride, sums, stride);
    } else if (ends) {
      add_block(sums, stride, c, p.c_stride);
    } else {
      add_block(sums, stride, sums, stride);
    }
  }
}

// Returns the rows that a thread packs and multiplies at once: fewer if some thread would otherwise get no block.
int64_t block_rows(int64_t rows, int threads) {
  return least(kBlockRows, parts_of(parts_of(rows, threads), kStrip) * kStrip);
}

// `scratch` holds the panels and `workspaces` the memory of the threads. Together they are gemm_scratch(columns, most
// depth, threads) bytes.
void compute(const Product& p, int64_t columns, void* scratch, void* workspaces, int threads) {
  const Panels panels = {static_cast<Packed*>(scratch), columns};
  pack_panels(p.b, panels, 0, p.depth, threads);
  const int64_t block = block_rows(p.rows, threads);
  in_numbered_parts(threads, parts_of(p.rows, block), [&](int64_t begin, int64_t end, int64_t thread) {
    [[maybe_unused]] const TileSession session;
    const Workspace mine(workspaces, columns, thread);
    for (int64_t i = begin; i < end; ++i) {
      const auto finish = p.c_type == Dtype::kF32 ? finish_rows<float> : finish_rows<uint16_t>;
      finish(p, i * block, least(p.rows - i * block, block), panels, mine);
    }
  });
}

}  // namespace

void gemm(const Gemm& g) {
  void* workspaces = static_cast<char*>(g.scratch) + gemm_scratch(g.columns, g.depth, 0);
  const int64_t c_bytes = g.c_type == Dtype::kF32 ? sizeof(float) : sizeof(uint16_t);
  int64_t first = 0;
  for (int64_t group = 0; group < g.groups; ++group) {
    const int64_t rows = g.group_rows == nullptr ? g.rows : g.group_rows[group];
    if (rows == 0) continue;
    const Product product = {.a = {g.a + first * g.a_stride, g.a_stride, false},
                             .rows = rows,
                             .depth = g.depth,
                             .b = {g.b + group * g.b_group, g.b_stride, g.b_is_deep},
                             .c = static_cast<char*>(g.c) + first * g.c_stride * c_bytes,
                             .c_type = g.c_type,
                             .c_stride = g.c_stride,
                             .add = g.add};
    compute(product, g.columns, g.scratch, workspaces, g.threads);
    first += rows;
  }
}

void weight_gradient(const WeightGradient& w) {
  const int64_t c_bytes = w.c_type == Dtype::kF32 ? sizeof(float) : sizeof(uint16_t);
  int64_t first = 0, most = 0;
  for (int64_t group = 0; group < w.groups; ++group) {
    const int64_t rows = w.group_rows == nullptr ? w.rows : w.group_rows[group];
    most = rows > most ? rows : most;
  }
  void* workspaces = static_cast<char*>(w.scratch) + gemm_scratch(w.inputs, most, 0);
  for (int64_t group = 0; group < w.groups; ++group) {
    const int64_t rows = w.group_rows == nullptr ? w.rows : w.group_rows[group];
    const Product product = {.a = {w.dy + first * w.dy_stride, w.dy_stride, true},
                             .rows = w.outputs,
                             .depth = rows,
                             .b = {w.x + first * w.x_stride, w.x_stride, true},
                             .c = static_cast<char*>(w.c) + group * w.c_group * c_bytes,
                             .c_type = w.c_type,
                             .c_stride = w.c_stride,
                             .add = false};
    compute(product, w.inputs, w.scratch, workspaces, w.threads);
    first += rows;
  }
}

}  // namespace titan::kernels::TITAN_LEVEL
