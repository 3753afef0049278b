#include "worker/rank/tools/torch_export.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/pickle/archive_stream.h"
#include "worker/rank/checkpoint/formats/pickle/archive_writer.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;

constexpr char kPrefix[] = "model.", kFile[] = "model.pt", kEmbedding[] = "tok_embeddings.weight";

// A tensor of the file, with the storage data/NUMBER.
struct Saved {
  std::string name;
  const TensorRecord* record;
  at::ScalarType type;
  std::string storage;
};

std::vector<Saved> tensors_of(const Manifest& manifest, const TorchExport& options) {
  std::vector<Saved> tensors;
  for (const TensorRecord& record : manifest.tensors) {
    if (!absl::StartsWith(record.key, kPrefix)) continue;
    const std::string fqn = record.key.substr(sizeof kPrefix - 1);
    tensors.push_back({options.torchtune ? torchtune_name(fqn) : fqn, &record,
                       narrowed_type(record.key, record.dtype, options.dtype), absl::StrCat(tensors.size())});
  }
  return tensors;
}

absl::StatusOr<std::string> pickle_of(const std::vector<Saved>& tensors, bool tied_head) {
  pickle::Writer to(2);
  to.empty_dict().mark();
  for (const Saved& one : tensors) {
    TITAN_ASSIGN_OR_RETURN(const std::string type, dcp_type_name(one.type));
    pickle::tensor(to.text(one.name), type, one.record->shape, one.storage);
    if (tied_head && one.name == kEmbedding)  // torchtitan's state contains it a second time, with the same storage.
      pickle::tensor(to.text("output.weight"), type, one.record->shape, one.storage);
  }
  return to.set_items().finish();
}

absl::Status write_tensor(pickle::ArchiveStream& to, StepReader& step, const Saved& one, const TorchExport& options,
                          std::vector<std::string>& warnings) {
  const std::vector<int64_t>& shape = one.record->shape;
  const auto item = static_cast<int64_t>(c10::elementSize(one.type));
  TITAN_RETURN_IF_ERROR(to.begin("data/" + one.storage, whole(shape).elements() * item));
  const auto stored_item = static_cast<int64_t>(c10::elementSize(one.record->dtype));
  Narrowing narrowing;
  for (const Box& box : cut_along(whole(shape), 0, options.max_piece_bytes / stored_item)) {
    at::Tensor piece = at::empty(box.shape, at::TensorOptions().dtype(one.record->dtype));
    TITAN_RETURN_IF_ERROR(step.read(*one.record, box, piece));
    piece = narrowing.cast(piece, one.type);
    TITAN_RETURN_IF_ERROR(to.append({static_cast<const char*>(piece.const_data_ptr()), piece.nbytes()}));
  }
  return judge(one.record->key, narrowing, options.overflow, warnings);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> write_torch(storage::Files& files, StepReader& step,
                                                     const models::ModelSpec& spec, const TorchExport& options,
                                                     const std::string& folder,
                                                     const std::function<void(const std::string& file)>& progress) {
  std::vector<std::string> warnings;
  if (options.torchtune) TITAN_RETURN_IF_ERROR(check_torchtune_has(spec));
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const auto file, files.create(storage::join_path(folder, kFile)));
  pickle::ArchiveStream archive([&](std::string_view bytes) { return file->append(bytes); });
  const std::vector<Saved> tensors = tensors_of(step.manifest(), options);
  TITAN_ASSIGN_OR_RETURN(const std::string pickle, pickle_of(tensors, spec.tied_embeddings && !options.torchtune));
  TITAN_RETURN_IF_ERROR(archive.add("data.pkl", pickle));
  TITAN_RETURN_IF_ERROR(archive.add("byteorder", "little"));
  for (const Saved& one : tensors) {
    progress(absl::StrCat(kFile, ": ", one.name));
    TITAN_RETURN_IF_ERROR(write_tensor(archive, step, one, options, warnings));
  }
  TITAN_RETURN_IF_ERROR(archive.add("version", "3\n"));
  TITAN_RETURN_IF_ERROR(archive.finish());
  TITAN_RETURN_IF_ERROR(file->sync());
  TITAN_RETURN_IF_ERROR(file->close());
  return warnings;
}

namespace {

struct Name {
  const char *ours, *theirs;
};

// Names after "layers.N.".
constexpr Name kOfLayer[] = {
    {"attention.wq.weight", "attn.q_proj.weight"}, {"attention.wk.weight", "attn.k_proj.weight"},
    {"attention.wv.weight", "attn.v_proj.weight"}, {"attention.wo.weight", "attn.output_proj.weight"},
    {"feed_forward.w1.weight", "mlp.w1.weight"},   {"feed_forward.w2.weight", "mlp.w2.weight"},
    {"feed_forward.w3.weight", "mlp.w3.weight"},   {"attention_norm.weight", "sa_norm.scale"},
    {"ffn_norm.weight", "mlp_norm.scale"},
};

}  // namespace

bool are_torchtune_names(const std::set<std::string>& names) {
  return names.contains("tok_embeddings.weight") && names.contains("norm.scale");
}

absl::Status check_torchtune_has(const models::ModelSpec& spec) {
  if (spec.name == "llama3") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("torchtune has no ", spec.name, "; of Titan's families it has llama3"));
}

std::string torchtune_name(const std::string& fqn) {
  if (fqn == "norm.weight") return "norm.scale";
  if (!absl::StartsWith(fqn, "layers.")) return fqn;
  const size_t dot = fqn.find('.', sizeof "layers." - 1);
  for (const Name& name : kOfLayer) {
    if (dot != fqn.npos && fqn.compare(dot + 1, fqn.npos, name.ours) == 0) return fqn.substr(0, dot + 1) + name.theirs;
  }
  return fqn;
}

}  // namespace titan::tools
