// Runs operations on an object store's files and fences. Each line of input is a JSON operation {"id", "op", ...}. Each
// operation runs on its own thread and prints {"id", "code", "message", ...} when it is done.

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_fence.h"
#include "common/io/s3/object_files.h"
#include "common/io/storage/crc32c.h"
#include "nlohmann/json.hpp"

namespace titan::s3 {
namespace {

using nlohmann::json;

std::string bytes_of(int64_t size, uint32_t seed) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (char& one : bytes) one = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
  return bytes;
}

class Driver {
 public:
  int run() {
    std::string line;
    while (std::getline(std::cin, line)) {
      threads_.emplace_back([this, ask = json::parse(line)] { answer(ask); });
    }
    for (std::thread& one : threads_) one.join();
    return 0;
  }

 private:
  // The operations of one attempt are serialized.
  struct Held {
    sync::Mutex busy;
    std::unique_ptr<ObjectFence> fence;
  };
  struct Actor {
    std::shared_ptr<S3Client> client;
    std::unique_ptr<ObjectFiles> files;
    std::map<std::string, Held> fences;  // Fences by name.
  };

  // Returns the client of an access key's id and bucket, and makes it on first use.
  absl::StatusOr<Actor*> actor(const json& ask) {
    const std::string who = ask.value("who", "tester"), bucket = ask.value("bucket", "titan");
    sync::Lock lock(mutex_);
    Actor& one = actors_[who + "@" + bucket];
    if (one.client != nullptr) return &one;
    http::Environment environment = http::process_environment();
    if (environment.contains("AWS_ACCESS_KEY_ID")) environment["AWS_ACCESS_KEY_ID"] = who;
    TITAN_ASSIGN_OR_RETURN(const S3Settings settings, settings_from(environment));
    http::RetryPolicy retry{.attempts = 4, .first_wait = absl::Milliseconds(1), .max_backoff = absl::Milliseconds(5)};
    TITAN_ASSIGN_OR_RETURN(one.client,
                           S3Client::open(
                               settings, bucket, [environment] { return credentials_from(environment); }, retry));
    const TransferSizes sizes{.part_bytes = int64_t{5} << 18, .block_bytes = int64_t{1} << 18};
    one.files = std::make_unique<ObjectFiles>(one.client, sizes);
    return &one;
  }

  void answer(const json& ask) {
    json out = {{"id", ask.at("id")}};
    const absl::Status status = perform(ask, out);
    out["code"] = absl::StatusCodeToString(status.code());
    out["message"] = std::string(status.message());
    out["fenced"] = storage::is_fenced(status);
    out["in_use"] = storage::is_in_use(status);
    sync::Lock lock(writing_);
    std::cout << out.dump() << std::endl;
  }

  absl::Status perform(const json& ask, json& out) {
    TITAN_ASSIGN_OR_RETURN(Actor * who, actor(ask));
    const std::string op = ask.at("op"), path = ask.value("path", "");
    if (op == "write") return write(*who->files, ask);
    if (op == "whole") return storage::atomic_write(*who->files, path, ask.at("text").get<std::string>());
    if (op == "remove") return who->files->remove(path);
    if (op == "exists") return out["there"] = who->files->exists(path), absl::OkStatus();
    if (op == "list") {
      TITAN_ASSIGN_OR_RETURN(out["names"], who->files->list(path));
      return absl::OkStatus();
    }
    if (op == "read") return read(*who->files, ask, out);
    return fence(*who, op, ask, out);
  }

  // Writes the bytes of a seed, a MiB at a time. `give_up`: bytes after which the write is abandoned, like a save that
  // fails.
  static absl::Status write(ObjectFiles& files, const json& ask) {
    const std::string bytes = bytes_of(ask.at("size"), ask.value("seed", 1U));
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::WritableFile> file, files.create(ask.at("path")));
    for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
      if (static_cast<int64_t>(at) >= ask.value("give_up", INT64_MAX)) return absl::CancelledError("given up");
      TITAN_RETURN_IF_ERROR(file->append(std::string_view(bytes).substr(at, 1 << 20)));
    }
    TITAN_RETURN_IF_ERROR(file->sync());
    return file->close();
  }

  // Reads in pieces of `piece` bytes and compares them with the bytes of the seed.
  static absl::Status read(ObjectFiles& files, const json& ask, json& out) {
    const std::string expected = bytes_of(ask.at("size"), ask.value("seed", 1U));
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::ReadableFile> file, files.open(ask.at("path")));
    const int64_t piece = ask.value("piece", file->size());
    std::string bytes(static_cast<size_t>(file->size()), '\0');
    for (int64_t at = 0; at < file->size(); at += piece) {
      TITAN_RETURN_IF_ERROR(file->read(at, std::min(piece, file->size() - at), bytes.data() + at));
    }
    out["same"] = bytes == expected;
    return absl::OkStatus();
  }

  absl::Status fence(Actor& who, const std::string& op, const json& ask, json& out) {
    Held* held = nullptr;
    {
      sync::Lock lock(mutex_);
      held = &who.fences[ask.at("fence")];
    }
    sync::Lock lock(held->busy);
    std::unique_ptr<ObjectFence>& fence = held->fence;
    if (fence == nullptr) fence = std::make_unique<ObjectFence>(who.client, ask.value("folder", "job"));
    if (op == "raise" || op == "take") {
      ObjectFence::Claim claim{
          .job_uid = ask.at("uid"), .attempt = ask.value("attempt", 1), .process = ask.value("process", "elsewhere")};
      ObjectFence::Taken taken;
      absl::Status status = op == "raise" ? fence->raise(claim, taken)
                                          : fence->take(claim, {.sleep = [](absl::Duration) {}, .say = {}}, taken);
      out["taken_from"] = taken.taken_from;
      for (const auto& [folder, last] : taken.committed) out["committed"][folder] = last.step;
      return status;
    }
    if (op == "publish") {
      bool unknown = false;
      absl::Status status = fence->publish({.key = ask.at("key"),
                                            .text = ask.at("text"),
                                            .remembered = ask.value("remembered", "x"),
                                            .step = ask.value("step", 1)},
                                           unknown);
      out["unknown"] = unknown;
      return status;
    }
    if (op == "retire") return fence->retire(ask.at("keys").get<std::vector<std::string>>());
    if (op == "beat") return fence->beat();
    if (op == "release") return fence->release();
    return fence->check();
  }

  sync::Mutex mutex_, writing_;
  std::map<std::string, Actor> actors_ TITAN_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace titan::s3

int main() { return titan::s3::Driver().run(); }
