// Tests the CUDA device itself, and single kernels on it against float64 on the CPU.

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/worker/rank/runtime/gpu_world.h"
#include "worker/rank/checkpoint/shards/copy_stream.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/init.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/rope.h"
#include "worker/rank/runtime/engine/device_draw.h"

namespace titan::runtime {
namespace {

using testing::GpuTest;
using testing::relative_error;

class GpuDeviceTest : public GpuTest {};

// Initial weights drawn on the device have the CPU's bits: whole tensors and boxes of them, of every number of
// dimensions, truncated and plain normals, and more elements than the kernel's grid draws at once.
TEST_F(GpuDeviceTest, DrawsTheSameWeights) {
  TITAN_SKIP_IN_REHEARSAL();
  struct Box {
    std::vector<int64_t> shape, offset, size;
  };
  const Box boxes[] = {{{96, 50}, {17, 8}, {40, 21}},
                       {{96, 50}, {0, 0}, {96, 50}},
                       {{1000}, {3}, {990}},
                       {{7, 33, 20}, {2, 5, 0}, {4, 28, 20}},
                       {{3, 4, 5, 6}, {1, 0, 2, 0}, {2, 4, 3, 6}},
                       {{5000, 4096}, {0, 0}, {5000, 4096}}};
  for (const bool cut : {true, false}) {
    for (const Box& one : boxes) {
      nn::Init init{nn::Init::Kind::kNormal, 0.02};
      if (cut) init = {nn::Init::Kind::kTruncatedNormal, 0.02, -0.06, 0.06};
      nn::Parameter parameter{"layers.0.attention.wq.weight", one.shape, init};
      at::Tensor expected = at::empty(one.size);
      nn::fill_box(parameter, 11, one.offset, expected);
      at::Tensor drawn = at::empty(one.size, on_device());
      ASSERT_TRUE(device_->draw(normal_box(parameter, 11, one.offset, one.size), drawn));
      const at::Tensor got = drawn.cpu();
      EXPECT_TRUE(got.equal(expected)) << at::IntArrayRef(one.size) << ", cut " << cut << ": "
                                       << got.ne(expected).sum().item<int64_t>() << " differ, at most by "
                                       << (got - expected).abs().max().item<float>();
    }
  }
}

// Freed storage can serve other tensors, and can be allocated again.
TEST_F(GpuDeviceTest, StorageIsFreedAndFilledAgain) {
  TITAN_SKIP_IN_REHEARSAL();
  constexpr int64_t kBytes = int64_t{64} << 20;
  at::Tensor tensor = at::ones({kBytes / 4}, on_device());
  device_->synchronize();
  device_->reset_peak_memory();
  const int64_t with = device_->memory().peak_active;
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  device_->resize_storage(storage, 0);
  device_->reset_peak_memory();
  EXPECT_LE(device_->memory().peak_active, with - kBytes);
  device_->resize_storage(storage, kBytes);
  tensor.fill_(3);
  EXPECT_EQ(tensor.mean().item<float>(), 3.0F);
}

// The host need not wait before memory is freed: the next owner's work runs later on the same stream.
TEST_F(GpuDeviceTest, FreedMemoryIsReusedInOrder) {
  constexpr int64_t kSide = 1024;
  const at::Tensor ones = at::ones({kSide, kSide}, on_device());
  at::Tensor total = at::zeros({}, on_device(at::kDouble));
  at::Tensor weight = at::empty({kSide, kSide}, on_device());
  auto& storage = *weight.storage().unsafeGetStorageImpl();
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    device_->resize_storage(storage, kSide * kSide * 4);
    weight.fill_(round);
    total += at::mm(ones, weight).to(at::kDouble).mean();
    device_->resize_storage(storage, 0);
    at::full({kSide, kSide}, -1.0, on_device());  // This tensor may get that memory.
  }
  EXPECT_DOUBLE_EQ(total.item<double>(), static_cast<double>(kSide) * kRounds * (kRounds - 1) / 2);
}

TEST_F(GpuDeviceTest, ReportsItsMemory) {
  TITAN_SKIP_IN_REHEARSAL();
  const device::DeviceMemory before = device_->memory();
  EXPECT_GE(before.peak_reserved, before.peak_active);
  EXPECT_GE(before.allocation_retries, 0);
  EXPECT_GE(before.out_of_memory, 0);
  EXPECT_GT(device_->total_memory_bytes(), int64_t{1} << 30);
  EXPECT_NE(device_->name(), "cpu");
  const at::Tensor block = at::empty({int64_t{256} << 20}, on_device(at::kByte));
  EXPECT_GE(device_->memory().peak_active, int64_t{256} << 20);
}

// A request that does not fit throws LibTorch's own error, which the rank reports as OUT_OF_MEMORY. The device stays
// usable.
TEST_F(GpuDeviceTest, TooLargeARequestFails) {
  TITAN_SKIP_IN_REHEARSAL();
  EXPECT_THROW(at::empty({int64_t{1} << 45}, on_device(at::kByte)), c10::OutOfMemoryError);
  EXPECT_EQ(at::ones({8}, on_device()).sum().item<float>(), 8.0F);
}

TEST_F(GpuDeviceTest, SeedsItsOwnNumbers) {
  TITAN_SKIP_IN_REHEARSAL();
  device_->seed(5);
  const at::Tensor one = at::randn({100}, on_device());
  const at::Tensor other = at::randn({100}, on_device());
  device_->seed(5);
  EXPECT_TRUE(at::randn({100}, on_device()).equal(one));
  EXPECT_FALSE(other.equal(one));
}

TEST_F(GpuDeviceTest, MissingDeviceIsReported) {
  TITAN_SKIP_IN_REHEARSAL();
  const auto device = comm::make_device("cuda", 100);
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.status().message().find("CUDA device 100"), std::string::npos) << device.status();
}

// A group of one rank uses NCCL, too. (NCCL refuses two ranks on one device, and a message to itself would block, so
// messages need two devices.)
TEST_F(GpuDeviceTest, NcclOfOneRank) {
  TITAN_SKIP_IN_REHEARSAL();
  auto backend = device_->make_backend({.store = c10::make_intrusive<c10d::HashStore>(), .rank = 0, .size = 1});
  backend->setTimeout(std::chrono::seconds(60));
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    at::Tensor values = at::arange(6, on_device(type));
    std::vector<at::Tensor> summed{values.clone()}, sent{values.clone()};
    backend->allreduce(summed, {})->wait();
    backend->broadcast(sent, {})->wait();
    at::Tensor gathered = at::empty_like(values), scattered = at::empty_like(values), moved = at::empty_like(values);
    at::Tensor even = at::empty_like(values);
    backend->_allgather_base(gathered, values, {})->wait();
    backend->_reduce_scatter_base(scattered, values, {})->wait();
    std::vector<int64_t> splits{6}, none;
    backend->alltoall_base(moved, values, splits, splits, {})->wait();
    backend->alltoall_base(even, values, none, none, {})->wait();
    for (const at::Tensor& one : {summed[0], sent[0], gathered, scattered, moved, even}) {
      EXPECT_TRUE(one.equal(values)) << type;
    }
  }
  at::Tensor nothing = at::empty({0, 4}, on_device()), neither = at::empty({0, 4}, on_device());
  std::vector<int64_t> no_rows{0};
  backend->alltoall_base(neither, nothing, no_rows, no_rows, {})->wait();
  backend->barrier({})->wait();
}

// NCCL's stream and the compute stream keep their order without the host's help, if inputs are still being computed,
// results are used at once, and memory is freed right after wait().
TEST_F(GpuDeviceTest, NcclKeepsItsOrder) {
  TITAN_SKIP_IN_REHEARSAL();
  auto backend = device_->make_backend({.store = c10::make_intrusive<c10d::HashStore>(), .rank = 0, .size = 1});
  constexpr int64_t kSide = 2048;
  const at::Tensor ones = at::ones({kSide, kSide}, on_device());
  at::Tensor weight = at::empty({kSide, kSide}, on_device());
  auto& storage = *weight.storage().unsafeGetStorageImpl();
  at::Tensor total = at::zeros({}, on_device(at::kDouble));
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    device_->resize_storage(storage, kSide * kSide * 4);
    c10::intrusive_ptr<c10d::Work> work;
    {
      at::Tensor shard = at::mm(ones, at::full({kSide, kSide}, round, on_device()));  // Freed before it is sent.
      work = backend->_allgather_base(weight, shard, {});
    }
    at::full({kSide, kSide}, -1.0, on_device());
    work->wait();
    total += weight.to(at::kDouble).mean();
    device_->resize_storage(storage, 0);
  }
  EXPECT_DOUBLE_EQ(total.item<double>(), static_cast<double>(kSide) * kRounds * (kRounds - 1) / 2);
}

// The allocator's segments grow, as in a rank, and freed memory of one size serves another.
TEST_F(GpuDeviceTest, SegmentsGrow) {
  TITAN_SKIP_IN_REHEARSAL();
  at::empty({int64_t{64} << 20}, on_device(at::kByte));
  const at::Tensor other = at::empty({int64_t{48} << 20}, on_device(at::kByte));
  const device::MemorySnapshot snapshot = device_->memory_snapshot();
  EXPECT_TRUE(snapshot.expandable_segments);
  const auto address = reinterpret_cast<uint64_t>(other.data_ptr());
  for (const device::MemorySegment& segment : snapshot.segments) {
    const bool holds = address >= segment.address && address < segment.address + static_cast<uint64_t>(segment.bytes);
    EXPECT_TRUE(segment.expandable || !holds);
  }
  const std::vector<std::string> addresses = comm::cuda_addresses();
  ASSERT_FALSE(addresses.empty());
  EXPECT_EQ(std::count(addresses[0].begin(), addresses[0].end(), ':'), 2) << addresses[0];
}

// Groups split from the world's communicator work like others. Only one rank is tested: splits of two ranks, and ranks
// without a group in a split, need two devices.
TEST_F(GpuDeviceTest, GroupsAreSplitFromTheWorlds) {
  TITAN_SKIP_IN_REHEARSAL();
  const std::vector<comm::Connection> connections = {{"fsdp", {{0}}}, {"tp", {{0}}}, {"cp", {{0}}}};
  const auto opened =
      device_->open_groups(connections, {.store = c10::make_intrusive<c10d::HashStore>(), .rank = 0, .size = 1});
  ASSERT_TRUE(opened.has_value());
  ASSERT_EQ(opened->size(), connections.size());
  for (const auto& backend : *opened) {
    backend->setTimeout(std::chrono::seconds(60));
    const at::Tensor values = at::arange(6, on_device());
    std::vector<at::Tensor> summed{values.clone()};
    at::Tensor gathered = at::empty_like(values), input = values.clone();
    backend->allreduce(summed, {})->wait();
    backend->_allgather_base(gathered, input, {})->wait();
    EXPECT_TRUE(summed[0].equal(values));
    EXPECT_TRUE(gathered.equal(values));
    backend->barrier({})->wait();
  }
}

// The copies of a save, on a separate stream, run after the work that wrote the values and before the work that
// overwrites them, though the host waits for neither.
TEST_F(GpuDeviceTest, CopiesOverlapWithTraining) {
  TITAN_SKIP_IN_REHEARSAL();
  constexpr int64_t kSide = 4096;
  const auto copies = checkpoint::make_copy_stream(device_->torch_device());
  const at::Tensor ones = at::ones({kSide, kSide}, on_device());
  at::Tensor weight = at::zeros({kSide, kSide}, on_device());
  ASSERT_TRUE(copies->takes(weight));
  const at::Tensor buffer = copies->make_buffer(weight.sizes(), at::kFloat);
  EXPECT_TRUE(buffer.is_pinned());
  for (int round = 1; round <= 5; ++round) {
    weight.copy_(at::mm(ones, at::full({kSide, kSide}, round, on_device())));
    copies->follow();
    copies->copy(buffer, weight);
    copies->mark();
    at::mm(ones, ones);  // The next step's work.
    copies->block_current_stream();
    weight.fill_(-1);
    copies->wait();
    EXPECT_EQ(buffer.min().item<float>(), static_cast<float>(kSide * round));
    EXPECT_EQ(buffer.max().item<float>(), static_cast<float>(kSide * round));
  }
  EXPECT_EQ(weight.max().item<float>(), -1.0F);
}

// Groups may be empty, have one row or have all rows. The grouped kernel accepts some of the sizes and not others.
TEST_F(GpuDeviceTest, GroupedProductMatches) {
  at::manual_seed(3);
  const std::vector<int64_t> splits[] = {{5, 0, 1, 122}, {0, 0, 128, 0}, {32, 32, 32, 32}, {0, 0, 0, 0}};
  const std::pair<at::ScalarType, double> types[] = {{at::kDouble, 1e-13}, {at::kFloat, 1e-5}, {at::kBFloat16, 0.01}};
  for (const auto& rows : splits) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 96}, {20, 28}}) {
      for (const auto& [type, tolerance] : types) {
        int64_t total = 0;
        for (const int64_t count : rows) total += count;
        const at::Tensor x = at::randn({total, in}).to(type), weight = at::randn({4, out, in}).to(type),
                         bias = at::randn({4, out}).to(type), dy = at::randn({total, out}).to(type);
        const auto compute = [&, in = in, out = out](const at::TensorOptions& where) {
          nn::Parameter matrix{"w", {4, out, in}, {}, {}}, addend{"b", {4, out}, {}, {}};
          matrix.weight = weight.to(where).detach().requires_grad_();
          addend.weight = bias.to(where).detach().requires_grad_();
          const at::Tensor input = x.to(where).detach().requires_grad_();
          at::Tensor y = nn::grouped_product(input, matrix, &addend, 1, nn::group_rows(rows, input));
          std::vector<at::Tensor> all =
              torch::autograd::grad({y}, {input, matrix.weight, addend.weight}, {dy.to(where)});
          all.push_back(y.detach());
          return all;
        };
        const std::vector<at::Tensor> expected = compute(at::TensorOptions(at::kDouble));
        const std::vector<at::Tensor> got = compute(on_device(type));
        for (size_t i = 0; i < got.size(); ++i) {
          if (got[i].numel() == 0) continue;
          EXPECT_LE(relative_error(got[i], expected[i]), tolerance)
              << "result " << i << " in " << type << " of rows " << at::IntArrayRef(rows) << ", " << in << " to "
              << out;
        }
      }
    }
  }
}

// Compares the three implementations of the optimizer, on views into one flat shard as in the engine, and on odd sizes.
TEST_F(GpuDeviceTest, OptimizersMatch) {
  at::manual_seed(4);
  const at::Tensor start = at::randn({1000}), pulls = at::randn({3, 1000});
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const char* name : {"AdamW", "Adam"}) {
      for (const char* implementation : {"fused", "foreach", "for-loop"}) {
        const auto train = [&](const at::TensorOptions& where) {
          at::Tensor values = start.to(where.dtype(type), /*non_blocking=*/false, /*copy=*/true);
          at::Tensor gradients = at::zeros_like(values);
          std::vector<optim::Slot> slots;
          int64_t first = 0;
          for (const int64_t size : {int64_t{37}, int64_t{0}, int64_t{600}, int64_t{363}}) {
            slots.push_back({"slot", values.narrow(0, first, size), gradients.narrow(0, first, size)});
            first += size;
          }
          auto optimizer = optim::make_optimizer({.name = name, .implementation = implementation}, std::move(slots));
          for (int64_t step = 0; step < 3; ++step) {
            gradients.copy_(pulls[step]);
            const double divisor = step == 0 ? 1.0 : 3.3, skip = step == 1 ? 1.0 : 0.0;
            optimizer->step(1e-2, {at::scalar_tensor(divisor, where.dtype(at::kDouble)),
                                   at::scalar_tensor(skip, where.dtype(at::kFloat))});
          }
          EXPECT_EQ(optimizer->step_count().item<float>(), 2);
          return values;
        };
        EXPECT_LE(relative_error(train(on_device()), train(at::TensorOptions())), type == at::kFloat ? 1e-6 : 1e-13)
            << name << ", " << implementation << ", " << type;
      }
    }
  }
}

// With moments in bf16 and in codes, and with stochastic rounding, a device does what the host's operations do. Only
// last digits differ, which may move a number to the next code or bf16 number.
TEST_F(GpuDeviceTest, LowPrecisionStatesMatch) {
  at::manual_seed(14);
  const at::Tensor start = at::randn({40, 700}), pulls = at::randn({3, 40, 700});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* state_dtype : {"float32", "bfloat16", "8bit"}) {
      const auto train = [&](const at::TensorOptions& where) {
        const at::Tensor value = start.to(where.dtype(type), /*non_blocking=*/false, /*copy=*/true);
        const at::Tensor gradient = at::zeros_like(value);
        const auto optimizer =
            optim::make_optimizer({.state_dtype = state_dtype, .stochastic_rounding = type == at::kBFloat16, .seed = 3},
                                  {{"w", value, gradient, 0, {80, 700}, {40, 0}}});
        for (int64_t step = 0; step < 3; ++step) {
          gradient.copy_(pulls[step]);
          optimizer->step(1e-3, {at::scalar_tensor(1.5, where.dtype(at::kDouble)),
                                 at::scalar_tensor(step == 1 ? 1.0 : 0.0, where.dtype(at::kFloat))});
        }
        return value.cpu().to(at::kDouble);
      };
      const at::Tensor here = train(at::TensorOptions()), by_operations = train(on_device());
      EXPECT_LE((by_operations - here).abs().mean().item<double>(), type == at::kFloat ? 1e-7 : 1e-5) << state_dtype;
      const testing::WithDeviceKernels own;
      const at::Tensor there = train(on_device());
      EXPECT_LE((there - here).abs().max().item<double>(), type == at::kFloat ? 5e-5 : 0x1p-6) << state_dtype;
      EXPECT_LE((there - here).abs().mean().item<double>(), type == at::kFloat ? 1e-7 : 1e-5) << state_dtype;
    }
  }
}

// A late read returns the values at its start, whatever is written afterwards.
TEST_F(GpuDeviceTest, LateReadsReturnTheEarlierValues) {
  TITAN_SKIP_IN_REHEARSAL();
  at::Tensor figures = device::copy_async(at::arange(5, at::kDouble), on_device().device());
  device::AsyncRead read(figures);
  figures.fill_(-1);
  EXPECT_TRUE(read.wait().equal(at::arange(5, at::kDouble)));
  EXPECT_TRUE(read.wait().is_cpu());
}

// The norm needs more than one piece of a sum, and covers several tensors and types that are widened.
TEST_F(GpuDeviceTest, NormsMatch) {
  at::manual_seed(5);
  const at::Tensor large = at::randn({(int64_t{1} << 24) + 3}), small = at::randn({7, 5});
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double expected = large.to(type).to(at::kDouble).square().sum().item<double>() +
                            small.to(type).to(at::kDouble).square().sum().item<double>();
    const at::Tensor sum = optim::sum_of_squares({large.to(on_device(type)), small.to(on_device(type))});
    EXPECT_NEAR(sum.item<double>() / expected, 1, 1e-12) << type;
  }
}

// RoPE tables are computed on the device that uses them.
TEST_F(GpuDeviceTest, RopeTablesMatch) {
  for (const nn::RopePairs pairs : {nn::RopePairs::kInterleaved, nn::RopePairs::kRotateHalf}) {
    nn::RopeOptions options;
    options.head_dim = 64;
    options.max_seq_len = 512;
    options.pairs = pairs;
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-4}}) {
      const auto numbers = [](const at::Tensor& table) { return table.is_complex() ? at::view_as_real(table) : table; };
      const at::Tensor here = numbers(nn::rope_table(options, device_->torch_device(), type));
      const at::Tensor there = numbers(nn::rope_table(options, at::kCPU, type));
      EXPECT_LE((here.cpu() - there).abs().max().item<double>(), tolerance) << type;
    }
  }
}

}  // namespace
}  // namespace titan::runtime
