#pragma once

// Ranks as threads over one HashStore, with a small model: each element's value follows from (key, index, step), so
// that a test can check what a load returned.

#include <ATen/ATen.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "common/io/storage/fence.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"

namespace titan::checkpoint::testing {

struct Parameter {
  std::string fqn;
  std::vector<int64_t> shape;
};

// Rows of the largest tensor: three chunks of a mebibyte. Tests that fork set it low, so that ATen starts no OpenMP
// team.
inline int64_t output_rows = 650;

// Has uneven rows, a tensor with fewer rows than ranks, one with one dim, and one of more than two chunks.
inline std::vector<Parameter> small_model() {
  return {{"tok_embeddings.weight", {37, 16}},
          {"layers.0.attention.wq.weight", {16, 16}},
          {"layers.0.attention_norm.weight", {16}},
          {"layers.1.attention.wq.weight", {3, 8}},
          {"output.weight", {output_rows, 1024}}};
}

enum class Split {
  kReplicated,  // DDP: every rank holds all; rank 0 writes.
  kRows,        // FSDP: chunks of ceil(rows / world), as torch splits them; the last ranks may have none.
  kHybrid,      // HSDP: two replicas, each split over half of the ranks.
  kColumns,     // The split of a row-wise weight by tensor parallelism; one-dimensional ones are split by rows.
};

inline at::Tensor full_tensor(const std::string& key, const std::vector<int64_t>& shape, int64_t step,
                              at::ScalarType dtype = at::kFloat) {
  at::Tensor full = at::empty(shape, at::kFloat);
  const float base =
      static_cast<float>(std::hash<std::string>{}(key) % 1000) * 0.001f + static_cast<float>(step) * 0.5f;
  for (int64_t i = 0; i < full.numel(); ++i) full.data_ptr<float>()[i] = base + static_cast<float>(i % 9973);
  return full.to(dtype);
}

// This rank's box of a tensor, and whether the rank writes it.
struct Share {
  std::vector<int64_t> offset, size;
  bool primary = true;
};
inline Share share_of(const std::vector<int64_t>& shape, Split split, int rank, int world) {
  Share share{std::vector<int64_t>(shape.size(), 0), shape, true};
  if (shape.empty() || split == Split::kReplicated) {
    share.primary = rank == 0;
    return share;
  }
  int parts = world, part = rank;
  if (split == Split::kHybrid) {
    parts = world / 2;
    part = rank % parts;
    share.primary = rank < parts;
  }
  const size_t dim = split == Split::kColumns && shape.size() > 1 ? 1 : 0;
  const int64_t chunk = (shape[dim] + parts - 1) / parts;
  share.offset[dim] = std::min(shape[dim], chunk * part);
  share.size[dim] = std::min(shape[dim] - share.offset[dim], chunk);
  return share;
}

// Returns the live state of one rank; step -1 fills it with a value that no step has.
inline std::vector<Slice> make_slices(Split split, int rank, int world, int64_t step) {
  std::vector<Slice> slices;
  const auto add = [&](const std::string& key, const std::vector<int64_t>& shape) {
    const Share share = share_of(shape, split, rank, world);
    at::Tensor local = step < 0 ? at::full(shape, -77.0f) : full_tensor(key, shape, step);
    for (size_t d = 0; d < shape.size(); ++d)
      local = local.narrow(static_cast<int64_t>(d), share.offset[d], share.size[d]);
    slices.push_back({key, shape, share.offset, local.clone(at::MemoryFormat::Contiguous), share.primary});
  };
  for (const Parameter& parameter : small_model()) add("model." + parameter.fqn, parameter.shape);
  for (const Parameter& parameter : small_model()) add("optim.exp_avg." + parameter.fqn, parameter.shape);
  add("optim.step", {});
  return slices;
}

// Returns "" if the slices hold exactly the values of `step`, otherwise what differs.
inline std::string difference(const std::vector<Slice>& slices, Split split, int rank, int world, int64_t step,
                              bool model_only = false) {
  const std::vector<Slice> expected = make_slices(split, rank, world, step);
  for (size_t i = 0; i < slices.size(); ++i) {
    const bool model = slices[i].key.rfind("model.", 0) == 0;
    const at::Tensor want = model_only && !model ? at::full_like(slices[i].local, -77.0f) : expected[i].local;
    if (!at::equal(slices[i].local, want)) return slices[i].key + " on rank " + std::to_string(rank);
  }
  return "";
}

struct Event {
  std::string kind;
  nlohmann::json members;
};

// Disables retries of failed saves; a test that needs them sets the key itself.
inline config::CheckpointSection without_retries() {
  config::CheckpointSection config;
  config.last_save_retry_seconds = 0;
  return config;
}

// One attempt of a job: a store, and the ranks' checkpointers. `run` calls a function on every rank, each on a separate
// thread.
class Attempt {
 public:
  struct Options {
    std::string dump;
    int world = 1;
    Split split = Split::kRows;
    std::string job_uid = "job";
    int attempt = 1;
    config::CheckpointSection config = without_retries();
    storage::Files* files = nullptr;
    std::function<CopyStream*(int rank)> copies;
    std::function<storage::Files*(int rank)> rank_files;
    const HfMapper* hf = nullptr;
    std::optional<models::ModelSpec> model;
    std::string hf_assets_path;
    int64_t failed_saves_allowed = 0;
    absl::Duration retry_pause = absl::Milliseconds(1);
    std::function<std::optional<absl::Duration>()> time_left_after_stop;
    absl::Duration peer_silence = absl::Seconds(15);
    int fan_out = kFanOut;
    bool raise_fence = true;
    int64_t committed_step = -1;
    bool committed_by_another_job = false;
  };

  explicit Attempt(Options options) : options_(std::move(options)), store_(c10::make_intrusive<c10d::HashStore>()) {
    options_.config.enable = true;
    if (options_.raise_fence) {
      raised_ = storage::Fence(options_.dump).raise(options_.job_uid, options_.attempt);
    }
    for (int rank = 0; rank < options_.world; ++rank) {
      Setup setup{.dump_folder = options_.dump, .config = options_.config, .hf_assets_path = options_.hf_assets_path};
      setup.rank = rank;
      setup.world = options_.world;
      setup.job_uid = options_.job_uid;
      setup.attempt = options_.attempt;
      setup.committed_step = options_.committed_step;
      setup.committed_by_another_job = options_.committed_by_another_job;
      setup.store = store_;
      setup.hf = options_.hf;
      setup.model = options_.model;
      setup.job_config = {{"training", {{"seq_len", 64}}}};
      setup.files = options_.rank_files ? options_.rank_files(rank) : options_.files;
      if (options_.copies) setup.copies = options_.copies(rank);
      setup.failed_saves_allowed = options_.failed_saves_allowed;
      setup.retry_pause = options_.retry_pause;
      setup.time_left_after_stop = options_.time_left_after_stop;
      setup.still_trying = [this] { ++tries_; };
      setup.peer_timeout = absl::Seconds(20);
      setup.peer_silence = options_.peer_silence;
      setup.fan_out = options_.fan_out;
      setup.events = [this](const char* kind, nlohmann::json members) {
        std::lock_guard lock(mutex_);
        events_.push_back({kind, std::move(members)});
      };
      auto made = Checkpointer::create(std::move(setup));
      if (!made.ok()) throw std::runtime_error(std::string(made.status().message()));
      ranks_.push_back(*std::move(made));
    }
  }

  // All calls must return the same status on every rank; a mismatch becomes an Internal error.
  absl::Status run(const std::function<absl::Status(int rank, Checkpointer&)>& body) {
    std::vector<absl::Status> statuses(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = body(static_cast<int>(rank), *ranks_[rank]); });
    }
    statuses[0] = body(0, *ranks_[0]);
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) {
      if (status.code() != statuses[0].code()) {
        return absl::InternalError("ranks differ: " + statuses[0].ToString() + " and " + status.ToString());
      }
    }
    return statuses[0];
  }

  absl::Status save(int64_t step, CheckpointKind kind = CheckpointKind::kFull) {
    return run([&](int rank, Checkpointer& checkpointer) {
      TrainState state{.shared = {{"step", step},
                                  {"ntokens_seen", step * 100},
                                  {"lr_scheduler", {{"last_epoch", step}}},
                                  {"dataloader", {{"row", step}}}},
                       .per_rank = {{"rank", rank}}};
      return checkpointer.save(step, make_slices(options_.split, rank, options_.world, step), std::move(state), kind);
    });
  }

  absl::Status save_last(int64_t step) {
    return run([&](int rank, Checkpointer& checkpointer) {
      return checkpointer.save_last(step, make_slices(options_.split, rank, options_.world, step),
                                    {.shared = {{"step", step}}});
    });
  }

  absl::Status wait() {
    return run([](int, Checkpointer& checkpointer) { return checkpointer.wait(); });
  }

  // Loads into new slices and compares them with the step that the result names; `values_of` replaces that step for
  // initial weights.
  absl::StatusOr<LoadResult> load(int64_t values_of = -2) {
    LoadResult result;
    const absl::Status status = run([&](int rank, Checkpointer& checkpointer) -> absl::Status {
      std::vector<Slice> slices = make_slices(options_.split, rank, options_.world, -1);
      auto loaded = checkpointer.load(slices);
      const int64_t step = !loaded.ok()                       ? -1
                           : values_of != -2                  ? values_of
                           : loaded->source == Source::kFresh ? -1
                                                              : loaded->step;
      const bool model_only = loaded.ok() && loaded->model_only;
      // After a failed load, some tensors of the step may already have been filled.
      const bool known = loaded.ok() || absl::IsFailedPrecondition(loaded.status());
      if (known && (step >= 0 || !loaded.ok() || loaded->source == Source::kFresh)) {
        const std::string differs =
            step < 0 ? untouched(slices) : difference(slices, options_.split, rank, options_.world, step, model_only);
        if (!differs.empty()) return absl::InternalError("wrong values in " + differs);
      }
      if (!loaded.ok()) return loaded.status();
      if (rank == 0) result = *std::move(loaded);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return result;
  }

  static std::string untouched(const std::vector<Slice>& slices) {
    for (const Slice& slice : slices) {
      if (!at::equal(slice.local, at::full_like(slice.local, -77.0f))) return slice.key + " (should be untouched)";
    }
    return "";
  }

  std::vector<Event> events(const std::string& kind) {
    std::lock_guard lock(mutex_);
    std::vector<Event> found;
    for (const Event& event : events_) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }

  Checkpointer& rank(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void end(int rank) { ranks_[static_cast<size_t>(rank)].reset(); }
  const absl::Status& raised() const { return raised_; }
  int tries() const { return tries_; }  // Waits between two tries, counted over all ranks.
  int64_t store_keys() { return store_->getNumKeys(); }

 private:
  Options options_;
  c10::intrusive_ptr<c10d::HashStore> store_;
  absl::Status raised_;
  std::mutex mutex_;
  std::atomic<int> tries_{0};
  std::vector<Event> events_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
};

}  // namespace titan::checkpoint::testing
