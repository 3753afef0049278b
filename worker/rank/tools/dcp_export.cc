#include "worker/rank/tools/dcp_export.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/json.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_writer.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/documents/sharding.h"
#include "worker/rank/data/loader/configured_files.h"
#include "worker/rank/data/rows/stream_state.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/optim/lr_schedule.h"
#include "worker/rank/pickle/writer.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;
using nlohmann::json;

constexpr char kOurModel[] = "model.", kOurOptim[] = "optim.";

class Export {
 public:
  Export(StepReader& step, const models::ModelSpec& spec, const DcpExport& options, DcpWriter& out)
      : step_(step), spec_(spec), options_(options), out_(out) {}

  absl::StatusOr<std::vector<std::string>> run() {
    const bool alone = options_.model_only || !step_.manifest().full;
    if (!alone) TITAN_RETURN_IF_ERROR(read_config());
    TITAN_RETURN_IF_ERROR(write_model(alone));
    if (!alone) {
      TITAN_RETURN_IF_ERROR(write_optimizer());
      TITAN_RETURN_IF_ERROR(write_schedule());
      TITAN_RETURN_IF_ERROR(write_train_state());
      write_data();
      TITAN_RETURN_IF_ERROR(data_);
    }
    TITAN_RETURN_IF_ERROR(out_.finish());
    return std::move(warnings_);
  }

 private:
  // Copies some rows of dim 0 at a time.
  absl::Status copy(const TensorRecord& record, const std::string& key, at::ScalarType type) {
    const auto item = static_cast<int64_t>(c10::elementSize(record.dtype));
    Narrowing narrowing;
    for (const Box& box : cut_along(whole(record.shape), 0, options_.max_piece_bytes / item)) {
      at::Tensor piece = at::empty(box.shape, at::TensorOptions().dtype(record.dtype));
      TITAN_RETURN_IF_ERROR(step_.read(record, box, piece));
      TITAN_RETURN_IF_ERROR(out_.add(key, record.shape, box, narrowing.cast(piece, type)));
    }
    return judge(record.key, narrowing, options_.overflow, warnings_);
  }

  absl::Status write_model(bool alone) {
    for (const TensorRecord& record : step_.manifest().tensors) {
      if (!absl::StartsWith(record.key, kOurModel)) continue;
      const std::string key = record.key.substr(sizeof kOurModel - 1);
      TITAN_RETURN_IF_ERROR(
          copy(record, key, alone ? narrowed_type(record.key, record.dtype, options_.dtype) : record.dtype));
    }
    // torchtitan's state contains a tied head a second time.
    if (spec_.tied_embeddings) out_.alias(kHeadName, kEmbeddingName);
    return absl::OkStatus();
  }

  absl::Status read_config() {
    const auto instead = [&](const std::string& why) {
      return absl::FailedPreconditionError(
          absl::StrCat(step_.folder(), ": ", why, "; --model-only writes only the weights"));
    };
    if (!step_.manifest().config.is_object()) return instead("was written before steps recorded their configuration");
    TITAN_ASSIGN_OR_RETURN(config_, config::from_json(step_.manifest().config));
    if (config_.optimizer.name != "AdamW" && config_.optimizer.name != "Adam")
      return instead(absl::StrCat("torchtitan has no optimizer ", config_.optimizer.name));
    if (!config_.optimizer.param_groups.empty()) return instead("torchtitan has no optimizer.param_groups");
    TITAN_ASSIGN_OR_RETURN(const optim::LrSchedule schedule,
                           optim::LrSchedule::create(optim::schedule_options(config_)));
    const json& state = step_.manifest().train_state;
    const json scheduler = state.value("lr_scheduler", json::object());
    epoch_ = scheduler.value("last_epoch", step_.manifest().step);
    lr_ = config_.optimizer.lr * schedule.factor(epoch_);
    return absl::OkStatus();
  }

  absl::Status write_optimizer() {
    const Manifest& manifest = step_.manifest();
    const TensorRecord* count = manifest.find("optim.step");
    if (count == nullptr) return absl::DataLossError(absl::StrCat(step_.folder(), ": has no optim.step"));
    at::Tensor steps = at::empty({}, at::TensorOptions().dtype(count->dtype));
    TITAN_RETURN_IF_ERROR(step_.read(*count, whole({}), steps));
    steps = steps.to(at::kFloat);
    for (const TensorRecord& record : manifest.tensors) {
      const size_t dot = record.key.find('.', sizeof kOurOptim - 1);
      if (!absl::StartsWith(record.key, kOurOptim) || dot == record.key.npos) continue;
      const std::string state = record.key.substr(sizeof kOurOptim - 1, dot - sizeof kOurOptim + 1),
                        fqn = record.key.substr(dot + 1);
      TITAN_RETURN_IF_ERROR(copy(record, absl::StrCat("optimizer.state.", fqn, ".", state), record.dtype));
      if (state != "exp_avg") continue;
      TITAN_RETURN_IF_ERROR(out_.add(absl::StrCat("optimizer.state.", fqn, ".step"), {}, whole({}), steps));
      TITAN_RETURN_IF_ERROR(write_group(fqn));
    }
    return absl::OkStatus();
  }

  // Writes torch.optim.AdamW's group, once per parameter.
  absl::Status write_group(const std::string& fqn) {
    const config::OptimizerSection& optimizer = config_.optimizer;
    const json group = {{"lr", lr_},
                        {"betas", {optimizer.beta1, optimizer.beta2}},
                        {"eps", optimizer.eps},
                        {"weight_decay", optimizer.weight_decay},
                        {"amsgrad", false},
                        {"maximize", false},
                        {"foreach", optimizer.implementation == "foreach"},
                        {"capturable", false},
                        {"differentiable", false},
                        {"fused", optimizer.implementation == "fused"},
                        {"decoupled_weight_decay", optimizer.name == "AdamW"},
                        {"initial_lr", optimizer.lr}};
    for (const auto& [name, value] : group.items())
      TITAN_RETURN_IF_ERROR(out_.add(absl::StrCat("optimizer.param_groups.", fqn, ".", name), value));
    return absl::OkStatus();
  }

  // Writes the state of torch.optim.lr_scheduler.LambdaLR.
  absl::Status write_schedule() {
    const json state = {{"base_lrs", {config_.optimizer.lr}},  {"last_epoch", epoch_},
                        {"_step_count", epoch_ + 1},           {"_is_initial", false},
                        {"_get_lr_called_within_step", false}, {"_last_lr", {lr_}}};
    for (const auto& [name, value] : state.items()) TITAN_RETURN_IF_ERROR(out_.add("lr_scheduler." + name, value));
    return absl::OkStatus();
  }

  absl::Status write_train_state() {
    const json& state = step_.manifest().train_state;
    TITAN_RETURN_IF_ERROR(out_.add("train_state.step", json(step_.manifest().step)));
    // Counts one data-parallel rank. With order global there is one position in the data, as on a single rank.
    const json dataloader = state.value("dataloader", json::object());
    const bool global = dataloader.value("order", "global") == "global";
    const int64_t ranks = global ? 1 : std::max<int64_t>(1, dataloader.value("dp_size", int64_t{1}));
    return out_.add("train_state.ntokens_seen", json(state.value("ntokens_seen", int64_t{0}) / ranks));
  }

  void write_data() {
    const json dataloader = step_.manifest().train_state.value("dataloader", json::object());
    const auto positions = torchtitan_positions(config_, dataloader, step_.manifest().per_rank, options_.tokenizer);
    const std::string exclude = "checkpoint.exclude_from_loading = [\"dataloader\"] in torchtitan";
    if (!positions.ok()) {
      warnings_.push_back(absl::StrCat(
          "the position in the data is omitted: ", std::string(positions.status().message()), "; set ", exclude));
      return;
    }
    for (const auto& [name, value] : positions->items()) {
      json item = value;
      if (value.is_object()) {  // torchtitan pickles each rank's state separately.
        const std::string pickled = pickle::Writer(2).plain(value).finish();
        item = json::binary(std::vector<uint8_t>(pickled.begin(), pickled.end()));
      }
      data_.Update(out_.add("dataloader." + name, item));
    }
    const int64_t size = positions->at("world_size");
    warnings_.push_back(absl::StrCat("the position in the data is for ", size,
                                     size == 1 ? " data-parallel rank" : " data-parallel ranks",
                                     ": for another number set ", exclude));
  }

  StepReader& step_;
  const models::ModelSpec& spec_;
  const DcpExport& options_;
  DcpWriter& out_;
  config::JobConfig config_;
  int64_t epoch_ = 0;
  double lr_ = 0;  // Learning rate after the step.
  absl::Status data_;
  std::vector<std::string> warnings_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> write_dcp(storage::Files& files, StepReader& step,
                                                   const models::ModelSpec& spec, const DcpExport& options,
                                                   const std::string& folder,
                                                   const std::function<void(const std::string& file)>& progress) {
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  DcpWriter writer(files, folder, options.max_file_bytes, progress);
  return Export(step, spec, options, writer).run();
}

namespace {

// Returns torchtitan's state: the number of documents of the share that were read, and the tokens of the last one that
// are in no row yet.
absl::StatusOr<json> dataset_state(const data::RankShare& share, const data::FileKind& kind, const json& cursor,
                                   data::Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const data::StreamPosition position, data::position_from_json(cursor, share.files));
  if (position.arrangement != data::Arrangement{})
    return absl::FailedPreconditionError("torchtitan neither shuffles nor packs documents");
  if (share.share.step != 1 || position.document.document < share.share.begin)
    return absl::FailedPreconditionError("torchtitan cannot resume from the document counts of compressed files");
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

// Returns the state of torchdata's StatefulDataLoader without worker processes.
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

// Returns the position of a data-parallel rank. With order global it is the same for all ranks.
absl::StatusOr<json> cursor_of(const json& dataloader, const std::vector<json>& per_rank, int rank) {
  if (dataloader.contains("cursor")) return dataloader.at("cursor");
  for (const json& one : per_rank) {
    if (one.is_object() && one.value("dp_rank", -1) == rank) return one;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the step has no position in the data for data-parallel rank ", rank));
}

}  // namespace

absl::StatusOr<json> torchtitan_positions(const config::JobConfig& config, const json& dataloader,
                                          const std::vector<json>& per_rank, const std::string& tokenizer) {
  const bool global = dataloader.value("order", "global") == "global";
  const int size = global ? 1 : dataloader.value("dp_size", 0);
  const config::TrainingSection& training = config.training;
  if (!training.dataloader.sources.empty())
    return absl::FailedPreconditionError("torchtitan trains on one dataset and cannot resume in several sources");
  if (!training.dataloader.messages_key.empty())
    return absl::FailedPreconditionError("torchtitan trains on texts and cannot resume in conversations");
  TITAN_ASSIGN_OR_RETURN(const data::ConfiguredFiles found,
                         data::configured_files(training.dataset, training.dataset_path, training.dataloader,
                                                config.job.dump_folder + "/data"));
  if (data_files::holds_tokens(found.kind.format))
    return absl::FailedPreconditionError("torchtitan trains on text and cannot resume in files of tokens");
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
