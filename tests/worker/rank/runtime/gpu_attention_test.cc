// Compares the CUDA kernels of attention (float32: memory-efficient, bfloat16: flash, float64: plain) with softmax with
// materialized scores, in float64 on the CPU.

#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <string_view>

#include "tests/worker/rank/nn/plain_attention.h"
#include "tests/worker/rank/runtime/gpu_world.h"
#include "worker/rank/nn/attention_blocks.h"
#include "worker/rank/nn/attention_core.h"
#include "worker/rank/nn/attention_fused.h"

namespace titan::runtime {
namespace {

using testing::GpuTest;
using Results = std::vector<at::Tensor>;         // Output, then the gradients of q, k, v and sinks; float64, CPU.
using Type = std::pair<at::ScalarType, double>;  // With the tolerance, relative to the largest value.

constexpr Type kTypes[] = {{at::kDouble, 1e-12}, {at::kFloat, 2e-5}, {at::kBFloat16, 0.03}};

template <typename Attention>
Results run(nn::AttentionInput input, const at::TensorOptions& where, const at::Tensor& grad_out,
            Attention&& attention) {
  Results leaves;
  for (at::Tensor* tensor : {&input.q, &input.k, &input.v, &input.sinks}) {
    if (!tensor->defined()) continue;
    *tensor = tensor->to(where).detach().requires_grad_();
    leaves.push_back(*tensor);
  }
  Results results{attention(input)};
  for (at::Tensor& gradient : torch::autograd::grad({results[0]}, leaves, {grad_out.to(where)})) {
    results.push_back(std::move(gradient));
  }
  for (at::Tensor& result : results) result = result.detach().to(at::kCPU, at::kDouble);
  return results;
}

void expect_close(const Results& got, const Results& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(),
              tolerance * (1 + expected[i].abs().max().item<double>()))
        << "result " << i << ", " << what;
  }
}

struct Shape {
  int64_t rows, tokens, heads, kv_heads, head, v_head;
};

// Draws heads with tokens before heads in memory, as in the models.
at::Tensor random_heads(const Shape& shape, int64_t count, int64_t size, at::ScalarType type) {
  return at::randn({shape.rows, shape.tokens, count, size}, at::kDouble).to(type).transpose(1, 2);
}

nn::AttentionInput random_input(const Shape& shape, const nn::AttentionMask& mask, bool sinks, at::ScalarType type) {
  return {.q = random_heads(shape, shape.heads, shape.head, type),
          .k = random_heads(shape, shape.kv_heads, shape.head, type),
          .v = random_heads(shape, shape.kv_heads, shape.v_head, type),
          .scale = 0.15,
          .mask = mask,
          .sinks = sinks ? at::randn({shape.heads}, at::kDouble).to(type) : at::Tensor()};
}

std::string describe(const Shape& shape, const nn::AttentionMask& mask, at::ScalarType type) {
  return std::string(c10::toString(type)) + ", " + std::to_string(shape.tokens) + " tokens, heads of " +
         std::to_string(shape.head) + " and " + std::to_string(shape.v_head) + ", " + std::to_string(shape.heads) +
         " for " + std::to_string(shape.kv_heads) + ", window " + std::to_string(mask.window) + ", chunk " +
         std::to_string(mask.chunk) + (mask.documents ? ", documents" : "") + (mask.causal ? "" : ", not causal");
}

class GpuAttentionTest : public GpuTest {};

// Compares every mask, shared and unshared heads, and sizes that kernels accept or that are padded for them.
TEST_F(GpuAttentionTest, EveryMaskMatchesPlainAttention) {
  at::manual_seed(1);
  const nn::AttentionMask masks[] = {{},
                                     {.window = 70},
                                     {.chunk = 64},
                                     {.documents = true},
                                     {.window = 20, .documents = true},
                                     {.causal = false},
                                     {.documents = true, .causal = false}};
  const Shape shapes[] = {{2, 301, 4, 2, 64, 64},
                          {2, 301, 4, 4, 20, 20},
                          {1, 130, 4, 2, 48, 32},
                          {1, 257, 2, 1, 128, 128},
                          {1, 96, 2, 2, 192, 128}};
  for (const Shape& shape : shapes) {
    for (const nn::AttentionMask& mask : masks) {
      for (const bool sinks : {false, true}) {
        for (const auto& [type, tolerance] : kTypes) {
          const nn::AttentionInput input = random_input(shape, mask, sinks, type);
          nn::MicrobatchContext context;
          if (mask.documents) context.documents = testing::random_documents(shape.rows, shape.tokens, 0.02);
          const at::Tensor grad_out = random_heads(shape, shape.heads, shape.v_head, type);
          const Results oracle =
              run(input, at::TensorOptions(at::kDouble), grad_out,
                  [&](const nn::AttentionInput& in) { return testing::plain_attention(in, context.documents); });
          expect_close(run(input, on_device(type), grad_out,
                           [&](const nn::AttentionInput& in) { return nn::attend(in, context); }),
                       oracle, tolerance, describe(shape, mask, type));
        }
      }
    }
  }
}

// Counts the calls of LibTorch's flash attention on any thread while this lives.
class FlashCounter {
 public:
  FlashCounter()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}))) {
    forward = backward = 0;
  }
  ~FlashCounter() { at::removeCallback(handle_); }
  FlashCounter(const FlashCounter&) = delete;
  FlashCounter& operator=(const FlashCounter&) = delete;

  static inline std::atomic<int> forward{0}, backward{0};

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    if (name == "aten::_flash_attention_forward") ++forward;
    if (name == "aten::_flash_attention_backward") ++backward;
    return nullptr;
  }
  const at::CallbackHandle handle_;
};

// Each pass of a layer is one call, whatever the mask. The rows are longer, so kernels skip blocks.
TEST_F(GpuAttentionTest, EveryMaskTakesOneCall) {
  TITAN_SKIP_IN_REHEARSAL();
  at::manual_seed(3);
  const nn::AttentionMask masks[] = {{.window = 128},
                                     {.window = 700},
                                     {.chunk = 256},
                                     {.chunk = 300},
                                     {.documents = true},
                                     {.window = 100, .documents = true},
                                     {.window = 50, .chunk = 300, .documents = true},
                                     {.chunk = 300, .causal = false},
                                     {.documents = true, .causal = false}};
  const Shape shapes[] = {{2, 1024, 4, 2, 64, 64}, {1, 1024, 2, 2, 192, 128}};
  for (const Shape& shape : shapes) {
    for (const nn::AttentionMask& mask : masks) {
      for (const bool sinks : {false, true}) {
        for (const auto& [type, tolerance] : {Type{at::kBFloat16, 0.03}, Type{at::kHalf, 0.01}}) {
          const nn::AttentionInput input = random_input(shape, mask, sinks, type);
          nn::MicrobatchContext context;
          context.flash_calls = std::make_shared<nn::FlashCalls>();
          if (mask.documents) context.documents = testing::random_documents(shape.rows, shape.tokens, 0.01);
          const at::Tensor grad_out = random_heads(shape, shape.heads, shape.v_head, type);
          const Results oracle =
              run(input, at::TensorOptions(at::kDouble), grad_out,
                  [&](const nn::AttentionInput& in) { return testing::plain_attention(in, context.documents); });
          const std::string what = describe(shape, mask, type);
          const FlashCounter calls;
          expect_close(run(input, on_device(type), grad_out,
                           [&](const nn::AttentionInput& in) { return nn::attend(in, context); }),
                       oracle, tolerance, what);
          EXPECT_EQ(FlashCounter::forward, 1) << what;
          EXPECT_EQ(FlashCounter::backward, 1) << what;
        }
      }
    }
  }
}

// Keys arrive in blocks, as from other ranks. Merging needs each kernel's logarithms of the denominators, and each
// block's backward pass needs the merged ones.
TEST_F(GpuAttentionTest, BlocksAreMergedExactly) {
  at::manual_seed(2);
  const Shape shape{2, 192, 4, 2, 64, 64};
  for (const nn::AttentionMask& mask : {nn::AttentionMask{}, nn::AttentionMask{.window = 50}}) {
    for (const auto& [type, tolerance] : kTypes) {
      const nn::AttentionInput input = random_input(shape, mask, /*sinks=*/true, type);
      const at::Tensor grad_out = random_heads(shape, shape.heads, shape.v_head, type);
      const Results oracle = run(input, at::TensorOptions(at::kDouble), grad_out,
                                 [&](const nn::AttentionInput& in) { return testing::plain_attention(in, {}); });
      const at::TensorOptions where = on_device(type);
      const at::Tensor q = input.q.to(where), k = input.k.to(where), v = input.v.to(where);
      const nn::Spans spans{.starts = {{0}}, .seq_len = shape.tokens};
      constexpr int64_t kBlock = 64;
      nn::BlockwiseAttention attention(q, shape.v_head, input.scale, /*once=*/false);
      const auto each_block = [&](const auto& use) {
        for (int64_t first = 0; first < shape.tokens; first += kBlock) {
          use(first, nn::visible_pairs(spans, mask.window, {{0, shape.tokens}}, {{first, kBlock}}));
        }
      };
      each_block([&](int64_t first, const std::vector<nn::BlockPair>& pairs) {
        attention.add(k.narrow(2, first, kBlock), v.narrow(2, first, kBlock), pairs);
      });
      const at::Tensor sinks = input.sinks.to(where);
      const nn::BlockOutput merged = attention.finish(sinks);
      nn::BlockwiseGradients gradients(grad_out.to(where), q, merged, input.scale);
      at::Tensor grad_k = at::zeros(k.sizes(), where.dtype(at::kDouble)), grad_v = at::zeros_like(grad_k);
      each_block([&](int64_t first, const std::vector<nn::BlockPair>& pairs) {
        const at::Tensor own_k = k.narrow(2, first, kBlock), own_v = v.narrow(2, first, kBlock);
        nn::GradientSum sum_k(own_k), sum_v(own_v);
        gradients.add(own_k, own_v, pairs, sum_k, sum_v);
        grad_k.narrow(2, first, kBlock).add_(sum_k.take());
        grad_v.narrow(2, first, kBlock).add_(sum_v.take());
      });
      Results got{merged.out, gradients.grad_q(), grad_k, grad_v, gradients.grad_sinks(sinks)};
      for (at::Tensor& one : got) one = one.to(at::kCPU, at::kDouble);
      expect_close(got, oracle, tolerance, "in blocks, " + describe(shape, mask, type));
    }
  }
}

}  // namespace
}  // namespace titan::runtime
