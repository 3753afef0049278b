#include "worker/rank/data/samples/sample_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/permutation.h"
#include "worker/rank/data/documents/row_source.h"
#include "worker/rank/data/rows/stream_state.h"

namespace titan::data {
namespace {

constexpr int64_t kSubstitutes = 0x5375627374697475;  // Changes the seed, for a permutation unlike that of the rows.
constexpr int64_t kMaxSubstitutes = 256;  // If nine of ten samples are unusable, all these are with p = 2e-12.

}  // namespace

int64_t SampleOrder::sample(const SamplePlace& place, int64_t attempt) const {
  if (attempt > 0) {
    const Permutation substitutes(samples(), options_.shuffle_seed ^ kSubstitutes, place.pass);
    return substitutes((place.row + attempt) % samples());
  }
  if (!options_.shuffle) return place.row;
  return Permutation(samples(), options_.shuffle_seed, place.pass)(place.row);
}

int64_t SampleOrder::attempts() const { return 1 + std::min(samples(), kMaxSubstitutes); }

std::string SampleOrder::description() const {
  const std::string count = absl::StrCat(samples(), " samples");
  if (!options_.shuffle) return count;
  return absl::StrCat(count, " with shuffle = \"", name(Shuffle::kRows), "\" by seed ", options_.shuffle_seed);
}

nlohmann::json SampleOrder::to_json(const SampleCursor& cursor) const {
  return {{"pass", cursor.next.pass},
          {"row", cursor.next.row},
          {"bad_samples", cursor.bad_samples},
          {"dataset", options_.dataset},
          {"order", description()}};
}

absl::StatusOr<SampleCursor> SampleOrder::cursor_from_json(const nlohmann::json& state) const {
  if (!state.is_object()) return absl::InvalidArgumentError("dataloader state: not a JSON object");
  SampleCursor cursor;
  TITAN_ASSIGN_OR_RETURN(cursor.next.pass, state_number(state, "pass"));
  TITAN_ASSIGN_OR_RETURN(cursor.next.row, state_number(state, "row"));
  TITAN_ASSIGN_OR_RETURN(cursor.bad_samples, state_number(state, "bad_samples"));
  const auto text_of = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_string() ? found->get<std::string>() : "";
  };
  constexpr char kOr[] =
      ", or put \"dataloader\" into checkpoint.exclude_from_loading to start at the beginning of the data";
  if (const std::string saved = text_of("order"); saved != description()) {
    return absl::InvalidArgumentError(absl::StrCat("dataloader state: saved in an order of ", saved, ", the job reads ",
                                                   description(),
                                                   ": set training.dataloader and the dataset as they were", kOr));
  }
  if (const std::string saved = text_of("dataset"); saved != options_.dataset) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataloader state: saved with files whose names and counts have the "
                     "checksum ",
                     saved, ", those of the job have ", options_.dataset, ": resume with the same dataset", kOr));
  }
  if (cursor.next.row < samples()) return cursor;
  return absl::InvalidArgumentError(
      absl::StrCat("dataloader state: row ", cursor.next.row, " of a pass of ", samples(), " samples"));
}

}  // namespace titan::data
