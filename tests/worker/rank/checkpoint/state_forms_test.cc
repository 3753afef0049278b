// Tests optimizer states that are stored in fewer bits than their numbers have, through a checkpoint: any format into
// any other, on any mesh.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/plan/memory/state_blocks.h"
#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/optim/optimizer.h"

namespace titan::checkpoint::testing {
namespace {

namespace fs = std::filesystem;
namespace event = rank_protocol::event;

// A rank's share of the small model, trained by Adam.
class Shard {
 public:
  Shard(const std::string& state_dtype, Split split, int rank, int world) : split_(split), rank_(rank), world_(world) {
    for (const Parameter& parameter : small_model()) {
      const Share share = share_of(parameter.shape, split, rank, world);
      const at::Tensor value = cut(full_tensor(parameter.fqn, parameter.shape, 1), share) * 1e-3;
      slots_.push_back({parameter.fqn, value, at::zeros_like(value), 0, parameter.shape, share.offset});
    }
    optimizer_ = optim::make_optimizer({.state_dtype = state_dtype}, slots_);
  }

  // Gradients that depend only on the step and the element's index.
  void step(int64_t number) {
    for (const optim::Slot& slot : slots_) {
      const at::Tensor whole = full_tensor(slot.fqn, slot.shape, number).mul_(0.37F).sin_();
      slot.grad.copy_(cut(whole, share_of(slot.shape, split_, rank_, world_)));
    }
    optimizer_->step(1e-2);
  }

  std::vector<Slice> slices() {
    std::vector<Slice> all;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const optim::Slot& slot = slots_[i];
      const Share share = share_of(slot.shape, split_, rank_, world_);
      all.push_back({"model." + slot.fqn, slot.shape, share.offset, slot.value, share.primary});
      for (const optim::SlotState::Named& state : optimizer_->states()[i].tensors) {
        all.push_back({"optim." + state.name + "." + slot.fqn, slot.shape, share.offset, state.value, share.primary});
        if (state.form == nullptr) continue;
        all.back().form =
            std::make_shared<StateEncoding>(StateEncoding{state.form->shape, state.form->numbers, state.form->kept});
      }
    }
    all.push_back({"optim.step", {}, {}, optimizer_->step_count(), rank_ == 0});
    return all;
  }

  at::Tensor numbers(size_t i, size_t which) const {
    const optim::SlotState::Named& state = optimizer_->states()[i].tensors[which];
    return state.form == nullptr ? state.value.to(at::kFloat) : state.form->numbers(state.value);
  }
  const std::vector<optim::Slot>& slots() const { return slots_; }

  static at::Tensor cut(at::Tensor whole, const Share& share) {
    for (size_t d = 0; d < share.size.size(); ++d)
      whole = whole.narrow(static_cast<int64_t>(d), share.offset[d], share.size[d]);
    return whole.contiguous();
  }

 private:
  Split split_;
  int rank_, world_;
  std::vector<optim::Slot> slots_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

class StateFormTest : public ::testing::Test {
 protected:
  StateFormTest() : dump_(::testing::TempDir() + "/kept_forms." + std::to_string(::getpid())) { fs::remove_all(dump_); }
  ~StateFormTest() override { fs::remove_all(dump_); }

  Attempt::Options options(int world, int attempt, const std::string& async_mode = "disabled") {
    Attempt::Options made{.dump = dump_, .world = world, .attempt = attempt};
    made.config.async_mode = async_mode;
    made.config.keep_latest_k = 0;
    return made;
  }

  const int64_t rows_before_ = output_rows;
  std::string dump_;
};

struct Mesh {
  int world;
  Split split;
};

// The loaded state must equal the saved one as closely as the new format allows; in the same format exactly, and
// training continues as if it had not been interrupted.
void expect_resumes(Shard& part, const Shard& whole, const std::string& from, const std::string& to, const Mesh& mesh,
                    int rank) {
  for (size_t i = 0; i < part.slots().size(); ++i) {
    const optim::Slot& slot = part.slots()[i];
    const Share share = share_of(slot.shape, mesh.split, rank, mesh.world);
    EXPECT_TRUE(slot.value.equal(Shard::cut(whole.slots()[i].value, share)));
    for (const size_t which : {0, 1}) {
      const at::Tensor saved = Shard::cut(whole.numbers(i, which), share), read = part.numbers(i, which);
      if (from == to || to == "float32") {
        EXPECT_TRUE(read.equal(saved)) << from << " to " << to << ": " << slot.fqn;
        continue;
      }
      const bool coded = to == "8bit" && memory::has_8bit_states(slot.shape);
      const at::Tensor largest = saved.numel() == 0 ? at::zeros({}) : saved.abs().max();
      const at::Tensor bound = coded ? largest * 0.0071 : saved.abs() * (to == "bfloat16" ? 0x1p-8 : 0);
      EXPECT_TRUE((read - saved).abs().le(bound + 1e-30).all().item<bool>()) << from << " to " << to;
    }
  }
}

TEST_F(StateFormTest, ResumesAcrossStateDtypesAndMeshes) {
  const Mesh meshes[] = {{1, Split::kRows}, {3, Split::kRows}, {2, Split::kColumns}};
  const char* types[] = {"float32", "bfloat16", "8bit"};
  int attempt = 0;
  for (const char* from : types) {
    fs::remove_all(dump_);
    Shard whole(from, Split::kRows, 0, 1), later(from, Split::kRows, 0, 1);
    for (const int64_t step : {1, 2}) {
      whole.step(step);
      later.step(step);
    }
    later.step(3);
    // Two ranks save while they continue to train.
    {
      Attempt writer(options(2, ++attempt, "async"));
      const absl::Status saved = writer.run([&](int rank, Checkpointer& checkpointer) {
        Shard part(from, Split::kRows, rank, 2);
        for (const int64_t step : {1, 2}) part.step(step);
        const absl::Status status = checkpointer.save(2, part.slices(), {.shared = {{"step", 2}}});
        part.step(9);
        return status.ok() ? checkpointer.wait() : status;
      });
      ASSERT_TRUE(saved.ok()) << saved;
    }
    for (const char* to : types) {
      for (const Mesh& mesh : meshes) {
        SCOPED_TRACE(std::string(from) + " to " + to + " on " + std::to_string(mesh.world));
        Attempt reader(options(mesh.world, ++attempt));
        const absl::Status status = reader.run([&](int rank, Checkpointer& checkpointer) {
          Shard part(to, mesh.split, rank, mesh.world);
          std::vector<Slice> slices = part.slices();
          const auto loaded = checkpointer.load(slices);
          if (!loaded.ok()) return loaded.status();
          expect_resumes(part, whole, from, to, mesh, rank);
          part.step(3);
          // With another split, LibTorch's fused step differs in the last digits, so a code may differ.
          const bool alone = mesh.world == 1;
          for (size_t i = 0; std::string(from) == to && i < part.slots().size(); ++i) {
            const Share share = share_of(part.slots()[i].shape, mesh.split, rank, mesh.world);
            const at::Tensor want = Shard::cut(later.slots()[i].value, share), found = part.slots()[i].value;
            EXPECT_TRUE(alone ? found.equal(want) : found.allclose(want, 1e-5, 1e-5)) << part.slots()[i].fqn;
            for (const size_t which : {0, 1}) {
              EXPECT_TRUE(!alone || part.numbers(i, which).equal(Shard::cut(later.numbers(i, which), share)));
            }
          }
          return absl::OkStatus();
        });
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

// A damaged or short state, or one of another shape, is refused like any tensor.
TEST_F(StateFormTest, RejectsDamagedStates) {
  const auto save = [&](Shard& part, Attempt& attempt, int64_t step) {
    return attempt.rank(0).save(step, part.slices(), {.shared = {{"step", step}}});
  };
  Shard part("8bit", Split::kRows, 0, 1);
  at::Tensor first;
  {
    Attempt writer(options(1, 1));
    part.step(1);
    first = part.numbers(4, 1).clone();
    ASSERT_TRUE(save(part, writer, 1).ok());
    part.step(2);
    ASSERT_TRUE(save(part, writer, 2).ok());
  }
  const fs::path shard = fs::path(dump_) / "checkpoint/step-2/a1-00000.safetensors";
  std::string bytes = *storage::read_file(storage::posix_files(), shard.string());
  const std::string damaged[] = {bytes.substr(0, bytes.size() - 100), [&] {
                                   std::string flipped = bytes;
                                   flipped[flipped.size() - 1000] ^= 4;
                                   return flipped;
                                 }()};
  int attempt = 1;
  for (const std::string& one : damaged) {
    std::ofstream(shard, std::ios::binary | std::ios::trunc) << one;
    Attempt reader(options(1, ++attempt));
    Shard fresh("8bit", Split::kRows, 0, 1);
    std::vector<Slice> slices = fresh.slices();
    const auto loaded = reader.rank(0).load(slices);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->step, 1);
    EXPECT_EQ(reader.events(event::kRejected).size(), 1u);
    EXPECT_TRUE(fresh.numbers(4, 1).equal(first));
  }
  std::ofstream(shard, std::ios::binary | std::ios::trunc) << bytes;
  Attempt reader(options(1, ++attempt));
  Shard other("8bit", Split::kRows, 0, 1);
  std::vector<Slice> slices = other.slices();
  slices.back().shape = {3};
  for (Slice& slice : slices) {
    if (slice.form != nullptr) slice.shape[0] += 1;
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(reader.rank(0).load(slices).status()));
}

}  // namespace
}  // namespace titan::checkpoint::testing
