// Tests which error a collective throws: PeerLost if another rank has ended, the unchanged error in every other case.
#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <new>
#include <set>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/comm/fake_backend.h"
#include "worker/rank/comm/local_group.h"

namespace titan::comm {
namespace {

using mesh::Axis;

constexpr size_t kTooMuch = size_t{1} << 60;

class ThrowingBackend : public c10d::Backend {
 public:
  explicit ThrowingBackend(std::function<void()> error) : c10d::Backend(0, 2), error_(std::move(error)) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    error_();
    return {};
  }

 private:
  const std::function<void()> error_;
};

// Runs an all-reduce among ranks 4 and 7 with a backend that throws.
void all_reduce_that(std::function<void()> throws) {
  const Group group("fsdp", {4, 7}, 0, c10::make_intrusive<ThrowingBackend>(std::move(throws)));
  group.all_reduce(at::ones({2}));
}

TEST(ErrorKindsTest, LostConnectionsArePeerLostAndNameTheRanks) {
  const std::function<void()> all[] = {
      [] { C10_THROW_ERROR(DistBackendError, "broken"); },
      [] { C10_THROW_ERROR(DistNetworkError, "broken"); },
      [] { C10_THROW_ERROR(DistStoreError, "broken"); },
  };
  for (const auto& error : all) {
    try {
      all_reduce_that(error);
      FAIL();
    } catch (const PeerLost& lost) {
      EXPECT_STREQ(lost.what(), "fsdp all_reduce among ranks 4, 7: broken");
    }
  }
}

TEST(ErrorKindsTest, OtherErrorsKeepTheirType) {
  EXPECT_THROW(all_reduce_that([] { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_THROW(all_reduce_that([] { C10_THROW_ERROR(OutOfMemoryError, "no memory"); }), c10::OutOfMemoryError);
  EXPECT_THROW(all_reduce_that([] { TORCH_CHECK_VALUE(false, "a shape"); }), c10::ValueError);
  try {
    all_reduce_that([] { c10::free_cpu(c10::alloc_cpu(kTooMuch)); });
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(describe(error).find("can't allocate memory"), std::string::npos) << describe(error);
    EXPECT_NE(describe(error).find("in fsdp all_reduce among ranks 4, 7"), std::string::npos) << describe(error);
  }
  try {
    all_reduce_that([] { throw std::runtime_error("a bug"); });
    FAIL();
  } catch (const PeerLost&) {
    FAIL() << "a bug must not count as a lost peer";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a bug");
  }
}

// Expects that `call` throws LibTorch's own error and not PeerLost (which is not a c10::Error).
void expect_own_error(const std::function<void()>& call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(describe(error).find(words), std::string::npos) << describe(error);
  }
}

class TransportErrorTest : public ::testing::TestWithParam<testing::Via> {};
INSTANTIATE_TEST_SUITE_P(Transports, TransportErrorTest,
                         ::testing::Values(testing::Via::kMemory, testing::Via::kGloo, testing::Via::kSharedMemory),
                         [](const auto& info) { return testing::name_of(info.param); });

// A wrong call is this rank's own error, at once. The other rank, which made no call, only notices that this one has
// ended.
TEST_P(TransportErrorTest, AWrongShapeIsTheCallersOwnError) {
  testing::run_ranks(
      {}, 2, {Axis::kFsdp},
      [](testing::ThreadRank& self) {
        const Group& group = self.mesh->group(Axis::kFsdp);
        at::Tensor rows = at::ones({3, 2});
        if (self.rank == 1) {
          expect_own_error(
              [&] {
                group.all_to_all(at::empty({3, 2}), rows, {1, 1}, {2, 1}).wait();
              },
              "in fsdp all_to_all among ranks 0, 1");
          return;
        }
        EXPECT_THROW(group.all_to_all(at::empty({3, 2}), rows, {2, 1}, {2, 1}).wait(), PeerLost);
      },
      GetParam());
}

TEST_P(TransportErrorTest, AMessageThatIsNotContiguousIsTheCallersOwnError) {
  testing::run_ranks(
      {}, 2, {Axis::kFsdp},
      [](testing::ThreadRank& self) {
        const Group& group = self.mesh->group(Axis::kFsdp);
        at::Tensor rows = at::ones({3, 2});
        if (self.rank == 1) return expect_own_error([&] { group.send(rows.t(), 0).wait(); }, "contiguous");
        EXPECT_THROW(group.recv(rows, 1).wait(), PeerLost);
      },
      GetParam());
}

// LibTorch's allocator for the CPU, which fails for threads that set `exhausted`.
class ScarceMemory : public c10::Allocator {
 public:
  explicit ScarceMemory(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override { return inner_.allocate(exhausted ? kTooMuch : bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  static thread_local bool exhausted;

 private:
  c10::Allocator& inner_;
};
thread_local bool ScarceMemory::exhausted = false;

// A reduce-scatter over sockets allocates memory for the other ranks' pieces. If there is none left, the error is the
// rank's own.
TEST(ErrorKindsTest, NoMemoryInsideACollectiveOverSockets) {
  c10::Allocator* const usual = c10::GetAllocator(at::kCPU);
  ScarceMemory scarce(*usual);
  c10::SetAllocator(at::kCPU, &scarce, /*priority=*/100);
  testing::run_ranks(
      {}, 2, {Axis::kFsdp},
      [](testing::ThreadRank& self) {
        const Group& group = self.mesh->group(Axis::kFsdp);
        at::Tensor piece = at::empty({2}), whole = at::ones({4});
        if (self.rank == 1) {
          ScarceMemory::exhausted = true;
          expect_own_error([&] { group.reduce_scatter(piece, whole).wait(); }, "can't allocate memory");
          ScarceMemory::exhausted = false;
          return;
        }
        EXPECT_THROW(group.reduce_scatter(piece, whole).wait(), PeerLost);
      },
      testing::Via::kGloo);
  c10::SetAllocator(at::kCPU, usual, /*priority=*/100);
}

// Between threads the last rank to arrive does the work for all. If it fails, the error is its own, and PeerLost for
// the others.
TEST(ErrorKindsTest, NoMemoryInsideACollectiveBetweenThreads) {
  LocalGroup group(2);
  const auto nothing = [](std::vector<LocalPart>&) {};
  const auto first = group.collective(0, "sum", {}, [](auto&) { c10::free_cpu(c10::alloc_cpu(kTooMuch)); });
  expect_own_error([&] { group.collective(1, "sum", {}, nothing); }, "can't allocate memory");
  try {
    group.wait(*first, std::chrono::milliseconds(10));
    FAIL();
  } catch (const c10::DistBackendError& gone) {
    EXPECT_NE(describe(gone).find("rank 1 of the group has failed"), std::string::npos) << describe(gone);
  }
}

// A rank that died after it joined leaves an address in the store at which nothing listens.
TEST(ErrorKindsTest, APeerThatDiesWhileGroupsAreMadeIsLost) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // Like run_ranks().
  const mesh::Mesh mesh = mesh::Mesh::create({}, 2).value();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto device = make_cpu_device();
  Ledger ledger;
  const auto join = [&](int rank, std::chrono::milliseconds timeout) {
    return std::make_unique<DeviceMesh>(mesh, std::set{Axis::kFsdp}, *device, ledger,
                                        DeviceMeshOptions{.rank = rank, .store = store, .timeout = timeout});
  };
  {
    std::unique_ptr<DeviceMesh> theirs;
    std::thread peer([&] { theirs = join(1, std::chrono::seconds(30)); });
    const auto ours = join(0, std::chrono::seconds(30));
    peer.join();  // Neither leaves before both have joined.
  }
  try {
    join(0, std::chrono::milliseconds(500));
    FAIL() << "rank 1 is gone";
  } catch (const PeerLost& lost) {
    EXPECT_NE(std::string(lost.what()).find("connectFullMesh failed"), std::string::npos) << lost.what();
  }
}

// A device without peers. The aborts of its groups wait for each other and then throw.
class MeetingDevice : public device::Device {
 public:
  explicit MeetingDevice(std::latch& aborts) : aborts_(aborts) {}

  at::Device torch_device() const override { return fake_->torch_device(); }
  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return c10::make_intrusive<MeetingBackend>(options, aborts_);
  }
  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override { fake_->resize_storage(storage, bytes); }
  int64_t peak_memory_bytes() const override { return 0; }
  int64_t total_memory_bytes() const override { return 0; }

 private:
  class MeetingBackend : public c10d::Backend {
   public:
    MeetingBackend(const device::BackendOptions& options, std::latch& aborts)
        : c10d::Backend(options.rank, options.size), aborts_(aborts) {}
    void abort() override {
      aborts_.arrive_and_wait();
      throw std::runtime_error("no abort");
    }

   private:
    std::latch& aborts_;
  };

  const std::unique_ptr<device::Device> fake_ = make_fake_device();
  std::latch& aborts_;
};

TEST(ErrorKindsTest, GroupsAreAbortedAtTheSameTime) {
  std::latch aborts(2);
  MeetingDevice device(aborts);
  Ledger ledger;
  const mesh::Mesh mesh = mesh::Mesh::create({.tp = 2}, 4).value();
  const DeviceMesh groups(mesh, {Axis::kFsdp, Axis::kTensor}, device, ledger,
                          {.rank = 0, .store = c10::make_intrusive<c10d::HashStore>()});
  groups.abort();
  EXPECT_TRUE(aborts.try_wait());
}

TEST(ErrorKindsTest, FakeGroupChecksShapesAndCanBeAborted) {
  const auto device = make_fake_device();
  const Group group("tp", {0, 1}, 0, device->make_backend({.rank = 0, .size = 2}));
  expect_own_error([&] { group.all_gather(at::empty({4}, at::kFloat), at::empty({2}, at::kDouble)); },
                   "in tp all_gather among ranks 0, 1");
  group.abort();
}

}  // namespace
}  // namespace titan::comm
