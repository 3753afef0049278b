// Reads the tokens of Megatron-LM's indexed dataset (common/io/data_files/megatron_index.h).
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/megatron_index.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::data {
namespace {

template <typename T>
void widen(const std::vector<char>& bytes, int64_t count, int32_t* out, bool& beyond) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof value);
    beyond = beyond || static_cast<int64_t>(value) != static_cast<int64_t>(static_cast<int32_t>(value));
    out[i] = static_cast<int32_t>(value);
  }
}

class MegatronShard final : public TokenShard {
 public:
  explicit MegatronShard(data_files::MegatronIndex index) : index_(std::move(index)) {}

  int64_t tokens() const override { return index_.tokens(); }
  int64_t documents() const override { return index_.documents(); }
  absl::StatusOr<int64_t> document_begin(int64_t document) override { return index_.document_begin(document); }
  absl::Status verify() override { return index_.verify(); }

  absl::Status read(int64_t begin, int64_t count, int32_t* out) override {
    const int64_t width = index_.width();
    bytes_.resize(static_cast<size_t>(count * width));
    TITAN_RETURN_IF_ERROR(index_.bin().read(begin * width, count * width, bytes_.data()));
    bool beyond = false;
    switch (index_.kind()) {
      case 1:
        widen<uint8_t>(bytes_, count, out, beyond);
        break;
      case 2:
        widen<int8_t>(bytes_, count, out, beyond);
        break;
      case 3:
        widen<int16_t>(bytes_, count, out, beyond);
        break;
      case 4:
        widen<int32_t>(bytes_, count, out, beyond);
        break;
      case 5:
        widen<int64_t>(bytes_, count, out, beyond);
        break;
      default:
        widen<uint16_t>(bytes_, count, out, beyond);
    }
    if (!beyond) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(index_.bin_path(), ": a token beyond 2^31 between token ", begin, " and ", begin + count));
  }

 private:
  data_files::MegatronIndex index_;
  std::vector<char> bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenShard>> open_megatron_shard(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(data_files::MegatronIndex index, data_files::MegatronIndex::open(path));
  return std::make_unique<MegatronShard>(std::move(index));
}

}  // namespace titan::data
