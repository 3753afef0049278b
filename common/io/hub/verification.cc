#include "common/io/hub/verification.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/digest/digest.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "nlohmann/json.hpp"

namespace titan::hub {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

absl::Status add_file(const host::Descriptor& file, digest::Digest& digest, const std::function<absl::Status()>& idle) {
  std::string block(kBlock, '\0');
  for (off_t at = 0;;) {
    TITAN_RETURN_IF_ERROR(idle());
    const ssize_t size = pread(file.get(), block.data(), block.size(), at);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno_status(errno, "read it back");
    if (size == 0) return absl::OkStatus();
    digest.add(block.data(), static_cast<size_t>(size));
    at += size;
  }
}

}  // namespace

absl::Status check_content(const host::Descriptor& file, const RemoteFile& remote,
                           const std::function<absl::Status()>& idle) {
  const bool large = !remote.sha256.empty();
  digest::Digest digest(large ? EVP_sha256() : EVP_sha1());
  if (!large) {  // Git hashes a header before the content; it ends with a zero byte.
    const std::string head = absl::StrCat("blob ", remote.size);
    digest.add(head.c_str(), head.size() + 1);
  }
  absl::Status read = add_file(file, digest, idle);
  if (!read.ok()) return annotate(read, text::printable_name(remote.name));
  const std::string found = digest.hex();
  if (found == remote.digest()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(text::printable_name(remote.name), " has another checksum than the hub's: ",
                                          large ? "sha256 " : "git blob ", found, " instead of ", remote.digest()));
}

namespace {

using nlohmann::json;

constexpr char kName[] = ".titan-assets.json";

int64_t changed_at(const struct stat& about) {
  return int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec;
}

}  // namespace

Inventory Inventory::load(const Folder& folder) {
  Inventory out;
  const auto text = folder.read(kName);
  if (!text.ok()) return out;
  const json found = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object()) return out;
  for (const auto& [name, entry] : found.items()) {
    if (!entry.is_object() || !entry.value("digest", json()).is_string() ||
        !entry.value("size", json()).is_number_integer() || !entry.value("changed", json()).is_number_integer())
      continue;
    out.entries_[name] = {entry["digest"].get<std::string>(), entry["size"].get<int64_t>(),
                          entry["changed"].get<int64_t>()};
  }
  return out;
}

absl::Status Inventory::save(const Folder& folder) const {
  json out = json::object();
  for (const auto& [name, entry] : entries_)
    out[name] = {{"digest", entry.digest}, {"size", entry.size}, {"changed", entry.changed}};
  return folder.write(kName, out.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

bool Inventory::has(const RemoteFile& remote, const struct stat& about) const {
  const auto found = entries_.find(remote.name);
  return found != entries_.end() && found->second.digest == remote.digest() && found->second.size == about.st_size &&
         found->second.changed == changed_at(about);
}

void Inventory::add(const RemoteFile& remote, const struct stat& about) {
  entries_[remote.name] = {remote.digest(), about.st_size, changed_at(about)};
}

}  // namespace titan::hub
