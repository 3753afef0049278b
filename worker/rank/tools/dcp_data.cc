#include "worker/rank/tools/dcp_data.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/documents/sharding.h"
#include "worker/rank/data/loader/configured_files.h"
#include "worker/rank/data/rows/stream_state.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::tools {
namespace {

using nlohmann::json;

// torchtitan: how many documents of the share were read, and the tokens of the last one that no row has.
absl::StatusOr<json> dataset_state(const data::RankShare& share, const data::FileKind& kind, const json& cursor,
                                   data::Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const data::StreamPosition position, data::position_from_json(cursor, share.files));
  if (position.arrangement != data::Arrangement{})
    return absl::FailedPreconditionError("torchtitan neither shuffles nor packs documents");
  if (share.share.step != 1 || position.document.document < share.share.begin)
    return absl::FailedPreconditionError(
        "documents of compressed files are counted in no way that torchtitan goes on from");
  std::vector<int32_t> tokens;
  int64_t documents = position.document.document - share.share.begin;
  if (position.token > 0) {
    data::DocumentReader reader({.files = share.files, .kind = kind, .share = share.share});
    TITAN_RETURN_IF_ERROR(reader.seek(position.document, position.bad_lines));
    TITAN_ASSIGN_OR_RETURN(const auto document, reader.next());
    if (document.has_value()) TITAN_RETURN_IF_ERROR(tokenizer.encode_document(document->text, tokens));
    if (static_cast<int64_t>(tokens.size()) < position.token)
      return absl::FailedPreconditionError("the dataset or the tokenizer has changed since the step was saved");
    tokens.erase(tokens.begin(), tokens.begin() + position.token);
    ++documents;
  }
  return json{{"token_buffer", tokens}, {"sample_idx", documents}};
}

// Of torchdata's StatefulDataLoader without worker processes.
json loader_state(json dataset) {
  return {{"_index_sampler_state", nullptr},
          {"_sampler_iter_state", nullptr},
          {"_sampler_iter_yielded", 0},
          {"_num_yielded", 0},
          {"_IterableDataset_len_called", nullptr},
          {"_shared_seed", nullptr},
          {"fetcher_state", {{"dataset_iter_state", nullptr}, {"fetcher_ended", false}}},
          {"dataset_state", std::move(dataset)},
          {"_iterator_finished", false}};
}

// The position of a data-parallel rank: in order global there is one for all.
absl::StatusOr<json> cursor_of(const json& dataloader, const std::vector<json>& per_rank, int rank) {
  if (dataloader.contains("cursor")) return dataloader.at("cursor");
  for (const json& one : per_rank) {
    if (one.is_object() && one.value("dp_rank", -1) == rank) return one;
  }
  return absl::FailedPreconditionError(absl::StrCat("the step has no place in the data of data-parallel rank ", rank));
}

}  // namespace

absl::StatusOr<json> torchtitan_positions(const config::JobConfig& config, const json& dataloader,
                                          const std::vector<json>& per_rank, const std::string& tokenizer) {
  const bool global = dataloader.value("order", "global") == "global";
  const int size = global ? 1 : dataloader.value("dp_size", 0);
  const config::Training& training = config.training;
  if (!training.dataloader.sources.empty())
    return absl::FailedPreconditionError("torchtitan trains on one dataset: it has no place in several sources");
  if (!training.dataloader.messages_key.empty())
    return absl::FailedPreconditionError("torchtitan trains on texts: it has no place in conversations");
  TITAN_ASSIGN_OR_RETURN(const data::ConfiguredFiles found,
                         data::configured_files(training.dataset, training.dataset_path, training.dataloader,
                                                config.job.dump_folder + "/data"));
  if (data_files::holds_tokens(found.kind.format))
    return absl::FailedPreconditionError("torchtitan trains on text: it has no place in tokens to go on from");
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> opened,
                         data::Tokenizer::load(tokenizer.empty() ? config.model.hf_assets_path : tokenizer));
  json all = {{"world_size", size}};
  for (int rank = 0; rank < size; ++rank) {
    data::RankShare share{.files = found.files};
    if (!global) {
      TITAN_ASSIGN_OR_RETURN(share, data::split_by_rank(found.files, rank, size, found.kind));
    }
    TITAN_ASSIGN_OR_RETURN(const json cursor, cursor_of(dataloader, per_rank, rank));
    TITAN_ASSIGN_OR_RETURN(json state, dataset_state(share, found.kind, cursor, *opened));
    all[absl::StrCat("dp_rank_", rank)] = loader_state(std::move(state));
  }
  return all;
}

}  // namespace titan::tools
