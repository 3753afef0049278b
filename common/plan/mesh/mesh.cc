#include "common/plan/mesh/mesh.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/quantities.h"

namespace titan::mesh {
namespace {

struct Key {
  const char* key;
  int value;
};

std::string describe(const Degrees& degrees) {
  return absl::StrCat("pipeline_parallel_degree ", degrees.pp, " x data_parallel_replicate_degree ",
                      degrees.dp_replicate, " x data_parallel_shard_degree ", degrees.dp_shard,
                      " x context_parallel_degree ", degrees.cp, " x tensor_parallel_degree ", degrees.tp);
}

absl::Status check_positive(const Degrees& degrees) {
  const Key keys[] = {
      {"pipeline_parallel_degree", degrees.pp}, {"data_parallel_replicate_degree", degrees.dp_replicate},
      {"context_parallel_degree", degrees.cp},  {"tensor_parallel_degree", degrees.tp},
      {"expert_parallel_degree", degrees.ep},   {"expert_tensor_parallel_degree", degrees.etp}};
  for (const auto& [key, value] : keys) {
    if (value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("parallelism.", key, ": ", value, " is not a degree; use 1 or more"));
    }
  }
  if (degrees.dp_shard == 0 || degrees.dp_shard < -1) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.data_parallel_shard_degree: ", degrees.dp_shard,
                                                   " is not a degree; use 1 or more, or -1 for the ranks left over"));
  }
  return absl::OkStatus();
}

// Suggests world sizes near `world_size` that are multiples of `product`.
std::string fitting_worlds(int64_t product, int64_t world_size) {
  const int64_t below = world_size / product * product;
  return absl::StrCat("use ", below > 0 ? absl::StrCat(below, " or ") : "", counted(below + product, "rank"),
                      ", or other degrees");
}

std::string divisors(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= number && all.size() < 12; ++d) {
    if (number % d == 0) all.push_back(d);
  }
  return absl::StrJoin(all, ", ");
}

// Fills in dp_shard and checks that the degrees multiply to the world size.
absl::Status resolve(Degrees& degrees, int world_size) {
  int64_t others = 1;
  for (int degree : {degrees.pp, degrees.dp_replicate, degrees.cp, degrees.tp}) {
    others = std::min<int64_t>(others * degree, int64_t{1} << 32);  // Exceeds any world size and cannot overflow.
  }
  if (degrees.dp_shard == -1) {
    if (others > world_size || world_size % others != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parallelism: ", describe(degrees), ": the degrees but data_parallel_shard_degree multiply to ", others,
          ", which does not divide the job's ", counted(world_size, "rank"), "; ", fitting_worlds(others, world_size)));
    }
    degrees.dp_shard = static_cast<int>(world_size / others);
  }
  if (others * degrees.dp_shard != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism: ", describe(degrees), " multiply to ", others * degrees.dp_shard,
                     " but the job has ", counted(world_size, "rank"), "; ",
                     world_size % others == 0 ? std::string("set data_parallel_shard_degree = -1 to take what is left")
                                              : fitting_worlds(others * degrees.dp_shard, world_size)));
  }
  return absl::OkStatus();
}

absl::Status check_experts(const Degrees& degrees) {
  if (degrees.etp != 1 && degrees.etp != degrees.tp) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.expert_tensor_parallel_degree: ", degrees.etp,
                                                   " must be 1 or equal to tensor_parallel_degree (", degrees.tp, ")"));
  }
  if (degrees.ep == 1) return absl::OkStatus();
  const int64_t available = int64_t{degrees.dp_shard} * degrees.cp * degrees.tp;
  const int64_t wanted = int64_t{degrees.ep} * degrees.etp;
  if (available % wanted != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.expert_parallel_degree: ", degrees.ep, " x expert_tensor_parallel_degree ",
                     degrees.etp, " = ", wanted, " must divide data_parallel_shard_degree x context_parallel_degree x ",
                     "tensor_parallel_degree = ", available, "; possible: ", divisors(available / degrees.etp)));
  }
  return absl::OkStatus();
}

}  // namespace

const char* name(Axis axis) {
  switch (axis) {
    case Axis::kPipeline:
      return "pp";
    case Axis::kReplicate:
      return "dp_replicate";
    case Axis::kShard:
      return "dp_shard";
    case Axis::kContext:
      return "cp";
    case Axis::kTensor:
      return "tp";
    case Axis::kBatch:
      return "batch";
    case Axis::kLoss:
      return "loss";
    case Axis::kFsdp:
      return "fsdp";
    case Axis::kExpertFsdp:
      return "efsdp";
    case Axis::kExpert:
      return "ep";
    case Axis::kExpertTensor:
      return "etp";
    case Axis::kWorld:
      return "world";
    case Axis::kHolders:
      return "holders";
  }
  return "unknown";
}

absl::StatusOr<Mesh> Mesh::create(const Degrees& degrees, int world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.ranks: ", world_size, " is not a number of ranks; use 1 or more"));
  }
  Degrees resolved = degrees;
  if (absl::Status bad = check_positive(resolved); !bad.ok()) return bad;
  if (absl::Status bad = resolve(resolved, world_size); !bad.ok()) return bad;
  if (absl::Status bad = check_experts(resolved); !bad.ok()) return bad;
  return Mesh(resolved, world_size);
}

Mesh::Mesh(const Degrees& degrees, int world_size) : degrees_(degrees), world_size_(world_size) {
  const auto set = [this](Axis axis, int stride, int size) { extents_[static_cast<size_t>(axis)] = {stride, size}; };
  const int tp = degrees.tp, cp = degrees.cp, shard = degrees.dp_shard, replicate = degrees.dp_replicate;
  set(Axis::kTensor, 1, tp);
  set(Axis::kContext, tp, cp);
  set(Axis::kShard, tp * cp, shard);
  set(Axis::kReplicate, tp * cp * shard, replicate);
  set(Axis::kPipeline, tp * cp * shard * replicate, degrees.pp);
  set(Axis::kBatch, tp * cp, shard * replicate);
  set(Axis::kLoss, tp, cp * shard * replicate);
  set(Axis::kFsdp, tp, cp * shard);
  // Without expert parallelism the experts use the dense mesh, so etp is tp.
  const int etp = degrees.ep == 1 ? tp : degrees.etp;
  set(Axis::kExpertTensor, 1, etp);
  set(Axis::kExpert, etp, degrees.ep);
  set(Axis::kExpertFsdp, etp * degrees.ep, tp * cp * shard / (etp * degrees.ep));
  set(Axis::kWorld, 1, world_size);
  set(Axis::kHolders, 1, tp * cp * shard * replicate);
}

std::vector<int> Mesh::group(int rank, Axis axis) const {
  const Extent& along = extent(axis);
  const int first = rank - index(rank, axis) * along.stride;
  std::vector<int> ranks(along.size);
  for (int i = 0; i < along.size; ++i) ranks[i] = first + i * along.stride;
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups(Axis axis) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (index(rank, axis) == 0) all.push_back(group(rank, axis));
  }
  return all;
}

Coordinate Mesh::coordinate(int rank) const {
  return {.pp = index(rank, Axis::kPipeline),
          .dp_replicate = index(rank, Axis::kReplicate),
          .dp_shard = index(rank, Axis::kShard),
          .cp = index(rank, Axis::kContext),
          .tp = index(rank, Axis::kTensor)};
}

int Mesh::rank(const Coordinate& coordinate) const {
  return coordinate.pp * extent(Axis::kPipeline).stride + coordinate.dp_replicate * extent(Axis::kReplicate).stride +
         coordinate.dp_shard * extent(Axis::kShard).stride + coordinate.cp * extent(Axis::kContext).stride +
         coordinate.tp * extent(Axis::kTensor).stride;
}

std::vector<int> Mesh::group(int rank, const std::vector<Axis>& axes) const {
  std::vector<int> ranks = {rank};
  for (Axis axis : axes) {
    std::vector<int> wider;
    for (int member : ranks) {
      const std::vector<int> along = group(member, axis);
      wider.insert(wider.end(), along.begin(), along.end());
    }
    ranks = std::move(wider);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

namespace {

// Lists the degrees up to 64 that divide every given size. Every degree divides 0.
std::string divisors(std::initializer_list<int64_t> sizes) {
  std::vector<int64_t> fitting;
  for (int64_t degree = 1; degree <= 64; ++degree) {
    bool fits = true;
    for (int64_t size : sizes) fits = fits && size % degree == 0;
    if (fits) fitting.push_back(degree);
  }
  return absl::StrJoin(fitting, ", ");
}

absl::Status check_tensor(const Mesh& mesh, const Sizes& sizes) {
  const int tp = mesh.size(Axis::kTensor);
  const bool experts_cut = mesh.size(Axis::kExpertTensor) > 1;
  const struct {
    const char* what;
    int64_t size;
  } split[] = {{"attention heads", sizes.n_heads},
               {"key-value heads", sizes.n_kv_heads},
               {"vocabulary entries", sizes.vocab_size},
               {"feed-forward channels", sizes.ffn_hidden},
               {"channels of an expert", experts_cut ? sizes.expert_hidden : 0},
               {"channels of the shared experts", sizes.shared_hidden}};
  for (const auto& [what, size] : split) {
    if (size % tp == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.tensor_parallel_degree: ", tp, " does not divide the model's ", size, " ", what, " (possible: ",
        divisors({sizes.n_heads, sizes.n_kv_heads, sizes.vocab_size, sizes.ffn_hidden,
                  experts_cut ? sizes.expert_hidden : 0, sizes.shared_hidden}),
        ")"));
  }
  return absl::OkStatus();
}

absl::Status check_experts(const Mesh& mesh, const Sizes& sizes) {
  const int ep = mesh.size(Axis::kExpert), tp = mesh.size(Axis::kTensor);
  if (ep == 1) return absl::OkStatus();
  const bool knows_model = sizes.n_heads > 0;
  if (knows_model && sizes.num_experts == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallelism.expert_parallel_degree: ", ep, " but the model has no experts; use 1"));
  }
  if (sizes.num_experts % ep != 0) {
    return absl::InvalidArgumentError(absl::StrCat("parallelism.expert_parallel_degree: ", ep,
                                                   " does not divide the model's ", sizes.num_experts,
                                                   " experts (possible: ", divisors({sizes.num_experts}), ")"));
  }
  // With etp 1 each tensor rank routes its own tokens. Sequence parallelism has already split them; otherwise the
  // microbatch must divide evenly among the tensor ranks.
  const int64_t tokens = sizes.rows * (sizes.seq_len / mesh.size(Axis::kContext));
  if (mesh.size(Axis::kExpertTensor) < tp && !sizes.sequence_parallel && tokens % tp != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.expert_tensor_parallel_degree: with 1, the ", tp, " tensor ranks route equal shares of ", tokens,
        " tokens, which do not divide; use ", tp, ", or set parallelism.enable_sequence_parallel = true"));
  }
  return absl::OkStatus();
}

// Context parallelism cuts a row first; sequence parallelism cuts each part again.
absl::Status check_sequence(const Mesh& mesh, const Sizes& sizes) {
  const int64_t cp = mesh.size(Axis::kContext), tp = sizes.sequence_parallel ? mesh.size(Axis::kTensor) : 1;
  const int64_t chunks = cp > 1 ? sizes.chunks_per_context_rank : 1;
  const int64_t step = chunks * cp * tp;
  if (sizes.seq_len % step == 0) return absl::OkStatus();
  std::vector<std::string> factors;
  if (chunks > 1) factors.push_back(absl::StrCat(chunks));
  if (cp > 1) factors.push_back(absl::StrCat("context_parallel_degree ", cp));
  if (tp > 1) factors.push_back(absl::StrCat("tensor_parallel_degree ", tp));
  const int64_t below = sizes.seq_len / step * step;
  return absl::InvalidArgumentError(absl::StrCat(
      "training.seq_len: ", sizes.seq_len, " is not a multiple of ", step, " (", absl::StrJoin(factors, " x "),
      "); the nearest ", below > 0 ? absl::StrCat("below is ", below, ", above ") : "above is ", below + step));
}

}  // namespace

absl::Status check_divisible(const Mesh& mesh, const Sizes& sizes) {
  if (absl::Status bad = check_tensor(mesh, sizes); !bad.ok()) return bad;
  if (absl::Status bad = check_sequence(mesh, sizes); !bad.ok()) return bad;
  return check_experts(mesh, sizes);
}

}  // namespace titan::mesh
