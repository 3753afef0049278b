#include "worker/rank/checkpoint/formats/onnx/onnx_masks.h"

#include "absl/strings/str_cat.h"

namespace titan::checkpoint::onnx {

std::string Masks::once(const std::string& what, const std::function<std::string()>& make) {
  const auto known = made_.find(what);
  if (known != made_.end()) return known->second;
  const std::string name = make();
  made_.emplace(what, name);
  return name;
}

std::string Masks::length(const char* input) {
  return once(absl::StrCat("length ", input), [&] {
    return b_.op("Gather", {b_.op("Shape", {input}), b_.graph.integer(1)});
  });
}

std::string Masks::same_block(int64_t chunk) {
  const std::string size = b_.graph.integer(chunk), one = b_.graph.integer(1);
  const std::string of_queries = b_.op("Div", {kPositionIds, size});  // [B, S]
  const std::string of_keys = b_.op("Div", {b_.op("Sub", {b_.op("CumSum", {kAttentionMask, one}), one}), size});
  return b_.op("Equal", {b_.unsqueeze(of_queries, {1, 3}), b_.unsqueeze(of_keys, {1, 2})});
}

std::string Masks::visible(int64_t window, int64_t chunk) {
  return once(absl::StrCat("visible ", window, " ", chunk), [&] {
    const std::string total = length(kAttentionMask), zero = b_.graph.integer(0), one = b_.graph.integer(1);
    const std::string past = b_.op("Sub", {total, length(kInputIds)});
    const std::string keys = b_.op("Range", {zero, total, one});                        // [T]
    const std::string queries = b_.unsqueeze(b_.op("Range", {past, total, one}), {1});  // [S, 1]
    std::string mask = b_.op("LessOrEqual", {keys, queries});                           // [S, T]
    if (window > 0) {
      const std::string near = b_.op("Less", {b_.op("Sub", {queries, keys}), b_.graph.integer(window)});
      mask = b_.op("And", {mask, near});
    }
    const std::string real = b_.unsqueeze(b_.cast(kAttentionMask, Type::kBool), {1, 2});  // [B, 1, 1, T]
    mask = b_.op("And", {real, mask});
    return chunk > 0 ? b_.op("And", {mask, same_block(chunk)}) : mask;
  });
}

std::string Masks::bias(int64_t chunk) {
  return once(absl::StrCat("bias ", chunk), [&] {
    const Type type = b_.target.type;
    const double low = type == Type::kFloat16 ? -3e4 : -1e30;
    return b_.op("Where", {visible(0, chunk), b_.graph.real(0, type), b_.graph.real(low, type)});
  });
}

std::string Masks::last_tokens() {
  return once("last tokens", [&] {
    const std::string last = b_.op("Sub", {length(kAttentionMask), b_.graph.integer(1)});
    const std::string batch = b_.slice(b_.op("Shape", {kAttentionMask}), 0, 1, 0);
    return b_.cast(b_.op("Expand", {last, batch}), Type::kInt32);
  });
}

std::string Masks::total_length() {
  return once("total length", [&] { return b_.cast(length(kAttentionMask), Type::kInt32); });
}

}  // namespace titan::checkpoint::onnx
