// titan-generate generates text or pictures from a checkpoint without a job.

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/base/version/version.h"
#include "common/io/s3/object_files.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/tools/generate/pictures.h"
#include "worker/rank/tools/generate/rank_model.h"
#include "worker/rank/tools/generate/text.h"
#include "worker/rank/tools/images/encode_images.h"

namespace {

using titan::generate::Generation;
using titan::tools::ModelSource;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string checkpoint, base, tokenizer, prompt_file, output = "text", dtype;
  titan::tools::ModelChoice model;
  std::vector<std::string> prompts, prompt_tokens;
  std::vector<int64_t> stop_tokens;
  bool ignore_eos = false, with_bos = false, without_bos = false, quiet = false;
  int64_t batch = 8, seq_len = 0;
  titan::generate::GeneratorOptions options;
  titan::tools::RankOptions ranks;
  titan::tools::PictureChoice picture;
};

struct Prompt {
  std::string text;
  std::vector<int64_t> tokens;
};

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("--checkpoint", a.checkpoint,
                 "A step-N folder, a folder of step-N folders (the newest), a folder of Hugging Face weights, or one "
                 "of torchtitan's")
      ->required();
  app.add_option("--base", a.base,
                 "The model of a step's adapters: a step-N or Hugging Face folder; default: the one that its job "
                 "used");
  app.add_option("--prompt", a.prompts, "Text to continue; may be given several times")->group("Prompts");
  app.add_option("--prompts", a.prompt_file,
                 "File of prompts: one per line, or JSON objects with a \"prompt\"; - reads them from standard input")
      ->group("Prompts");
  app.add_option("--prompt-tokens", a.prompt_tokens, "A prompt as token ids, \"1 15 7\"; needs no tokenizer")
      ->group("Prompts");
  app.add_option(
         "--tokenizer", a.tokenizer,
         "Folder of the tokenizer; from the checkpoint's folder or its job's model.hf_assets_path when not given")
      ->group("Prompts");
  app.add_flag("--bos", a.with_bos, "Begin each prompt with the tokenizer's BOS, whatever its tokenizer.json says")
      ->group("Prompts");
  app.add_flag("--no-bos", a.without_bos, "Never begin prompts with BOS")->group("Prompts");

  titan::generate::SamplingOptions& sampling = a.options.sampling;
  app.add_option("--max-new-tokens", a.options.max_new_tokens, "Number of new tokens per prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str()
      ->group("Sampling");
  app.add_option("--temperature", sampling.temperature, "Divides the logits; 0: always the likeliest token")
      ->capture_default_str()
      ->group("Sampling");
  app.add_option("--top-k", sampling.top_k, "Only the k likeliest tokens; 0: all")
      ->capture_default_str()
      ->group("Sampling");
  app.add_option("--top-p", sampling.top_p, "Only the fewest likeliest tokens whose probabilities add up to this")
      ->capture_default_str()
      ->group("Sampling");
  app.add_option("--seed", sampling.seed, "The same seed gives the same text, in any batch and on any number of ranks")
      ->capture_default_str()
      ->group("Sampling");
  app.add_option("--stop-token", a.stop_tokens,
                 "A token id that ends a text, in addition to the model's own; may be repeated")
      ->group("Sampling");
  app.add_flag("--ignore-eos", a.ignore_eos, "Continue after the model's end of text")->group("Sampling");

  app.add_option("-o,--output", a.output,
                 "text, as it is generated, or json: one line {prompt, text, tokens, stopped} per prompt")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_flag("-q,--quiet", a.quiet, "Print no line about speed on standard error");

  app.add_option("--model", a.model.name, "Model family, if neither the step nor config.json records it")
      ->group("Model");
  app.add_option("--flavor", a.model.flavor, "Size of the model")->group("Model");
  app.add_option(
         "--seq-len", a.seq_len,
         "Tokens per training sequence, if the checkpoint does not record it; decides whether positions are stretched")
      ->check(CLI::PositiveNumber)
      ->group("Model");
  app.add_option("--library", a.model.library, "Library that has the model, as experimental.custom_import of a job")
      ->group("Model");

  app.add_option("--device", a.ranks.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group("Machine");
  app.add_option("--dtype", a.dtype,
                 "float32, bfloat16 or float64; float32 on a CPU and bfloat16 on a GPU when not given")
      ->check(CLI::IsMember({"float32", "bfloat16", "float64"}))
      ->group("Machine");
  app.add_option("--tensor-parallel", a.ranks.tensor_ranks, "Ranks, threads of this process, that share each matrix")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group("Machine");
  app.add_option("--threads", a.ranks.threads, "CPU threads of all ranks; 0: one per core")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Machine");
  app.add_option("--batch", a.batch, "Prompts per batch")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group("Machine");
}

void add_picture_options(CLI::App& app, Arguments& a) {
  titan::tools::PictureChoice& picture = a.picture;
  const char* const group = "Pictures";
  app.add_option(
         "--image", picture.image,
         "PNG file for the picture of a model of images (flux); several prompts make NAME-000.png and so on, and "
         "a folder gets image_prompt0.png; default: the folder of the job's [inference]")
      ->group(group);
  app.add_option("--steps", picture.steps, "Steps from noise to picture; default: the job's validation.denoising_steps")
      ->check(CLI::Range(1, 100000))
      ->group(group);
  app.add_option("--guidance", picture.guidance,
                 "Strength of the guidance by the prompt; 0: none; default: the job's, or 3.5 for FLUX.1-dev")
      ->check(CLI::Range(0.0, 1000.0))
      ->group(group);
  app.add_option("--width", picture.width, "Pixels; default: the job's inference.img_size, or 1024")->group(group);
  app.add_option("--height", picture.height, "Pixels")->group(group);
  app.add_option("--t5", picture.t5, "Folder of the T5 encoder; default: the job's or the pipeline's")->group(group);
  app.add_option("--clip", picture.clip, "Folder of the CLIP text encoder")->group(group);
  app.add_option("--autoencoder", picture.autoencoder, "Folder or file of the autoencoder")->group(group);
}

at::ScalarType type_of(const Arguments& a) {
  if (a.dtype.empty()) return a.ranks.device == "cuda" ? at::kBFloat16 : at::kFloat;
  return a.dtype == "bfloat16" ? at::kBFloat16 : a.dtype == "float64" ? at::kDouble : at::kFloat;
}

// Returns the tokens before a prompt: those of the tokenizer's files, unless a flag overrides them.
std::vector<int32_t> prefix_of(const Arguments& a, const titan::data::Tokenizer& tokenizer) {
  if (a.without_bos) return {};
  if (!a.with_bos) return tokenizer.prefix();
  const std::optional<int32_t> bos = tokenizer.bos_id();
  return bos ? std::vector<int32_t>{*bos} : std::vector<int32_t>{};
}

absl::StatusOr<std::vector<std::string>> texts_of(const Arguments& a) {
  std::vector<std::string> texts = a.prompts;
  if (a.prompt_file.empty()) return texts;
  std::ifstream file;
  if (a.prompt_file != "-") {
    file.open(a.prompt_file);
    if (!file) return absl::NotFoundError(absl::StrCat("--prompts ", a.prompt_file, ": cannot be read"));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> more,
                         titan::tools::read_prompts(a.prompt_file == "-" ? std::cin : file, a.prompt_file));
  texts.insert(texts.end(), more.begin(), more.end());
  return texts;
}

absl::StatusOr<std::vector<int64_t>> ids_of(const std::string& words) {
  std::vector<int64_t> ids;
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(word, &id) || id < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-tokens \"", words, "\": \"", word, "\" is not a token id"));
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::vector<Prompt>> read_all(const Arguments& a, titan::data::Tokenizer* tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts, texts_of(a));
  std::vector<Prompt> prompts;
  if (!texts.empty() && tokenizer == nullptr)
    return absl::InvalidArgumentError("the model's tokenizer is unknown: give its folder with --tokenizer");
  for (const std::string& text : texts) {
    std::vector<int32_t> ids;
    TITAN_RETURN_IF_ERROR(titan::annotate(tokenizer->encode(text, ids), "prompt"));
    const std::vector<int32_t> before = prefix_of(a, *tokenizer);
    Prompt prompt{text, {before.begin(), before.end()}};
    prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
    if (prompt.tokens.empty())
      return absl::InvalidArgumentError("a prompt is empty, and the tokenizer adds no token before it: try --bos");
    prompts.push_back(std::move(prompt));
  }
  for (const std::string& words : a.prompt_tokens) {
    TITAN_ASSIGN_OR_RETURN(std::vector<int64_t> ids, ids_of(words));
    if (ids.empty()) return absl::InvalidArgumentError("--prompt-tokens \"\": give at least one token id");
    std::string text;
    if (tokenizer != nullptr) text = tokenizer->decode({ids.begin(), ids.end()});
    prompts.push_back({std::move(text), std::move(ids)});
  }
  if (prompts.empty()) return absl::InvalidArgumentError("no prompt: give --prompt or --prompts");
  return prompts;
}

// Prints results: token by token for a single prompt, otherwise each prompt's text when its batch is done.
class Printer {
 public:
  Printer(const Arguments& a, const titan::data::Tokenizer* tokenizer, size_t prompts)
      : json_(a.output == "json"), tokenizer_(tokenizer), prompts_(prompts) {
    if (!json_ && prompts_ == 1 && tokenizer_ != nullptr) growing_.emplace(*tokenizer_);
  }

  void token(int64_t id) {
    if (growing_) std::cout << growing_->add(id) << std::flush;
  }
  void whole(size_t number, const Prompt& prompt, const Generation& made) {
    if (growing_) {
      std::cout << growing_->rest() << std::endl;
    } else if (json_) {
      std::cout << nlohmann::json{{"prompt", prompt.text},
                                  {"text", text_of(made)},
                                  {"tokens", made.tokens},
                                  {"stopped", made.stopped}}
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << std::endl;
    } else {
      if (prompts_ > 1) std::cout << "--- " << number + 1 << " of " << prompts_ << ": " << prompt.text << "\n";
      std::cout << text_of(made) << std::endl;
    }
  }

 private:
  std::string text_of(const Generation& made) const {
    if (tokenizer_ == nullptr) return json_ ? "" : absl::StrJoin(made.tokens, " ");
    titan::tools::TextStreamer text(*tokenizer_);
    std::string all;
    for (const int64_t token : made.tokens) all += text.add(token);
    return all + text.rest();
  }

  const bool json_;
  const titan::data::Tokenizer* tokenizer_;
  const size_t prompts_;
  std::optional<titan::tools::TextStreamer> growing_;
};

struct Speed {
  int64_t read = 0, made = 0;
  double seconds = 0;
};

absl::Status check_tokens(const std::vector<Prompt>& prompts, const ModelSource& source) {
  for (const Prompt& prompt : prompts) {
    for (const int64_t token : prompt.tokens) {
      if (token < source.spec.vocab_size) continue;
      return absl::InvalidArgumentError(absl::StrCat("token ", token,
                                                     " of a prompt is beyond the model's vocabulary of ",
                                                     source.spec.vocab_size, ": is the tokenizer another model's?"));
    }
  }
  return absl::OkStatus();
}

absl::Status not_finite(size_t prompt, size_t tokens) {
  return absl::OutOfRangeError(
      absl::StrCat("prompt ", prompt + 1, ": the model's logits after ", tokens,
                   " tokens are not finite (NaN or infinite), so no token can be chosen; do the "
                   "weights hold such numbers, or do they overflow in --dtype?"));
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
}

// Generates pictures, and prints the file of each.
absl::Status run_pictures(Arguments& a, titan::storage::Files& files, const ModelSource& source) {
  print_warnings(source.warnings);
  if (!a.prompt_tokens.empty()) return absl::InvalidArgumentError("--prompt-tokens: a model of images needs texts");
  a.picture.seed = a.options.sampling.seed;
  TITAN_ASSIGN_OR_RETURN(const titan::tools::PicturePlan plan, titan::tools::plan_pictures(files, source, a.picture));
  if (a.prompts.empty() && a.prompt_file.empty()) {
    if (!std::filesystem::exists(plan.prompts_path))
      return absl::InvalidArgumentError(
          "no prompt: give --prompt or --prompts; the job's inference.prompts_path names no file here");
    a.prompt_file = plan.prompts_path;
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> prompts, texts_of(a));
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(a.prompt_file, ": has no prompt"));
  a.ranks.dtype = type_of(a);
  const auto began = Clock::now();
  TITAN_RETURN_IF_ERROR(
      titan::tools::make_pictures(files, source, plan, a.ranks, prompts, [&](size_t prompt, const std::string& file) {
        if (a.output == "json") {
          std::cout << nlohmann::json{{"prompt", prompts[prompt]}, {"image", file}}.dump(
                           -1, ' ', false, nlohmann::json::error_handler_t::replace)
                    << std::endl;
        } else {
          std::cout << file << ": " << prompts[prompt] << std::endl;
        }
      }));
  if (!a.quiet) {
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    std::cerr << absl::StrFormat("%s of %d x %d pixels in %.2f s\n", titan::counted(prompts.size(), "picture"),
                                 plan.options.width, plan.options.height, seconds);
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("standard output cannot be written");
}

absl::Status run(Arguments& a) {
  TITAN_RETURN_IF_ERROR(titan::generate::check(a.options.sampling));
  titan::storage::Files& files = titan::s3::all_files();
  TITAN_ASSIGN_OR_RETURN(ModelSource source, titan::tools::open_source(files, a.checkpoint, a.model, a.base));
  if (source.spec.flux) return run_pictures(a, files, source);
  if (!a.picture.image.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--image: ", a.checkpoint, " is ", source.spec.name, ", a language model, which makes texts"));
  }
  if (source.spec.reads_images()) {
    return absl::UnimplementedError(
        absl::StrCat(a.checkpoint, " has a vision tower (", source.spec.name, "): not supported yet"));
  }
  if (a.seq_len > 0) source.seq_len = a.seq_len;
  const std::string folder = a.tokenizer.empty() ? source.tokenizer : a.tokenizer;
  if (!folder.empty()) TITAN_RETURN_IF_ERROR(titan::tools::take_generation_config(files, folder, source));
  print_warnings(source.warnings);
  std::unique_ptr<titan::data::Tokenizer> tokenizer;
  if (!folder.empty()) {
    TITAN_ASSIGN_OR_RETURN(tokenizer, titan::data::Tokenizer::load(folder));
    print_warnings(titan::tokenizer_files::not_applied(folder));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, read_all(a, tokenizer.get()));
  TITAN_RETURN_IF_ERROR(check_tokens(prompts, source));
  if (!a.ignore_eos) {
    a.options.stop_tokens = source.stop_tokens;
    if (tokenizer && tokenizer->eos_id()) a.options.stop_tokens.push_back(*tokenizer->eos_id());
  }
  a.options.stop_tokens.insert(a.options.stop_tokens.end(), a.stop_tokens.begin(), a.stop_tokens.end());
  for (const Prompt& prompt : prompts) {
    a.ranks.longest_row =
        std::max(a.ranks.longest_row, static_cast<int64_t>(prompt.tokens.size()) + a.options.max_new_tokens);
  }
  if (a.ranks.longest_row > source.spec.max_seq_len) {
    std::cerr << "warning: texts have up to " << a.ranks.longest_row << " tokens; the model was made for "
              << source.spec.max_seq_len << "\n";
  }
  a.ranks.dtype = type_of(a);
  Printer printer(a, tokenizer.get(), prompts.size());
  Speed speed;
  absl::Status broken;  // Error of the first prompt whose logits are not finite.
  TITAN_RETURN_IF_ERROR(titan::tools::run_ranks(
      a.ranks, [&](titan::device::Device& device, const titan::comm::DeviceMesh& mesh) -> absl::Status {
        TITAN_ASSIGN_OR_RETURN(const auto model, titan::tools::RankModel::load(files, source, a.ranks, device, mesh));
        const bool leads = mesh.rank() == 0;
        const auto began = Clock::now();
        for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(a.batch)) {
          titan::generate::GeneratorOptions options = a.options;
          options.first_prompt = static_cast<int64_t>(first);
          if (leads) options.on_token = [&printer](size_t, int64_t token) { printer.token(token); };
          std::vector<std::vector<int64_t>> batch;
          for (size_t i = first; i < prompts.size() && i < first + static_cast<size_t>(a.batch); ++i)
            batch.push_back(prompts[i].tokens);
          const std::vector<Generation> made = model->generate(batch, options);
          for (size_t i = 0; leads && i < made.size(); ++i) {
            if (made[i].not_finite) {
              broken.Update(not_finite(first + i, batch[i].size() + made[i].tokens.size()));
              continue;
            }
            printer.whole(first + i, prompts[first + i], made[i]);
            speed.read += static_cast<int64_t>(batch[i].size());
            speed.made += static_cast<int64_t>(made[i].tokens.size());
          }
        }
        if (leads) speed.seconds = std::chrono::duration<double>(Clock::now() - began).count();
        return absl::OkStatus();
      }));
  TITAN_RETURN_IF_ERROR(broken);
  if (!a.quiet) {
    std::cerr << absl::StrFormat("%s of %s read and %d made in %.2f s: %.1f tokens/s\n",
                                 titan::counted(speed.read, "token"), titan::counted(prompts.size(), "prompt"),
                                 speed.made, speed.seconds, static_cast<double>(speed.made) / speed.seconds);
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("standard output cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  // titan-data, which does not link LibTorch, starts this program for its command.
  if (argc > 1 && std::string_view(argv[1]) == "encode-images")
    return titan::tools::encode_images_main(argc - 1, argv + 1);
  CLI::App app{
      "Continues texts, or makes pictures of prompts, with a model from any of its checkpoints. No job needs to "
      "run.\n\n"
      "  titan-generate --checkpoint outputs/checkpoint --prompt \"Once upon a time\"\n"
      "  titan-generate --checkpoint assets/Llama-3.2-1B --prompts questions.txt --temperature 0.7 --top-p 0.9 -o "
      "json\n"
      "  titan-generate --checkpoint outputs/flux/checkpoint --prompt \"a red circle\" --image circle.png\n",
      "titan-generate"};
  app.set_version_flag("--version", titan::version_text("titan-generate", {argv, argv + argc}), titan::kVersionHelp);
  Arguments arguments;
  add_options(app, arguments);
  add_picture_options(app, arguments);
  const CLI::Option* batch = app.get_option("--batch");
  try {
    app.parse(argc, argv);
    if (arguments.with_bos && arguments.without_bos) throw CLI::ValidationError("--bos", "not with --no-bos");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (batch->count() > 0) arguments.picture.rows = arguments.batch;
  const absl::Status status = run(arguments);
  if (status.ok()) return 0;
  std::cerr << "titan-generate: " << std::string(status.message()) << "\n";
  return absl::IsInvalidArgument(status) ? 2 : absl::IsNotFound(status) ? 3 : 1;
}
