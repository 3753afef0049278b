#include "worker/rank/runtime/step/data_setup.h"

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "nlohmann/json.hpp"
#include "worker/rank/runtime/failure/failure.h"

namespace titan::runtime {

using model::RowsBefore;
using rank_protocol::kExitUserError;

namespace {

// Restores a torchtitan checkpoint, which has one position per data-parallel rank. They fit order per_rank with the
// same degree. A single position fits the one stream of order global, with any degree.
void restore_torchtitan_data(const RankContext& context, const nlohmann::json& cursor, data::BatchSource& loader) {
  const std::string& order = context.config.training.dataloader.order;
  const int dp_size = context.mesh->mesh().size(mesh::Axis::kBatch);
  const int saved = cursor.at("dp_size");
  const char* const remedy =
      "; put \"dataloader\" into checkpoint.exclude_from_loading to restart the data from its beginning";
  if (order == "global" ? saved != 1 : saved != dp_size) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("a torchtitan checkpoint of ", counted(saved, "data-parallel rank"),
                               " can resume only with training.dataloader.order = \"per_rank\" on as many ranks",
                               saved == 1 ? ", or with \"global\" on any number" : "", ", not with \"", order, "\" on ",
                               dp_size, remedy));
  }
  const int rank = order == "global" ? 0 : context.mesh->mesh().index(context.rank, mesh::Axis::kBatch);
  const nlohmann::json& position = cursor.at("ranks").at(static_cast<size_t>(rank));
  if (const auto why = position.find("unread"); why != position.end()) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("the torchtitan checkpoint's position in the data cannot be used: ",
                               why->get<std::string>(), remedy));
  }
  check(loader.restore(position), kExitUserError, "DATA_CURSOR");
}

}  // namespace

RowsBefore rows_before(const config::JobConfig& config, const checkpoint::LoadResult& loaded, const BatchPlan& batch) {
  const auto dataloader = loaded.train_state.find("dataloader");
  const auto none = RowsBefore{.steps = loaded.step, .rows = loaded.step * batch.global_batch};
  if (config.training.dataloader.sources.empty() || dataloader == loaded.train_state.end()) return none;
  const nlohmann::json cursor = dataloader->value("cursor", nlohmann::json::object());
  return {.steps = loaded.step, .rows = cursor.is_object() ? cursor.value("row", none.rows) : none.rows};
}

void restore_data(const RankContext& context, const checkpoint::LoadResult& loaded, const BatchPlan& batch,
                  data::BatchSource& loader) {
  const auto cursor = loaded.train_state.find("dataloader");
  if (cursor == loaded.train_state.end()) {
    // Weights of sources follow the job's steps, even if its data starts over.
    check(loader.begin_at(loaded.step * batch.global_batch), kExitUserError, "DATA_CURSOR");
    return;
  }
  if (cursor->contains("ranks")) return restore_torchtitan_data(context, *cursor, loader);
  const std::string saved_order = cursor->value("order", "global");
  const std::string& order = context.config.training.dataloader.order;
  if (saved_order != order) {
    throw Failure(kExitUserError, "DATA_CURSOR",
                  absl::StrCat("training.dataloader.order = \"", order,
                               "\" cannot resume from a checkpoint of order \"", saved_order,
                               "\"; put \"dataloader\" into checkpoint.exclude_from_loading to start the "
                               "data from its beginning"));
  }
  if (order == "global") {
    check(loader.restore(cursor->at("cursor")), kExitUserError, "DATA_CURSOR");
    return;
  }
  const int dp_size = context.mesh->mesh().size(mesh::Axis::kBatch);
  if (cursor->value("dp_size", 0) != dp_size || static_cast<int>(loaded.per_rank.size()) != context.world) {
    throw Failure(
        kExitUserError, "DATA_CURSOR",
        absl::StrCat(
            "a checkpoint with training.dataloader.order = \"per_rank\" of ", cursor->value("dp_size", 0),
            " data-parallel ranks cannot resume with ", dp_size,
            "; put \"dataloader\" into checkpoint.exclude_from_loading to restart the data from its beginning"));
  }
  check(loader.restore(loaded.per_rank[context.rank]), kExitUserError, "DATA_CURSOR");
}

}  // namespace titan::runtime
