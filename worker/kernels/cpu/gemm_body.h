#pragma once

#include <string.h>

#include "worker/kernels/cpu/gemm.h"
#if defined(__AMX_BF16__)
#include "worker/kernels/cpu/gemm_tiles.h"
#else
#include "worker/kernels/cpu/gemm_fma.h"
#endif

// The products: what is packed when, and which block is multiplied with which. The level's inner product is in the file
// above.
namespace titan::kernels::TITAN_LEVEL {
namespace {

constexpr int64_t kBlockRows = kStrip * kStripsPerBlock;
static_assert(kBlockRows <= kGemmBlockRows && kBlockDepth <= kGemmBlockDepth && 32 % kPanel == 0);

TITAN_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TITAN_INLINE int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }
TITAN_INLINE int64_t padded(int64_t depth) { return parts_of(depth, kDepthUnit) * kDepthUnit; }

// The second operand in panels, for some blocks of the depth: one after the other, each with all panels.
struct Panels {
  Packed* data;
  int64_t columns;

  int64_t count() const { return parts_of(columns, kPanel); }
  Packed* panel(int64_t depth_before, int64_t depth, int64_t index) const {
    return data + count() * kPanel * depth_before + index * kPanel * padded(depth);
  }
};

void pack_panels(const Operand& b, const Panels& to, int64_t first_depth, int64_t depth, int threads) {
  const int64_t blocks = parts_of(depth, kBlockDepth);
  in_parts(threads, to.count() * blocks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t before = i / to.count() * kBlockDepth, index = i % to.count();
      const int64_t size = least(depth - before, kBlockDepth);
      pack_panel(b, index * kPanel, least(to.columns - index * kPanel, kPanel), first_depth + before, size,
                 to.panel(before, size, index));
    }
  });
}

// What a thread has for itself.
struct Workspace {
  Packed* strips;
  float* sums;

  Workspace(void* scratch, int64_t columns, int64_t thread)
      : strips(reinterpret_cast<Packed*>(static_cast<char*>(scratch) + thread * gemm_thread_scratch(columns))),
        sums(reinterpret_cast<float*>(strips) + kGemmBlockRows * kGemmBlockDepth) {}
};

// c [rows, columns] (+)= a's rows from `first` on times one block of the depth in panels.
void multiply_block(const Operand& a, int64_t first, int64_t rows, int64_t first_depth, int64_t depth_before,
                    int64_t depth, const Panels& b, Packed* strips, float* c, int64_t stride, bool add) {
  const int64_t strip = kStrip * padded(depth);
  for (int64_t i = 0; i * kStrip < rows; ++i) {
    pack_strip(a, first + i * kStrip, least(rows - i * kStrip, kStrip), first_depth, depth, strips + i * strip);
  }
  for (int64_t index = 0; index < b.count(); ++index) {
    const Packed* panel = b.panel(depth_before, depth, index);
    const int64_t columns = least(b.columns - index * kPanel, kPanel);
    for (int64_t i = 0; i * kStrip < rows; ++i) {
      multiply(strips + i * strip, panel, padded(depth), c + i * kStrip * stride + index * kPanel, stride,
               least(rows - i * kStrip, kStrip), columns, add);
    }
  }
}

// Rows [first, first + rows) of c, whole.
void finish_rows(const Gemm& g, int64_t first, int64_t rows, const Panels& b, const Workspace& mine) {
  const bool wide = g.c_type == Dtype::kF32;
  float* sums = wide ? at<float>(g.c, first * g.c_stride) : mine.sums;
  const int64_t stride = wide ? g.c_stride : gemm_panels(g.columns);
  for (int64_t depth = 0; depth < g.depth; depth += kBlockDepth) {
    multiply_block({g.a, g.a_stride, false}, first, rows, depth, depth, least(g.depth - depth, kBlockDepth), b,
                   mine.strips, sums, stride, depth > 0);
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (g.depth == 0) memset(sums + row * stride, 0, g.columns * sizeof(float));
    if (wide) continue;
    uint16_t* c = at<uint16_t>(g.c, (first + row) * g.c_stride);
    const float* from = sums + row * stride;
    for_vectors(g.columns, [=](int64_t i, auto lanes) { store(c + i, load(from + i, lanes), lanes); });
  }
}

}  // namespace

void gemm(const Gemm& g) {
  const Panels panels = {static_cast<Packed*>(g.scratch), g.columns};
  void* workspaces = static_cast<char*>(g.scratch) + gemm_scratch(g.columns, g.depth, 0);
  int64_t first = 0;
  for (int64_t group = 0; group < g.groups; ++group) {
    const int64_t rows = g.group_rows == nullptr ? g.rows : g.group_rows[group];
    if (rows == 0) continue;
    pack_panels({g.b + group * g.b_group, g.b_stride, g.b_is_deep}, panels, 0, g.depth, g.threads);
    in_numbered_parts(g.threads, parts_of(rows, kBlockRows), [&](int64_t begin, int64_t end, int64_t thread) {
      [[maybe_unused]] const Session session;
      const Workspace mine(workspaces, g.columns, thread);
      for (int64_t block = begin; block < end; ++block) {
        finish_rows(g, first + block * kBlockRows, least(rows - block * kBlockRows, kBlockRows), panels, mine);
      }
    });
    first += rows;
  }
}

void weight_gradient(const WeightGradient& w) {
  const Panels panels = {static_cast<Packed*>(w.scratch), w.inputs};
  void* workspaces = static_cast<char*>(w.scratch) + weight_gradient_scratch(w.inputs, 0);
  int64_t first = 0;
  for (int64_t group = 0; group < w.groups; ++group) {
    float* c = w.c + group * w.c_group;
    const int64_t rows = w.group_rows == nullptr ? w.rows : w.group_rows[group];
    for (int64_t i = 0; rows == 0 && !w.add && i < w.outputs; ++i)
      memset(c + i * w.c_stride, 0, w.inputs * sizeof(float));
    // The rows are the depth here: a block of them goes through all of c before the next.
    for (int64_t done = 0; done < rows; done += kBlockDepth) {
      const int64_t depth = least(rows - done, kBlockDepth);
      pack_panels({w.x, w.x_stride, true}, panels, first + done, depth, w.threads);
      in_numbered_parts(w.threads, parts_of(w.outputs, kBlockRows), [&](int64_t begin, int64_t end, int64_t thread) {
        [[maybe_unused]] const Session session;
        const Workspace mine(workspaces, w.inputs, thread);
        for (int64_t block = begin; block < end; ++block) {
          const int64_t output = block * kBlockRows;
          multiply_block({w.dy, w.dy_stride, true}, output, least(w.outputs - output, kBlockRows), first + done, 0,
                         depth, panels, mine.strips, c + output * w.c_stride, w.c_stride, w.add || done > 0);
        }
      });
    }
    first += rows;
  }
}

}  // namespace titan::kernels::TITAN_LEVEL
