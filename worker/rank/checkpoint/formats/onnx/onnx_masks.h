#pragma once

// Which keys a query sees, from the graph's inputs. Rows may be padded on the left: attention_mask is 0 there.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "worker/rank/checkpoint/formats/onnx/onnx_layers.h"

namespace titan::checkpoint::onnx {

inline constexpr char kInputIds[] = "input_ids", kAttentionMask[] = "attention_mask", kPositionIds[] = "position_ids";

// Appends the nodes of a mask when it is first requested; layers share it.
class Masks {
 public:
  explicit Masks(const Builder& builder) : b_(builder) {}

  // bool [B, 1, S, T]: keys up to the query's token that are not padding and, if these are above 0, among the last
  // `window` tokens and in the same block of `chunk` positions. Queries that are padding may see nothing.
  std::string visible(int64_t window, int64_t chunk);
  // The same without a window, as numbers of the target's type to add to logits. They are finite, so that a query that
  // sees nothing gives no NaN.
  std::string bias(int64_t chunk);
  // Return what GroupQueryAttention reads: int32 [B], the index of each row's last token, and int32, their number T.
  std::string last_tokens();
  std::string total_length();

 private:
  std::string once(const std::string& what, const std::function<std::string()>& make);
  std::string length(const char* input);  // int64: S of input_ids, or T of attention_mask.
  std::string same_block(int64_t chunk);

  const Builder& b_;
  std::map<std::string, std::string> made_;
};

}  // namespace titan::checkpoint::onnx
