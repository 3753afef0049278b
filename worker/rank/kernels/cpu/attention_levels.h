#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/rank/kernels/cpu/attention.h"

// What each level's file offers to attention.cc. Included by files that are compiled for one level: no code here.
namespace titan::kernels {

// The queries [begin, end) of all heads that share one head of keys.
struct AttentionPart {
  int64_t row, kv_head;
  int64_t begin, end;
};

struct AttentionLevel {
  int64_t query_block;                                   // Parts begin at multiples of it.
  size_t (*forward_bytes)(const AttentionShape& shape);  // Of scratch memory, for each thread.
  size_t (*backward_bytes)(const AttentionShape& shape);
  void (*enter)();  // On each thread, before its first part and after its last.
  void (*leave)();
  void (*forward)(const AttentionForward& args, const AttentionPart& part, char* scratch);
  // All queries: the gradients of keys are sums over them. sink_sums [batch, heads], null where not wanted.
  void (*backward)(const AttentionBackward& args, const AttentionPart& part, double* sink_sums, char* scratch);
};

extern const AttentionLevel kAttentionAvx2, kAttentionAvx512, kAttentionAmx;

bool run_attention(const AttentionLevel& level, const AttentionForward& args);
bool run_attention(const AttentionLevel& level, const AttentionBackward& args);

}  // namespace titan::kernels
