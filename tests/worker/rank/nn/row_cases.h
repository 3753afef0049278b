#pragma once

#include "tests/testing/draw.h"
#include "tests/worker/rank/nn/bf16_oracle.h"
#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/nn/layers.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/moe_rows.h"
#include "worker/rank/nn/rope.h"

// Compares the layers' row operations in bf16, on any device and by the chosen kernels, with plain fp64 of the same
// numbers on the CPU.
namespace titan::testing {

// Returns the same operation on the device. Operands come from the CPU; the result and the gradients return there.
inline Operation on(at::Device device, const Operation& operation) {
  return [=](const Tensors& operands) {
    Tensors moved;
    for (const at::Tensor& operand : operands) moved.push_back(operand.to(device));
    return operation(moved).to(at::kCPU);
  };
}

inline void check_rms_norm(at::Device device) {
  at::manual_seed(1);
  Draw pick(11);
  const auto plain = [](const at::Tensor& in) { return in * (in * in).mean(-1, true).add(1e-5).rsqrt(); };
  for (int i = 0; i < 30; ++i) {
    const int64_t dim = pick({1, 7, 16, 64, 257, 1024});
    const at::Tensor x = rounded({pick({1, 2}), pick({0, 1, 5, 40}), dim}), weight = rounded({dim});
    const std::string what = "rows of " + std::to_string(dim);
    if (x.numel() == 0 && i % 2 == 0) continue;  // LibTorch's operation has no gradient for an empty tensor.
    expect_close(
        {x, weight}, rounded(x.sizes()), on(device, [](const Tensors& t) { return nn::rms_norm(t[0], t[1], 1e-5); }),
        [&](const Tensors& t) { return plain(t[0]) * t[1]; }, 4, what);
    expect_close(
        {x}, rounded(x.sizes()), on(device, [](const Tensors& t) { return nn::rms_norm(t[0], {}, 1e-5); }),
        [&](const Tensors& t) { return plain(t[0]); }, 4, what + " without weight");
  }
}

// Compares a sum and its norm, computed at once: both results, and gradients that reach the sum through either or both.
inline void check_sum_and_rms_norm(at::Device device) {
  at::manual_seed(5);
  Draw pick(13);
  const auto plain = [](const at::Tensor& sum, const at::Tensor& weight) {
    return sum * (sum * sum).mean(-1, true).add(1e-5).rsqrt() * weight;
  };
  const auto both = [](const at::Tensor& sum, const at::Tensor& norm, int used) {
    return used == 0 ? sum : used == 1 ? norm : at::cat({sum, norm}, -1);
  };
  for (int i = 0; i < 36; ++i) {
    const int64_t dim = pick({1, 7, 16, 64, 257, 1024});
    const at::Tensor x = rounded({pick({1, 2}), pick({1, 5, 40}), dim}), weight = rounded({dim});
    const at::Tensor residual = rounded(x.sizes());
    const int used = i % 3;
    std::vector<int64_t> shape = x.sizes().vec();
    if (used == 2) shape.back() *= 2;
    const std::string what = "rows of " + std::to_string(dim) + ", used " + std::to_string(used);
    const Tensors with = used == 0 ? Tensors{x, residual} : Tensors{x, residual, weight};
    expect_close(
        with, rounded(shape),
        on(device,
           [&](const Tensors& t) {
             const at::Tensor scale = used == 0 ? weight.to(t[0].options()) : t[2];
             const nn::SumAndNorm got = nn::sum_and_rms_norm(t[0], t[1], scale, 1e-5);
             return both(got.sum, got.norm, used);
           }),
        [&](const Tensors& t) { return both(t[0] + t[1], plain(t[0] + t[1], used == 0 ? weight : t[2]), used); }, 4,
        what);
    if (used == 0) continue;
    expect_close(
        {x, weight}, rounded(shape),
        on(device,
           [&](const Tensors& t) {
             const nn::SumAndNorm got = nn::sum_and_rms_norm(t[0], {}, t[1], 1e-5);
             return both(got.sum, got.norm, used);
           }),
        [&](const Tensors& t) { return both(t[0], plain(t[0], t[1]), used); }, 4, what + ", of one");
  }
}

inline void check_rms_norm_of_pieces(at::Device device) {
  at::manual_seed(2);
  const at::Tensor whole = rounded({3, 50, 4, 24}), weight = rounded({10});
  const auto piece = [](const at::Tensor& t) { return t.transpose(0, 1).narrow(3, 5, 10); };
  expect_close(
      {whole, weight}, rounded({50, 3, 4, 10}),
      on(device, [&](const Tensors& t) { return nn::rms_norm(piece(t[0]), t[1], 1e-5); }),
      [&](const Tensors& t) {
        const at::Tensor x = piece(t[0]);
        return x * (x * x).mean(-1, true).add(1e-5).rsqrt() * t[1];
      },
      4, "pieces");
}

inline void check_rope(at::Device device) {
  at::manual_seed(3);
  Draw pick(11);
  for (int i = 0; i < 30; ++i) {
    nn::RopeOptions options{.head_dim = 2 * pick({1, 4, 9, 32}), .max_seq_len = 90};
    options.pairs = i % 2 == 0 ? nn::RopePairs::kInterleaved : nn::RopePairs::kRotateHalf;
    const int64_t tokens = pick({1, 17, 60});
    const at::Tensor x = rounded({pick({1, 3}), tokens, pick({1, 2, 5}), options.head_dim + 4});
    const at::Tensor positions = i % 3 == 0 ? at::randperm(90, at::kLong).narrow(0, 0, tokens) : at::Tensor();
    const auto turn = [&](at::ScalarType type) {
      return [&options, &positions, type](const Tensors& t) {
        const at::Tensor part = t[0].narrow(3, 2, options.head_dim);  // Latent attention rotates a part of a head.
        const at::Tensor table = nn::rope_table(options, at::kCPU, type).to(part.device());
        return nn::apply_rope(part, table, positions.defined() ? positions.to(part.device()) : positions);
      };
    };
    expect_close({x}, rounded({x.size(0), tokens, x.size(2), options.head_dim}), on(device, turn(at::kFloat)),
                 turn(at::kDouble), 1, "heads of " + std::to_string(options.head_dim));
  }
}

inline void check_swiglu(at::Device device) {
  at::manual_seed(4);
  Draw pick(11);
  for (int i = 0; i < 20; ++i) {
    const int64_t width = pick({1, 6, 32, 100}), rows = pick({0, 1, 9, 33});
    const std::string what = "width " + std::to_string(width);
    expect_close(
        {rounded({2, rows, width}), rounded({2, rows, width})}, rounded({2, rows, width}),
        on(device, [](const Tensors& t) { return nn::swiglu(t[0], t[1]); }),
        [](const Tensors& t) { return at::silu(t[0]) * t[1]; }, 4, what);
    expect_close(
        {rounded({rows, 2 * width}) * 4}, rounded({rows, width}),
        on(device, [](const Tensors& t) { return nn::clamped_swiglu(t[0], 7); }),
        [](const Tensors& t) {
          const at::Tensor pairs = t[0].unflatten(-1, {-1, 2});
          const at::Tensor gate = pairs.select(-1, 0).clamp_max(7);
          return gate * at::sigmoid(gate * 1.702) * (pairs.select(-1, 1).clamp(-7, 7) + 1);
        },
        6, what + ", clamped");
  }
}

inline void check_expert_rows(at::Device device) {
  at::manual_seed(6);
  Draw pick(11);
  for (int i = 0; i < 20; ++i) {
    const int64_t tokens = pick({0, 1, 9, 40}), choices = pick({1, 2, 6}), width = pick({1, 13, 64, 2056});
    const at::Tensor chosen = at::rand({tokens, 9}).argsort(-1, false).narrow(1, 0, choices).contiguous();
    const nn::ExpertOrder order = nn::order_by_expert(chosen, 9);
    const nn::ExpertOrder there{order.rows.to(device), order.tokens.to(device), order.places.to(device)};
    const std::string what = std::to_string(choices) + " choices, width " + std::to_string(width);
    const auto sorted = [&](const at::Tensor& t) { return t.index_select(0, order.tokens); };
    expect_close(
        {rounded({tokens, width}), at::rand({tokens, choices})}, rounded({tokens * choices, width}),
        on(device, [&](const Tensors& t) { return nn::spread(t[0], t[1], there); }),
        [&](const Tensors& t) { return sorted(t[0]) * t[1].flatten().index_select(0, order.rows).unsqueeze(1); }, 2,
        what + ", spread");
    expect_close(
        {rounded({tokens * choices, width}), at::rand({tokens, choices})}, rounded({tokens, width}),
        on(device, [&](const Tensors& t) { return nn::combine(t[0], t[1], there); }),
        [&](const Tensors& t) {
          const at::Tensor rows = t[0].index_select(0, order.places.flatten()).view({tokens, choices, width});
          return (rows * t[1].unsqueeze(2)).sum(1);
        },
        1, what + ", combined");
  }
}

inline void check_cross_entropy(at::Device device) {
  at::manual_seed(5);
  Draw pick(11);
  for (int i = 0; i < 20; ++i) {
    const int64_t rows = pick({1, 5, 40}), vocabulary = pick({2, 50, 1000});
    const at::Tensor logits = rounded({2, rows, vocabulary}) * 4;
    at::Tensor labels = at::randint(vocabulary, {2, rows}, at::kLong);
    labels.masked_fill_(at::rand({2, rows}).lt(0.2), nn::kIgnoreIndex);
    const at::Tensor grad = at::full({}, 0.25);
    const auto loss = [&](const Tensors& t) { return nn::cross_entropy_sum(t[0], labels.to(t[0].device())); };
    expect_close({logits}, grad, on(device, loss), loss, 1, "vocabulary of " + std::to_string(vocabulary));
  }
}

}  // namespace titan::testing
