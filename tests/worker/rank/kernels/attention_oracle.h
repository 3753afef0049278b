#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/worker/rank/kernels/harness.h"
#include "worker/rank/kernels/cpu/attention.h"

// Attention by its definition in fp64, and problems on which kernels are compared with it.
namespace titan::kernels::testing {

// bf16 heads [batch, tokens, heads, size] in one of three layouts, between guards, with gaps that must stay untouched.
enum class Layout { kTokensFirst, kHeadsFirst, kGaps };

class HeadsBuffer {
 public:
  HeadsBuffer(int64_t batch, int64_t tokens, int64_t heads, int64_t size, Layout layout, Edge edge)
      : batch_(batch), tokens_(tokens), heads_(heads), size_(size), layout_(layout), buffer_(length(), edge) {}

  // Returns the value at [b, t, h, i], the order of all().
  uint16_t& at(int64_t b, int64_t t, int64_t h, int64_t i) const {
    return buffer_[b * batch_stride() + t * token_stride() + h * head_stride() + i];
  }
  Heads in() const { return {buffer_.data(), batch_stride(), token_stride(), head_stride()}; }
  HeadsOut out() const { return {buffer_.data(), batch_stride(), token_stride(), head_stride()}; }

  template <typename Each>
  void for_each(const Each& each) const {
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int64_t h = 0; h < heads_; ++h) {
          for (int64_t i = 0; i < size_; ++i) each(at(b, t, h, i));
        }
      }
    }
  }
  void fill(Random& random, double scale) const {
    for_each([&](uint16_t& value) { value = to_bf16(static_cast<float>(scale * random.normal())); });
  }
  std::vector<double> all() const {  // [batch, tokens, heads, size]
    std::vector<double> values;
    for_each([&](uint16_t& value) { values.push_back(from_bf16(value)); });
    return values;
  }
  // Returns the number of changed elements that belong to no head.
  int64_t touched_gaps() const {
    std::vector<bool> own(buffer_.size());
    for_each([&](uint16_t& value) { own[&value - buffer_.data()] = true; });
    int64_t touched = 0;
    for (int64_t i = 0; i < buffer_.size(); ++i) touched += !own[i] && buffer_[i] != 0xA5A5;
    return touched;
  }

 private:
  int64_t gap() const { return layout_ == Layout::kGaps ? 3 : 0; }
  int64_t head_stride() const { return layout_ == Layout::kHeadsFirst ? tokens_ * size_ : size_ + gap(); }
  int64_t token_stride() const { return layout_ == Layout::kHeadsFirst ? size_ : heads_ * (size_ + gap()); }
  int64_t batch_stride() const { return tokens_ * heads_ * (size_ + gap()); }
  int64_t length() const { return std::max<int64_t>(0, batch_ * batch_stride() - gap()); }

  const int64_t batch_, tokens_, heads_, size_;
  const Layout layout_;
  const Buffer<uint16_t> buffer_;
};

// The gradients belong to the saved o, which is rounded to bf16.
struct AttentionTruth {
  std::vector<double> o, lse, grad_q, grad_k, grad_v,
      grad_sinks;  // Ordered as HeadsBuffer::all(), [B, H, T], [H].
};

struct AttentionProblem {
  AttentionProblem(const AttentionShape& sizes, std::vector<KeyRange> ranges, Layout layout, bool with_sinks,
                   uint64_t seed, double spread = 1)
      : shape(sizes),
        random(seed),
        visible(std::move(ranges)),
        q(shape.batch, shape.queries, shape.heads, shape.size, layout, random.edge()),
        k(shape.batch, shape.keys, shape.kv_heads, shape.size, layout, random.edge()),
        v(shape.batch, shape.keys, shape.kv_heads, shape.v_size, layout, random.edge()),
        o(shape.batch, shape.queries, shape.heads, shape.v_size, layout, random.edge()),
        grad_o(shape.batch, shape.queries, shape.heads, shape.v_size, layout, random.edge()),
        grad_q(shape.batch, shape.queries, shape.heads, shape.size, layout, random.edge()),
        grad_k(shape.batch, shape.keys, shape.kv_heads, shape.size, layout, random.edge()),
        grad_v(shape.batch, shape.keys, shape.kv_heads, shape.v_size, layout, random.edge()),
        lse(shape.batch * shape.heads * shape.queries),
        sinks(shape.heads),
        grad_sinks(shape.heads) {
    for (const HeadsBuffer* buffer : {&q, &k, &v, &grad_o}) buffer->fill(random, spread);
    for (int64_t h = 0; h < shape.heads; ++h) sinks[h] = static_cast<float>(random.normal());
    shape.visible = visible.data();
    if (with_sinks) shape.sinks = sinks.data();
  }

  AttentionForward forward() const {
    return {.shape = shape, .q = q.in(), .k = k.in(), .v = v.in(), .o = o.out(), .lse = lse.data()};
  }
  AttentionBackward backward() const {
    return {.shape = shape,
            .q = q.in(),
            .k = k.in(),
            .v = v.in(),
            .o = o.in(),
            .grad_o = grad_o.in(),
            .lse = lse.data(),
            .grad_q = grad_q.out(),
            .grad_k = grad_k.out(),
            .grad_v = grad_v.out(),
            .grad_sinks = shape.sinks == nullptr ? nullptr : grad_sinks.data()};
  }

  // Stores the results that the forward pass saves for the backward pass.
  void set_saved(const AttentionTruth& truth) const {
    size_t i = 0;
    o.for_each([&](uint16_t& value) { value = to_bf16(static_cast<float>(truth.o[i++])); });
    for (i = 0; i < truth.lse.size(); ++i) lse[i] = static_cast<float>(truth.lse[i]);
  }

  AttentionShape shape;
  Random random;
  const std::vector<KeyRange> visible;
  const HeadsBuffer q, k, v, o, grad_o, grad_q, grad_k, grad_v;
  const Buffer<float> lse, sinks, grad_sinks;
};

inline AttentionTruth attention_truth(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  const int64_t group = s.heads / s.kv_heads;
  const std::vector<double> q = problem.q.all(), k = problem.k.all(), v = problem.v.all(), go = problem.grad_o.all();
  AttentionTruth truth{.o = std::vector<double>(go.size()),
                       .lse = std::vector<double>(s.batch * s.heads * s.queries),
                       .grad_q = std::vector<double>(q.size()),
                       .grad_k = std::vector<double>(k.size()),
                       .grad_v = std::vector<double>(v.size()),
                       .grad_sinks = std::vector<double>(s.heads)};
  const auto dot = [](const double* a, const double* b, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto add = [](double* to, double factor, const double* from, int64_t size) {
    for (int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
  };
  std::vector<double> scores(s.keys), grads(s.keys);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.queries; ++t) {
      const KeyRange seen = s.visible[b * s.visible_stride + t];
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t query = (b * s.queries + t) * s.heads + h;
        const auto key = [&](int64_t j) { return (b * s.keys + j) * s.kv_heads + h / group; };
        double top = s.sinks == nullptr ? -kInfinity : s.sinks[h];
        for (int64_t j = seen.begin; j < seen.end; ++j) {
          scores[j] = s.scale * dot(&q[query * s.size], &k[key(j) * s.size], s.size);
          top = std::max(top, scores[j]);
        }
        double sum = s.sinks == nullptr ? 0 : std::exp(s.sinks[h] - top);
        for (int64_t j = seen.begin; j < seen.end; ++j) sum += std::exp(scores[j] - top);
        const double lse = sum == 0 ? -kInfinity : top + std::log(sum);
        truth.lse[(b * s.heads + h) * s.queries + t] = lse;
        double delta = 0;
        for (int64_t j = seen.begin; j < seen.end; ++j) {
          scores[j] = std::exp(scores[j] - lse);
          grads[j] = dot(&go[query * s.v_size], &v[key(j) * s.v_size], s.v_size);
          add(&truth.o[query * s.v_size], scores[j], &v[key(j) * s.v_size], s.v_size);
        }
        for (int64_t i = query * s.v_size; i < (query + 1) * s.v_size; ++i) {
          delta += go[i] * from_bf16(to_bf16(static_cast<float>(truth.o[i])));
        }
        for (int64_t j = seen.begin; j < seen.end; ++j) {
          const double grad = s.scale * scores[j] * (grads[j] - delta);
          add(&truth.grad_q[query * s.size], grad, &k[key(j) * s.size], s.size);
          add(&truth.grad_k[key(j) * s.size], grad, &q[query * s.size], s.size);
          add(&truth.grad_v[key(j) * s.v_size], scores[j], &go[query * s.v_size], s.v_size);
        }
        if (s.sinks != nullptr) truth.grad_sinks[h] -= std::exp(s.sinks[h] - lse) * delta;
      }
    }
  }
  return truth;
}

}  // namespace titan::kernels::testing
