#pragma once

// Writes torch.save's archives, and the values of PyTorch in pickles.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/rank/pickle/writer.h"

namespace titan::pickle {

// Puts torch.size(sizes) on the reader's stack.
Writer& torch_size(Writer& writer, const std::vector<int64_t>& sizes);

// Writes a tensor whose storage is the archive's entry data/KEY.
Writer& tensor(Writer& writer, std::string_view type, const std::vector<int64_t>& shape, const std::string& key);

// An entry of an archive.
struct Entry {
  std::string name;
  std::string_view bytes;
};
// Builds an archive that torch.load reads, in memory (archive_stream.h).
std::string archive_of(const std::vector<Entry>& entries);

// Return the result of torch.save for a plain object, and for a contiguous tensor of `type` ("float32") with `bytes`.
std::string save_plain(const nlohmann::json& value);
std::string save_tensor(std::string_view type, const std::vector<int64_t>& shape, std::string_view bytes);

}  // namespace titan::pickle
