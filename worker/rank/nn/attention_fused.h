#pragma once

// LibTorch's fused kernels compute whole rows of attention on GPUs, in one call per layer and pass. Flash attention
// accepts bf16 and fp16 under every mask. Spans of equal length become rows of a batch. Other spans are concatenated,
// and the call gets their ends. cuDNN accepts rows in which nothing or only causality hides keys. On Hopper it needs
// about 0.6 of flash attention's time, and head sizes of queries and values may differ (docs/benchmarks-gpu.md).

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_pairs.h"

namespace titan::nn {

// Arguments of a call of flash attention.
struct FlashCall {
  int64_t spans = 0, longest = 0;
  // [spans + 1]: start of each span among the tokens of all rows, and the end of the last one. Empty: each span has
  // `longest` tokens.
  std::vector<int32_t> cum_seq;
  int64_t left = -1;   // Number of earlier keys that a query sees. -1: all of its span.
  bool causal = true;  // Whether later keys are hidden.

  bool operator==(const FlashCall&) const = default;
};

// Returns the call for `rows` rows with these spans, under a window (0: none).
FlashCall plan_flash(const Spans& spans, int64_t window, int64_t rows);

// A call with its cum_seq on the device of the heads.
struct FlashArguments {
  FlashCall call;
  at::Tensor cum_seq;  // int32 [spans + 1]. Undefined: the call has none.
};

// Calls of one microbatch, by mask. Only the first layer with each mask reads the documents and copies their ends.
class FlashCalls {
 public:
  FlashArguments find_or(const AttentionMask& mask, const std::function<FlashArguments()>& make);

 private:
  std::mutex mutex_;  // Layers of one microbatch may run on several threads.
  std::vector<std::pair<AttentionMask, FlashArguments>> known_;
};

// Whether flash attention accepts q [B, H, T, D] and values of size v_size: on a GPU, in bf16 or fp16, heads up to 256.
bool can_use_flash_attention(const at::Tensor& q, int64_t v_size);

// Makes a plan without waiting for the device. If the mask uses documents, it reads them, so it throws while a graph is
// captured.
c10::intrusive_ptr<AttentionPlan> flash_plan(const AttentionInput& input, const MicrobatchContext& context);

// Whether LibTorch would choose cuDNN for these heads: the GPU and the version have it, and bitwise reproducible
// results are not required, because its backward pass does not give them.
bool can_use_cudnn_attention(const AttentionInput& input);

// Makes a plan that a device graph can capture, because the host reads nothing.
c10::intrusive_ptr<AttentionPlan> cudnn_plan(double scale, bool causal = true);

}  // namespace titan::nn
