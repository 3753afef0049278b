#pragma once

// Whole rows of attention on GPUs go to LibTorch's fused kernels in one call a layer and pass. Flash attention takes
// bf16 and fp16 under every mask: spans that are equally long are rows of a batch; others lie one after another, and
// the call is told where they end. cuDNN takes rows in which only causality hides a key: on Hopper it needs some 0.6 of
// flash attention's time, and heads of queries and values need not be equally large (docs/benchmarks-gpu.md).

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

// What a call of flash attention is told. All spans are causal.
struct FlashCall {
  int64_t spans = 0, longest = 0;
  // Where spans begin among the tokens of all rows, and the end of the last one: [spans + 1]. Empty: each has `longest`
  // tokens.
  std::vector<int32_t> cum_seq;
  int64_t left = -1;  // Keys before its own that a query sees; -1: all of its span's.

  bool operator==(const FlashCall&) const = default;
};

// The call for `rows` rows with these spans, under a window (0: none).
FlashCall plan_flash(const Spans& spans, int64_t window, int64_t rows);

// The call, and its cum_seq where the heads are, int32; undefined: it has none.
struct FlashArguments {
  FlashCall call;
  at::Tensor cum_seq;
};

// The calls of one microbatch, by mask: documents are read, and their ends copied, for the first layer alone.
class FlashCalls {
 public:
  FlashArguments find_or(const AttentionMask& mask, const std::function<FlashArguments()>& make);

 private:
  std::mutex mutex_;  // Layers of one microbatch may run on several threads.
  std::vector<std::pair<AttentionMask, FlashArguments>> known_;
};

// Whether flash attention takes these: on a GPU, in bf16 or fp16, heads of up to 256.
bool flash_takes(const at::Tensor& q, int64_t v_size);

// Nothing waits for the device. Reads the documents, where the mask asks for them: that work cannot be captured.
c10::intrusive_ptr<AttentionPlan> flash_plan(const AttentionInput& input, const MicrobatchContext& context);

// Whether LibTorch would choose cuDNN for these heads here: a GPU and a version that have it, and no demand for equal
// bits, which its backward pass does not give.
bool cudnn_takes(const AttentionInput& input);

// Captures like any other work: the host reads nothing.
c10::intrusive_ptr<AttentionPlan> cudnn_plan(double scale);

}  // namespace titan::nn
