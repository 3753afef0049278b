#pragma once

#include <math.h>
#include <string.h>

#include "worker/rank/kernels/cpu/parts.h"
#include "worker/rank/kernels/cpu/reductions.h"
#include "worker/rank/kernels/cpu/router.h"

namespace titan::kernels::TITAN_LEVEL {
namespace {

// Keeps the best of what is offered in ascending order of position: largest first, and of equal ones the first offered.
class Best {
 public:
  explicit Best(int64_t wanted) : wanted_(wanted) {}

  void offer(float value, int64_t place) {
    if (held_ == wanted_ && !is_better(value, values_[held_ - 1])) return;
    int64_t at = held_ < wanted_ ? held_++ : held_ - 1;
    for (; at > 0 && is_better(value, values_[at - 1]); --at) {
      values_[at] = values_[at - 1];
      places_[at] = places_[at - 1];
    }
    values_[at] = value;
    places_[at] = place;
  }
  int64_t operator[](int64_t rank) const { return places_[rank]; }
  float value(int64_t rank) const { return values_[rank]; }

 private:
  static bool is_better(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

  int64_t wanted_, held_ = 0;
  float values_[kMaxChoices];
  int64_t places_[kMaxChoices];
};

template <typename T>
void score(const T* logits, int64_t experts, bool softmax, float* scores) {
  if (!softmax) {
    for_vectors(experts, [=](int64_t i, auto lanes) {
      store(scores + i, splat(1) / (splat(1) + exponential(splat(0) - load(logits + i, lanes))), lanes);
    });
    return;
  }
  const Floats shift = splat(largest_of(logits, experts));
  const float total = sum_over(experts, [=](int64_t i, auto lanes) {
    const Floats power = keep(exponential(load(logits + i, lanes) - shift), splat(0), lanes);
    store(scores + i, power, lanes);
    return power;
  });
  for_vectors(experts,
              [=](int64_t i, auto lanes) { store(scores + i, load(scores + i, lanes) / splat(total), lanes); });
}

Best choose_experts(const RouterForward& a, const float* preference) {
  Best best(a.top_k);
  if (a.groups == 0) {
    for (int64_t expert = 0; expert < a.experts; ++expert) best.offer(preference[expert], expert);
    return best;
  }
  const int64_t size = a.experts / a.groups;
  Best groups(a.limited_groups);
  for (int64_t group = 0; group < a.groups; ++group) {
    Best two(2);
    for (int64_t i = 0; i < size; ++i) two.offer(preference[group * size + i], i);
    groups.offer(two.value(0) + two.value(1), group);
  }
  bool kept[kMaxChoices] = {};
  for (int64_t rank = 0; rank < a.limited_groups; ++rank) kept[groups[rank]] = true;
  for (int64_t expert = 0; expert < a.experts; ++expert) {
    if (kept[expert / size]) best.offer(preference[expert], expert);
  }
  return best;
}

template <typename T>
void route_tokens(const RouterForward& a, int64_t begin, int64_t end) {
  float scores[kMaxExperts], preference[kMaxExperts];
  for (int64_t token = begin; token < end; ++token) {
    score(at<T>(a.logits, token * a.stride), a.experts, a.softmax, scores);
    for (int64_t e = 0; e < a.experts; ++e) preference[e] = a.bias == nullptr ? scores[e] : scores[e] + a.bias[e];
    const Best best = choose_experts(a, preference);
    float total = 0;
    for (int64_t rank = 0; rank < a.top_k; ++rank) total += scores[best[rank]];
    const float factor = a.normalized ? a.scale / (total + 1e-20F) : a.scale;
    for (int64_t rank = 0; rank < a.top_k; ++rank) {
      a.chosen[token * a.top_k + rank] = best[rank];
      a.scores[token * a.top_k + rank] = scores[best[rank]] * factor;
    }
  }
}

// Computes the gradients of the chosen scores before they were normalized and scaled.
void plain_gradients(const RouterBackward& a, int64_t token, const float* scores, float* gradients) {
  const int64_t* chosen = a.chosen + token * a.top_k;
  const float* dscores = a.dscores + token * a.top_k;
  float total = 1e-20F, along = 0;
  for (int64_t rank = 0; rank < a.top_k; ++rank) {
    total += scores[chosen[rank]];
    along += scores[chosen[rank]] * dscores[rank];
  }
  for (int64_t rank = 0; rank < a.top_k; ++rank) {
    gradients[rank] = a.normalized ? a.scale * (dscores[rank] - along / total) / total : a.scale * dscores[rank];
  }
}

template <typename T>
void route_gradients(const RouterBackward& a, int64_t begin, int64_t end) {
  float scores[kMaxExperts], gradients[kMaxChoices];
  for (int64_t token = begin; token < end; ++token) {
    const int64_t* chosen = a.chosen + token * a.top_k;
    score(at<T>(a.logits, token * a.stride), a.experts, a.softmax, scores);
    plain_gradients(a, token, scores, gradients);
    float along = 0;  // With softmax, every logit loses this times its score.
    for (int64_t rank = 0; rank < a.top_k; ++rank) along += a.softmax ? gradients[rank] * scores[chosen[rank]] : 0;
    for (int64_t rank = 0; rank < a.top_k; ++rank) {
      const float own = scores[chosen[rank]];
      gradients[rank] = a.softmax ? own * (gradients[rank] - along) : gradients[rank] * own * (1 - own);
    }
    const Floats loss = splat(-along);
    for_vectors(a.experts, [&](int64_t i, auto lanes) { store(scores + i, load(scores + i, lanes) * loss, lanes); });
    for (int64_t rank = 0; rank < a.top_k; ++rank) scores[chosen[rank]] = gradients[rank];
    T* dlogits = at<T>(a.dlogits, token * a.dlogits_stride);
    for_vectors(a.experts, [&](int64_t i, auto lanes) { store(dlogits + i, load(scores + i, lanes), lanes); });
  }
}

}  // namespace

void router_forward(const RouterForward& a) {
  in_parts(a.threads, a.tokens, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? route_tokens<float>(a, begin, end) : route_tokens<uint16_t>(a, begin, end);
  });
  if (a.counts == nullptr) return;
  memset(a.counts, 0, a.experts * sizeof(int64_t));
  for (int64_t i = 0; i < a.tokens * a.top_k; ++i) ++a.counts[a.chosen[i]];
}

void router_backward(const RouterBackward& a) {
  in_parts(a.threads, a.tokens, [&](int64_t begin, int64_t end) {
    a.type == Dtype::kF32 ? route_gradients<float>(a, begin, end) : route_gradients<uint16_t>(a, begin, end);
  });
}

}  // namespace titan::kernels::TITAN_LEVEL
