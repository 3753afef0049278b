#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/rank/kernels/cpu/attention.h"

// Declares what each level's file provides to attention.cc. Files compiled for one level include this, so it contains
// no code.
namespace titan::kernels {

// The queries [begin, end) of all heads that share one head of keys.
struct AttentionPart {
  int64_t row, kv_head;
  int64_t begin, end;
};

struct AttentionLevel {
  int64_t query_block;                                   // Parts begin at multiples of it.
  size_t (*forward_bytes)(const AttentionShape& shape);  // Scratch bytes per thread.
  size_t (*backward_bytes)(const AttentionShape& shape);
  void (*enter)();  // enter and leave run on each thread, before its first part and after its last.
  void (*leave)();
  void (*forward)(const AttentionForward& args, const AttentionPart& part, char* scratch);
  // Requires a part of all queries, because gradients of keys are sums over them. sink_sums is [batch, heads], or null
  // if not wanted.
  void (*backward)(const AttentionBackward& args, const AttentionPart& part, double* sink_sums, char* scratch);
};

extern const AttentionLevel kAttentionAvx2, kAttentionAvx512, kAttentionAmx;

// Return false, and write nothing, if the arguments are not supported or memory runs out.
bool run_attention(const AttentionLevel& level, const AttentionForward& args);
bool run_attention(const AttentionLevel& level, const AttentionBackward& args);

}  // namespace titan::kernels
