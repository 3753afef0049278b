#include "worker/checkpoint/checkpointer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_join.h"
#include "common/clock/clock.h"
#include "common/rank_protocol/launch.h"
#include "common/status/status.h"
#include "common/storage/fence.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/hf_config.h"
#include "worker/checkpoint/loading.h"
#include "worker/checkpoint/pulse.h"
#include "worker/checkpoint/step_folders.h"

namespace titan::checkpoint {
namespace {

namespace event = rank_protocol::event;
using nlohmann::json;

// A status in a report or verdict; the code survives, so that "fenced" and "disk full" mean the same on every rank.
json to_json(const absl::Status& status) {
  return {{"code", static_cast<int>(status.code())}, {"message", std::string(status.message())}};
}

absl::Status status_from_json(const json& from) {
  return absl::Status(static_cast<absl::StatusCode>(from.value("code", static_cast<int>(absl::StatusCode::kInternal))),
                      from.value("message", "unreadable report"));
}

// The codes of Exchange: there is nobody left to agree with.
bool lost_a_rank(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

// A file's own "unavailable" must not read as a lost rank.
absl::Status not_a_lost_rank(const absl::Status& status) {
  return lost_a_rank(status) ? absl::AbortedError(status.message()) : status;
}

// LibTorch throws (out of memory, a tensor that does not fit a view); a rank that fails must still report, or all
// others wait.
template <typename Call>
auto guarded(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return absl::InternalError(what.substr(0, what.find('\n')));
  }
}

at::ScalarType export_type(const config::Checkpoint& config) {
  if (config.export_dtype == "float16") return at::kHalf;
  if (config.export_dtype == "bfloat16") return at::kBFloat16;
  return at::kFloat;
}

absl::Status check_setup(const Setup& setup) {
  const config::Checkpoint& config = setup.config;
  if (setup.rank < 0 || setup.rank >= setup.world) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint: rank ", setup.rank, " of ", setup.world));
  }
  if (setup.world > 1 && setup.store == nullptr)
    return absl::InvalidArgumentError("checkpoint: several ranks need a store");
  if (config.keep_latest_k == 1 || config.keep_latest_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.keep_latest_k = ", config.keep_latest_k,
                     ": use 0 (keep all) or at least 2, since the newest may be in the making"));
  }
  if (config.interval < 1)
    return absl::InvalidArgumentError(absl::StrCat("checkpoint.interval = ", config.interval, ": at least 1"));
  if (config.export_dtype != "float32" && config.export_dtype != "float16" && config.export_dtype != "bfloat16") {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.export_dtype = \"", config.export_dtype, "\": use float32, float16 or bfloat16"));
  }
  const std::set<std::string> known = {"model", "optimizer", "lr_scheduler", "dataloader", "train_state"};
  for (const std::string& key : config.exclude_from_loading) {
    if (!known.contains(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint.exclude_from_loading: no state \"", key, "\"; use ", absl::StrJoin(known, ", ")));
    }
  }
  if (config.initial_load_in_hf && !config.initial_load_model_only) {
    return absl::InvalidArgumentError(
        "checkpoint.initial_load_in_hf needs checkpoint.initial_load_model_only = true: Hugging Face weights hold the "
        "model alone");
  }
  if (config.last_save_in_hf && !config.last_save_model_only) {
    return absl::InvalidArgumentError(
        "checkpoint.last_save_in_hf needs checkpoint.last_save_model_only = true: Hugging Face weights hold the model "
        "alone");
  }
  return absl::OkStatus();
}

}  // namespace

const char* name(Source source) {
  switch (source) {
    case Source::kCheckpoint:
      return "checkpoint";
    case Source::kInitial:
      return "initial";
    case Source::kFresh:
      return "fresh";
  }
  return "unknown";
}

class Checkpointer::Impl {
 public:
  explicit Impl(Setup setup)
      : setup_(std::move(setup)),
        files_(setup_.files != nullptr ? *setup_.files : storage::posix_files()),
        folder_(storage::join_path(setup_.dump_folder, setup_.config.folder)),
        fence_(setup_.dump_folder, files_),
        exchange_(setup_.store, setup_.rank, setup_.world,
                  {setup_.peer_timeout, setup_.peer_silence, setup_.peer_start}, &stop_),
        janitor_(files_, folder_, fence_, setup_.job_uid, setup_.attempt) {
    if (setup_.world > 1) pulse_ = std::make_unique<Pulse>(*setup_.store, setup_.rank, setup_.peer_silence / 15);
  }

  ~Impl() {
    stop_ = true;
    if (writer_.joinable()) writer_.join();
  }

  absl::StatusOr<LoadResult> load(std::vector<Slice>& slices);
  absl::Status save(int64_t step, const std::vector<Slice>& slices, TrainState state, Kind kind);
  absl::Status save_last(int64_t step, const std::vector<Slice>& slices, TrainState state);
  absl::Status wait();
  bool in_flight() const { return running_; }
  int64_t last_committed() const { return last_committed_; }

 private:
  struct Save {
    std::string topic;
    int64_t step = 0;
    Kind kind = Kind::kFull;
    TrainState state;
    std::vector<Staged> parts;
    absl::Duration begin;
  };

  bool leader() const { return setup_.rank == 0; }
  void emit(const char* kind, json members) const {
    if (setup_.events) setup_.events(kind, std::move(members));
  }
  std::string next_topic(const char* what) { return absl::StrCat(what, "/", ++operations_); }

  // Loading.
  absl::Status propose(std::vector<Candidate>& plan, size_t& next, Candidate& candidate);
  absl::Status agree(const std::string& topic, const Candidate& candidate, const absl::StatusOr<StagedLoad>& staged);
  void reject(const Candidate& candidate, const absl::Status& why) const;

  // Saving.
  void stage(const std::vector<Slice>& slices, Kind kind, std::optional<at::ScalarType> cast, bool copy,
             std::vector<Staged>& parts);
  absl::Status settle(const Save& save, absl::Status status);
  absl::Status run(const Save& save);
  absl::Status publish(const Save& save, const std::vector<std::string>& reports, bool& discard);
  absl::StatusOr<bool> already_full(const Save& save);
  absl::Status export_hugging_face(Save& save);
  absl::Status write_export(const Save& save, const std::string& staging);
  absl::StatusOr<std::vector<ShardReport>> parse_reports(const std::vector<std::string>& reports) const;
  absl::Status conclude(const std::string& topic, const absl::Status& leaders);

  const Setup setup_;
  storage::Files& files_;
  const std::string folder_;
  const storage::Fence fence_;
  std::atomic<bool> stop_{false};
  Exchange exchange_;
  Janitor janitor_;  // Rank 0 only; on the thread that saves.
  int64_t operations_ = 0;
  std::vector<Staged> buffers_;  // Reused by asynchronous saves, so that a long job's memory stays flat.
  std::thread writer_;
  std::atomic<bool> running_{false};
  std::atomic<int64_t> last_committed_{-1};
  absl::Status written_;  // By writer_, read after join.
  absl::Status fenced_;   // Sticky.
  int64_t failures_ = 0;  // In a row.
  std::unique_ptr<Pulse> pulse_;
};

// ---- Loading ----

void Checkpointer::Impl::reject(const Candidate& candidate, const absl::Status& why) const {
  emit(event::kRejected, {{"step", candidate.step}, {"path", candidate.path}, {"reason", std::string(why.message())}});
}

// Rank 0 looks for the next candidate that is worth everybody's time; the others hear of it.
absl::Status Checkpointer::Impl::propose(std::vector<Candidate>& plan, size_t& next, Candidate& candidate) {
  const std::string topic = next_topic("propose");
  std::string words;
  if (leader()) {
    for (; next < plan.size(); ++next) {
      candidate = plan[next];
      if (candidate.from != Candidate::From::kStep) break;
      const absl::StatusOr<bool> usable = inspect(files_, setup_, candidate);
      if (usable.ok() && *usable) break;
      if (usable.ok()) continue;
      if (candidate.required) {
        const std::string key = candidate.source == Source::kCheckpoint
                                    ? absl::StrCat("checkpoint.load_step = ", candidate.step)
                                    : "initial weights";
        candidate = {.from = Candidate::From::kError, .error = annotate(usable.status(), key)};
        break;
      }
      reject(candidate, usable.status());
    }
    ++next;
    words = to_json(candidate).dump();
  }
  TITAN_ASSIGN_OR_RETURN(words, exchange_.broadcast(topic, words));
  TITAN_ASSIGN_OR_RETURN(candidate, candidate_from_json(json::parse(words, nullptr, false)));
  return absl::OkStatus();
}

// Ok when every rank has its part; else the most telling reason, the same on every rank.
absl::Status Checkpointer::Impl::agree(const std::string& topic, const Candidate& candidate,
                                       const absl::StatusOr<StagedLoad>& staged) {
  json report = to_json(not_a_lost_rank(staged.status()));
  report["unclaimed"] = staged.ok() ? staged->unclaimed : std::vector<std::string>{};
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> reports, exchange_.gather(topic, report.dump()));
  absl::Status verdict;
  if (leader()) {
    std::vector<std::string> unclaimed;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      const json from = json::parse(reports[rank], nullptr, false);
      absl::Status status = status_from_json(from);
      if (!status.ok() && setup_.world > 1) status = annotate(status, absl::StrCat("rank ", rank));
      // A tensor that does not fit outweighs what may be a bad disk: no older step would fit either.
      if (!status.ok() && (verdict.ok() || absl::IsFailedPrecondition(status))) verdict = status;
      std::vector<std::string> theirs = from.value("unclaimed", std::vector<std::string>{});
      if (rank == 0) {
        unclaimed = std::move(theirs);
      } else {
        std::erase_if(unclaimed,
                      [&](const std::string& key) { return !std::binary_search(theirs.begin(), theirs.end(), key); });
      }
    }
    if (verdict.ok() && !unclaimed.empty()) {
      verdict = absl::FailedPreconditionError(
          absl::StrCat(candidate.path, " does not fit this model: it has ", unclaimed.front(),
                       unclaimed.size() > 1 ? absl::StrCat(" and ", unclaimed.size() - 1, " more tensors") : "",
                       " that this model lacks"));
    }
  }
  return conclude(topic + "/verdict", verdict);
}

// Rank 0's status becomes everybody's.
absl::Status Checkpointer::Impl::conclude(const std::string& topic, const absl::Status& leaders) {
  TITAN_ASSIGN_OR_RETURN(const std::string words, exchange_.broadcast(topic, leader() ? to_json(leaders).dump() : ""));
  return status_from_json(json::parse(words, nullptr, false));
}

absl::StatusOr<LoadResult> Checkpointer::Impl::load(std::vector<Slice>& slices) {
  std::vector<Candidate> plan;
  if (leader()) {
    if (setup_.config.enable && !setup_.config.load_only) {
      if (absl::Status swept = janitor_.clean_leftovers(); storage::is_fenced(swept)) {
        plan.push_back({.from = Candidate::From::kError, .error = swept});
      } else if (!swept.ok()) {
        emit(event::kWarning,
             {{"message", absl::StrCat("leftovers of earlier attempts stay: ", std::string(swept.message()))}});
      }
    }
    if (plan.empty()) plan = plan_load(files_, setup_, folder_);
  }
  size_t next = 0;
  while (true) {
    Candidate candidate;
    TITAN_RETURN_IF_ERROR(propose(plan, next, candidate));
    if (candidate.from == Candidate::From::kError) return candidate.error;
    absl::StatusOr<StagedLoad> staged =
        guarded([&] { return stage_load(files_, candidate, slices, setup_.config.exclude_from_loading, setup_.hf); });
    const absl::Status verdict = agree(next_topic("load"), candidate, staged);
    if (!verdict.ok()) {
      // A rank that is gone, or a model that cannot fit, is no reason to fall back to older weights.
      if (candidate.required || absl::IsFailedPrecondition(verdict) || lost_a_rank(verdict)) return verdict;
      if (leader()) reject(candidate, verdict);
      continue;
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < slices.size(); ++i) {
      if (staged->tensors[i].defined() && slices[i].local.numel() > 0) slices[i].local.copy_(staged->tensors[i]);
    }
    LoadResult result{.source = candidate.source, .path = candidate.path, .model_only = candidate.model_only};
    const std::vector<std::string>& excluded = setup_.config.exclude_from_loading;
    result.model_loaded =
        candidate.source != Source::kFresh &&
        (candidate.model_only || std::find(excluded.begin(), excluded.end(), "model") == excluded.end());
    if (!candidate.model_only) {
      result.step = staged->step;
      result.train_state = std::move(staged->train_state);
      result.per_rank = std::move(staged->per_rank);
      if (candidate.source == Source::kCheckpoint) janitor_.note_loaded(staged->step);
    }
    return result;
  }
}

// ---- Saving ----

void Checkpointer::Impl::stage(const std::vector<Slice>& slices, Kind kind, std::optional<at::ScalarType> cast,
                               bool copy, std::vector<Staged>& parts) {
  const at::NoGradGuard no_grad;
  std::vector<Staged> old = std::move(parts);
  parts.clear();
  for (const Slice& slice : slices) {
    if (!slice.primary || slice.local.numel() == 0 || (kind == Kind::kModel && !is_model(slice))) continue;
    const at::ScalarType own = slice.local.scalar_type();
    const at::ScalarType dtype = at::isFloatingType(own) ? cast.value_or(own) : own;
    at::Tensor data = slice.local.detach();
    if (copy || !data.is_cpu() || data.scalar_type() != dtype || !data.is_contiguous()) {
      at::Tensor buffer;
      if (parts.size() < old.size()) buffer = old[parts.size()].data;
      if (!buffer.defined() || buffer.sizes() != data.sizes() || buffer.scalar_type() != dtype) {
        buffer = at::empty(data.sizes(), at::TensorOptions().dtype(dtype));
      }
      buffer.copy_(data);
      data = buffer;
    }
    parts.push_back({slice.key, slice.shape, slice.offset, std::move(data)});
  }
}

absl::Status Checkpointer::Impl::wait() {
  if (!writer_.joinable()) return fenced_;
  writer_.join();
  return written_;
}

absl::Status Checkpointer::Impl::save(int64_t step, const std::vector<Slice>& slices, TrainState state, Kind kind) {
  TITAN_RETURN_IF_ERROR(wait());
  if (kind == Kind::kFull && last_committed_ == step) return absl::OkStatus();  // The same state: already safe.
  Save save{.topic = next_topic("save"),
            .step = step,
            .kind = kind,
            .state = std::move(state),
            .begin = system_clock().monotonic()};
  if (setup_.config.async_mode == "disabled") {
    stage(slices, kind, std::nullopt, /*copy=*/false, save.parts);
    return settle(save, run(save));
  }
  stage(slices, kind, std::nullopt, /*copy=*/true, buffers_);
  save.parts = buffers_;
  if (leader()) emit(event::kStaged, {{"step", step}});
  running_ = true;
  writer_ = std::thread([this, save = std::move(save)] {
    written_ = settle(save, run(save));
    running_ = false;
  });
  return absl::OkStatus();
}

// The rule for failed saves: what the caller of save() or wait() gets to see.
absl::Status Checkpointer::Impl::settle(const Save& save, absl::Status status) {
  if (status.ok()) {
    failures_ = 0;
    if (save.kind == Kind::kFull) last_committed_ = save.step;
    return status;
  }
  if (storage::is_fenced(status)) return fenced_ = status;
  if (leader() && !absl::IsCancelled(status)) {
    emit(event::kCheckpointFailed, {{"step", save.step}, {"reason", std::string(status.message())}});
  }
  if (absl::IsUnavailable(status)) return status;  // There is nobody to go on training with.
  ++failures_;
  return setup_.failed_saves_allowed > 0 && failures_ >= setup_.failed_saves_allowed ? status : absl::OkStatus();
}

// All ranks write, report, and hear the verdict. On a failure every rank removes what it wrote.
absl::Status Checkpointer::Impl::run(const Save& save) {
  if (save.kind == Kind::kModel) {
    TITAN_ASSIGN_OR_RETURN(const bool full, already_full(save));
    if (full) {
      if (leader()) {
        emit(event::kWarning,
             {{"message",
               absl::StrCat("step ", save.step, " is already there in full; its model-only save is left out")}});
      }
      return absl::OkStatus();
    }
  }
  const std::string path = step_path(folder_, save.step);
  absl::StatusOr<ShardReport> shard(absl::UnknownError("not written"));
  if (const absl::Status made = files_.make_folders(path); made.ok()) {
    shard = guarded([&] { return write_shard(files_, path, {setup_.attempt, setup_.rank}, save.parts, &stop_); });
  } else {
    shard = made;
  }
  json report = to_json(not_a_lost_rank(shard.status()));
  if (shard.ok()) {
    shard->per_rank = save.state.per_rank;
    report["shard"] = checkpoint::to_json(*shard);
  }
  const absl::StatusOr<std::vector<std::string>> reports = exchange_.gather(save.topic, report.dump());
  absl::Status published = reports.status();
  bool discard = false;
  if (leader() && published.ok()) published = not_a_lost_rank(publish(save, *reports, discard));
  json words = to_json(published);
  words["discard"] = discard;
  TITAN_ASSIGN_OR_RETURN(const std::string heard, exchange_.broadcast(save.topic + "/verdict", words.dump()));
  const json verdict = json::parse(heard, nullptr, false);
  // Only on rank 0's word: a manifest may name the shard although this rank never heard that it was published.
  if (verdict.value("discard", false) && shard.ok() && shard->has_file) {
    files_.remove(storage::join_path(path, shard->file.name))
        .IgnoreError();  // Else the next start's cleaning finds it.
  }
  return status_from_json(verdict);
}

absl::StatusOr<bool> Checkpointer::Impl::already_full(const Save& save) {
  std::string answer;
  if (leader()) {
    const auto reader = StepReader::open(files_, step_path(folder_, save.step));
    answer = reader.ok() && (*reader)->manifest().full ? "full" : "no";
  }
  TITAN_ASSIGN_OR_RETURN(answer, exchange_.broadcast(save.topic + "/there", answer));
  return answer == "full";
}

absl::StatusOr<std::vector<ShardReport>> Checkpointer::Impl::parse_reports(
    const std::vector<std::string>& reports) const {
  std::vector<ShardReport> shards;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const json from = json::parse(reports[rank], nullptr, false);
    const absl::Status status = status_from_json(from);
    if (!status.ok()) return setup_.world > 1 ? annotate(status, absl::StrCat("rank ", rank)) : status;
    TITAN_ASSIGN_OR_RETURN(ShardReport shard, report_from_json(from.at("shard")));
    shards.push_back(std::move(shard));
  }
  return shards;
}

// `discard`: it failed, and for certain no manifest names the new shards.
absl::Status Checkpointer::Impl::publish(const Save& save, const std::vector<std::string>& reports, bool& discard) {
  discard = true;
  TITAN_ASSIGN_OR_RETURN(const std::vector<ShardReport> shards, parse_reports(reports));
  Manifest manifest{.step = save.step,
                    .full = save.kind == Kind::kFull,
                    .attempt = setup_.attempt,
                    .job_uid = setup_.job_uid,
                    .world = setup_.world,
                    .load_step = setup_.config.load_step,
                    .train_state = save.state.shared};
  TITAN_RETURN_IF_ERROR(merge(shards, manifest));
  const std::string path = step_path(folder_, save.step);
  const std::string text = to_text(manifest);
  TITAN_RETURN_IF_ERROR(files_.sync_folder(folder_));
  TITAN_RETURN_IF_ERROR(files_.sync_folder(setup_.dump_folder));
  const std::string manifest_path = storage::join_path(path, kManifestName);
  TITAN_RETURN_IF_ERROR(fence_.publish(setup_.job_uid, setup_.attempt, [&] {
    absl::Status written = storage::atomic_write(files_, manifest_path, text);
    // The rename may have happened although its folder could not be synced.
    if (!written.ok())
      discard = !files_.exists(manifest_path) || storage::read_file(files_, manifest_path).value_or(text) != text;
    return written;
  }));
  discard = false;
  emit(event::kCommitted, {{"step", save.step},
                           {"full", manifest.full},
                           {"seconds", absl::ToDoubleSeconds(system_clock().monotonic() - save.begin)}});
  // The step is safe; what housekeeping cannot do now, the next save or start does.
  janitor_.note_committed(save.step, manifest.full);
  absl::Status kept = janitor_.clean_step(manifest);
  if (kept.ok()) kept = janitor_.purge(setup_.config.keep_latest_k);
  if (!kept.ok() && !storage::is_fenced(kept)) {
    emit(event::kWarning, {{"message", absl::StrCat("old checkpoints stay: ", std::string(kept.message()))}});
  }
  return absl::OkStatus();
}

// ---- The last save ----

absl::Status Checkpointer::Impl::save_last(int64_t step, const std::vector<Slice>& slices, TrainState state) {
  TITAN_RETURN_IF_ERROR(wait());
  Save save{.topic = next_topic("last"),
            .step = step,
            .kind = setup_.config.last_save_model_only ? Kind::kModel : Kind::kFull,
            .state = std::move(state),
            .begin = system_clock().monotonic()};
  // A Hugging Face export casts when it makes its files; a full checkpoint keeps every type.
  const bool cast = save.kind == Kind::kModel && !setup_.config.last_save_in_hf;
  stage(slices, save.kind, cast ? std::optional(export_type(setup_.config)) : std::nullopt, /*copy=*/false, save.parts);
  const absl::Status status = setup_.config.last_save_in_hf ? export_hugging_face(save) : run(save);
  settle(save, status).IgnoreError();  // For the event.
  return status;
}

// The model goes to a private folder as an ordinary step first, since a Hugging Face tensor needs all ranks' slices;
// then the files are shared out, and rank 0 moves them into place.
absl::Status Checkpointer::Impl::export_hugging_face(Save& save) {
  if (setup_.hf == nullptr)
    return absl::FailedPreconditionError("checkpoint.last_save_in_hf: this model has no Hugging Face names");
  const std::string staging =
      storage::join_path(folder_, absl::StrCat(".export-a", setup_.attempt, "-", "step-", save.step));
  const absl::Status status = write_export(save, staging);
  if (leader()) files_.remove_folder(staging).IgnoreError();
  return status;
}

absl::Status Checkpointer::Impl::write_export(const Save& save, const std::string& staging) {
  // 1. All slices, with a manifest that nobody else looks for.
  absl::StatusOr<ShardReport> shard(absl::UnknownError("not written"));
  if (const absl::Status made = files_.make_folders(staging); made.ok()) {
    shard = guarded([&] { return write_shard(files_, staging, {setup_.attempt, setup_.rank}, save.parts, &stop_); });
  } else {
    shard = made;
  }
  json report = to_json(not_a_lost_rank(shard.status()));
  if (shard.ok()) report["shard"] = checkpoint::to_json(*shard);
  absl::StatusOr<std::vector<std::string>> reports = exchange_.gather(save.topic + "/slices", report.dump());
  absl::Status verdict = reports.status();
  if (leader() && verdict.ok()) {
    Manifest manifest{
        .step = save.step, .full = false, .attempt = setup_.attempt, .job_uid = setup_.job_uid, .world = setup_.world};
    absl::StatusOr<std::vector<ShardReport>> shards = parse_reports(*reports);
    verdict = shards.status();
    if (verdict.ok()) verdict = merge(*shards, manifest);
    if (verdict.ok())
      verdict = storage::atomic_write(files_, storage::join_path(staging, kManifestName), to_text(manifest));
    verdict = not_a_lost_rank(verdict);
  }
  TITAN_RETURN_IF_ERROR(verdict = conclude(save.topic + "/slices/verdict", verdict));

  // 2. Each rank makes its files.
  const HfExport options{.dtype = export_type(setup_.config)};
  std::vector<HfFile> plan;
  json written = json::object();
  const auto make_files = [&]() -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files_, staging));
    TITAN_ASSIGN_OR_RETURN(plan, plan_export(reader->manifest(), *setup_.hf, options));
    for (size_t i = static_cast<size_t>(setup_.rank); i < plan.size(); i += static_cast<size_t>(setup_.world)) {
      TITAN_ASSIGN_OR_RETURN(const HfWritten one, write_export_file(files_, *reader, *setup_.hf, plan[i], options,
                                                                    staging, plan[i].name, &stop_));
      written[absl::StrCat(i)] = {{"keys", one.keys}, {"bytes", one.bytes}};
    }
    return absl::OkStatus();
  };
  report = to_json(not_a_lost_rank(guarded(make_files)));
  report["written"] = written;
  reports = exchange_.gather(save.topic + "/files", report.dump());
  verdict = reports.status();

  // 3. Rank 0 publishes them.
  if (leader() && verdict.ok()) {
    std::vector<HfWritten> all(plan.size());
    for (size_t rank = 0; rank < reports->size() && verdict.ok(); ++rank) {
      const json from = json::parse((*reports)[rank], nullptr, false);
      verdict = status_from_json(from);
      if (!verdict.ok() && setup_.world > 1) verdict = annotate(verdict, absl::StrCat("rank ", rank));
      if (!verdict.ok()) break;
      for (const auto& [index, file] : from.at("written").items()) {
        all.at(std::stoul(index)) = {file.at("keys").get<std::vector<std::string>>(), file.at("bytes").get<int64_t>()};
      }
    }
    const std::string path = step_path(folder_, save.step);
    if (verdict.ok()) verdict = files_.make_folders(path);
    if (verdict.ok()) verdict = files_.sync_folder(folder_);
    if (verdict.ok()) {
      verdict = fence_.publish(setup_.job_uid, setup_.attempt, [&]() -> absl::Status {
        for (const HfFile& file : plan) {
          TITAN_RETURN_IF_ERROR(
              files_.rename(storage::join_path(staging, file.name), storage::join_path(path, file.name)));
        }
        TITAN_RETURN_IF_ERROR(write_hf_config(files_, path, *setup_.hf, setup_.hf_assets_path));
        return storage::atomic_write(files_, storage::join_path(path, kHfIndexName), hf_index(plan, all));
      });
    }
    verdict = not_a_lost_rank(verdict);
    if (verdict.ok()) {
      emit(event::kCommitted, {{"step", save.step},
                               {"full", false},
                               {"seconds", absl::ToDoubleSeconds(system_clock().monotonic() - save.begin)}});
    }
  }
  return conclude(save.topic + "/files/verdict", verdict);
}

// ---- The public class ----

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::create(Setup setup) {
  TITAN_RETURN_IF_ERROR(check_setup(setup));
  try {
    return std::unique_ptr<Checkpointer>(new Checkpointer(std::make_unique<Impl>(std::move(setup))));
  } catch (const std::exception& error) {  // Of the pulse's own connection.
    const std::string what = error.what();
    return absl::UnavailableError(absl::StrCat("the job's store: ", what.substr(0, what.find('\n'))));
  }
}

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpointer::~Checkpointer() = default;

absl::StatusOr<LoadResult> Checkpointer::load(std::vector<Slice>& slices) { return impl_->load(slices); }

absl::Status Checkpointer::save(int64_t step, const std::vector<Slice>& slices, TrainState state, Kind kind) {
  return impl_->save(step, slices, std::move(state), kind);
}

absl::Status Checkpointer::save_last(int64_t step, const std::vector<Slice>& slices, TrainState state) {
  return impl_->save_last(step, slices, std::move(state));
}

absl::Status Checkpointer::wait() { return impl_->wait(); }
bool Checkpointer::save_in_flight() const { return impl_->in_flight(); }
int64_t Checkpointer::last_committed_step() const { return impl_->last_committed(); }

}  // namespace titan::checkpoint
