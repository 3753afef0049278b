#pragma once

#include <elfutils/libdwfl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/node/stacks/capture.h"
#include "worker/node/stacks/elf_file.h"

namespace titan::stacks {

struct Frame {
  ElfFile* file = nullptr;  // Null: the code is not in a file.
  uint64_t address = 0;     // Relative to the file.
  bool is_return = false;   // A return address; the call is the instruction before it.

  uint64_t call() const { return is_return ? address - 1 : address; }
  bool operator==(const Frame&) const = default;
};

struct Stack {
  std::vector<Frame> frames;  // The innermost first.
  bool more = false;          // There are more frames than requested.
};

// Unwinds captured stacks of one process with the exception tables of its files, and with frame pointers where these
// are missing. Uses only mapped files, neither debug files nor a debuginfod server.
class Unwinder {
 public:
  // `pid`: the process, or any live thread of it.
  Unwinder(pid_t pid, ElfFiles& files);
  ~Unwinder();
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;

  // Returns why no stack can be unwound; empty if nothing prevents it.
  const std::string& problem() const { return problem_; }
  Stack follow(const Capture& capture, size_t max_frames);

  struct Module;

 private:
  static bool get_thread(Dwfl* dwfl, pid_t tid, void* self, void** thread);
  static pid_t next_thread(Dwfl* dwfl, void* self, void** thread);
  static bool read_memory(Dwfl* dwfl, Dwarf_Addr address, Dwarf_Word* word, void* self);
  static bool set_registers(Dwfl_Thread* thread, void* self);
  static int take_frame(Dwfl_Frame* frame, void* self);
  void name_modules(const std::vector<Mapping>& mappings, ElfFiles& files);
  Frame frame_at(uint64_t program_counter) const;

  const pid_t pid_;
  Dwfl* dwfl_ = nullptr;
  std::vector<std::unique_ptr<Module>> modules_;
  std::string problem_;
  // State of follow().
  const Capture* capture_ = nullptr;
  Stack* stack_ = nullptr;
  size_t max_frames_ = 0;
};

}  // namespace titan::stacks
