#include "tokamak/checkpoint/formats/llmc.h"

#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr std::string_view kGpt2 = "gpt2";
constexpr std::string_view kLlama3 = "llama3";
constexpr int32_t kGpt2Magic = 20240326;
constexpr int32_t kLlama3Magic = 20240803;
constexpr int64_t kHeaderInts = 256;
constexpr int64_t kHeaderBytes = kHeaderInts * 4;

// One kind of weight, which is stored once, or once per layer one after another.
struct Weight {
  std::string_view name;
  Dims dims;
  bool per_layer = false;
  /// Whether it is stored as [out, in] where Hugging Face's Conv1D has [in, out].
  bool is_transposed = false;
};

std::vector<Weight> gpt2_weights(const LlmcModel& m) {
  const int64_t C = m.channels;
  return {
      {.name = "wte.weight", .dims = {m.padded_vocab_size, C}},
      {.name = "wpe.weight", .dims = {m.max_seq_len, C}},
      {.name = "ln_1.weight", .dims = {C}, .per_layer = true},
      {.name = "ln_1.bias", .dims = {C}, .per_layer = true},
      {.name = "attn.c_attn.weight", .dims = {3 * C, C}, .per_layer = true, .is_transposed = true},
      {.name = "attn.c_attn.bias", .dims = {3 * C}, .per_layer = true},
      {.name = "attn.c_proj.weight", .dims = {C, C}, .per_layer = true, .is_transposed = true},
      {.name = "attn.c_proj.bias", .dims = {C}, .per_layer = true},
      {.name = "ln_2.weight", .dims = {C}, .per_layer = true},
      {.name = "ln_2.bias", .dims = {C}, .per_layer = true},
      {.name = "mlp.c_fc.weight", .dims = {4 * C, C}, .per_layer = true, .is_transposed = true},
      {.name = "mlp.c_fc.bias", .dims = {4 * C}, .per_layer = true},
      {.name = "mlp.c_proj.weight", .dims = {C, 4 * C}, .per_layer = true, .is_transposed = true},
      {.name = "mlp.c_proj.bias", .dims = {C}, .per_layer = true},
      {.name = "ln_f.weight", .dims = {C}},
      {.name = "ln_f.bias", .dims = {C}}};
}

std::vector<Weight> llama3_weights(const LlmcModel& m) {
  const int64_t C = m.channels;
  const int64_t qkv = C + 2 * (C / m.num_heads) * m.num_kv_heads;
  return {{.name = "model.embed_tokens.weight", .dims = {m.vocab_size, C}},
          {.name = "input_layernorm.weight", .dims = {C}, .per_layer = true},
          {.name = "self_attn.qkv", .dims = {qkv, C}, .per_layer = true},
          {.name = "self_attn.o_proj.weight", .dims = {C, C}, .per_layer = true},
          {.name = "post_attention_layernorm.weight", .dims = {C}, .per_layer = true},
          {.name = "mlp.up_proj.weight", .dims = {m.ffn_hidden, C}, .per_layer = true},
          {.name = "mlp.gate_proj.weight", .dims = {m.ffn_hidden, C}, .per_layer = true},
          {.name = "mlp.down_proj.weight", .dims = {C, m.ffn_hidden}, .per_layer = true},
          {.name = "model.norm.weight", .dims = {C}},
          {.name = "lm_head.weight", .dims = {m.vocab_size, C}}};
}

std::vector<Weight> weights_of(const LlmcModel& model) {
  return model.model == kGpt2 ? gpt2_weights(model) : llama3_weights(model);
}

// Returns nothing if the size overflows.
std::optional<int64_t> data_bytes(const LlmcModel& model) {
  int64_t total = 0;
  for (const Weight& weight : weights_of(model)) {
    auto bytes = checked_bytes(model.dtype, weight.dims);
    if (!bytes) return std::nullopt;
    if (weight.per_layer && __builtin_mul_overflow(*bytes, model.num_layers, &*bytes)) {
      return std::nullopt;
    }
    if (__builtin_add_overflow(total, *bytes, &total)) return std::nullopt;
  }
  return total;
}

int64_t positive(std::span<const int32_t> header, size_t index, std::string_view what,
                 std::string_view name) {
  TOK_REQUIRE(header[index] > 0, "{}: llm.c header: {} is {}, wanted a positive number", name, what,
              header[index]);
  return header[index];
}

DType dtype_of(int32_t version, std::string_view name) {
  TOK_REQUIRE(version == 3 || version == 5,
              "{}: llm.c version {}; wanted 3 (float32) or 5 (bfloat16); write the file again with "
              "a current llm.c",
              name, version);
  return version == 3 ? DType::kF32 : DType::kBF16;
}

LlmcModel gpt2_model(std::span<const int32_t> header, std::string_view name) {
  LlmcModel m{.model = kGpt2, .dtype = dtype_of(header[1], name)};
  m.max_seq_len = positive(header, 2, "max_seq_len", name);
  m.vocab_size = positive(header, 3, "vocab_size", name);
  m.num_layers = positive(header, 4, "num_layers", name);
  m.num_heads = m.num_kv_heads = positive(header, 5, "num_heads", name);
  m.channels = positive(header, 6, "channels", name);
  m.padded_vocab_size = positive(header, 7, "padded_vocab_size", name);
  m.ffn_hidden = 4 * m.channels;
  TOK_REQUIRE(m.padded_vocab_size >= m.vocab_size,
              "{}: llm.c header: padded_vocab_size {} is less than vocab_size {}", name,
              m.padded_vocab_size, m.vocab_size);
  return m;
}

// Returns 0 where no hidden size fits the file's size.
int64_t ffn_hidden_of(LlmcModel model, int64_t bytes) {
  model.ffn_hidden = 0;
  const auto fixed = data_bytes(model);
  int64_t per_hidden = 0;
  const bool overflows = __builtin_mul_overflow(3 * size_of(model.dtype) * model.channels,
                                                model.num_layers, &per_hidden);
  if (!fixed || overflows || *fixed >= bytes) return 0;
  return (bytes - *fixed) / per_hidden;
}

LlmcModel llama3_model(std::span<const int32_t> header, int64_t bytes, std::string_view name) {
  LlmcModel m{.model = kLlama3, .dtype = dtype_of(header[1], name)};
  m.max_seq_len = positive(header, 2, "block_size", name);
  m.vocab_size = m.padded_vocab_size = positive(header, 3, "vocab_size", name);
  m.num_layers = positive(header, 4, "n_layer", name);
  m.num_heads = positive(header, 5, "n_head", name);
  m.num_kv_heads = positive(header, 6, "n_kv_head", name);
  m.channels = positive(header, 7, "n_embd", name);
  m.rope_theta = positive(header, 11, "rope_theta", name);
  m.use_scaled_rope = header[12] != 0;
  TOK_REQUIRE(m.channels % (2 * m.num_heads) == 0 && m.num_heads % m.num_kv_heads == 0,
              "{}: llm.c header: {} channels, {} heads and {} key-value heads do not divide", name,
              m.channels, m.num_heads, m.num_kv_heads);
  m.ffn_hidden = ffn_hidden_of(m, bytes);
  TOK_REQUIRE(m.ffn_hidden > 0, "{}: {} bytes of weights are too few for {} layers of {} channels",
              name, bytes, m.num_layers, m.channels);
  return m;
}

std::string prefixed(const LlmcModel& model, const Weight& weight, int64_t layer) {
  const bool is_gpt2 = model.model == kGpt2;
  if (!weight.per_layer) return (is_gpt2 ? "transformer." : "") + std::string(weight.name);
  return fmt::format("{}{}.{}", is_gpt2 ? "transformer.h." : "model.layers.", layer, weight.name);
}

void append(std::vector<TensorSource>& out, const LlmcModel& model, const Weight& weight,
            const TensorSource& tensor) {
  if (weight.name == "self_attn.qkv") {
    const std::string base = tensor.name.substr(0, tensor.name.size() - 3);
    const int64_t q = model.channels;
    const int64_t kv = model.channels / model.num_heads * model.num_kv_heads;
    out.push_back(renamed(neighbours_to_halves(rows_of(tensor, 0, q), model.num_heads),
                          base + "q_proj.weight"));
    out.push_back(renamed(neighbours_to_halves(rows_of(tensor, q, kv), model.num_kv_heads),
                          base + "k_proj.weight"));
    out.push_back(renamed(rows_of(tensor, q + kv, kv), base + "v_proj.weight"));
  } else if (weight.name == "wte.weight") {
    out.push_back(rows_of(tensor, 0, model.vocab_size));
  } else {
    out.push_back(weight.is_transposed ? transposed(tensor) : tensor);
  }
}

}  // namespace

bool is_llmc_model(const std::filesystem::path& path) {
  int32_t magic = 0;
  const std::string front = read_front(path, sizeof magic);
  if (front.size() < sizeof magic) return false;
  std::memcpy(&magic, front.data(), sizeof magic);
  return magic == kGpt2Magic || magic == kLlama3Magic;
}

LlmcModel parse_llmc_header(std::span<const std::byte> bytes, int64_t file_bytes,
                            std::string_view name) {
  TOK_REQUIRE(file_bytes >= kHeaderBytes && std::ssize(bytes) >= kHeaderBytes,
              "{}: {} bytes are too few for an llm.c model", name, file_bytes);
  std::array<int32_t, kHeaderInts> header{};
  std::memcpy(header.data(), bytes.data(), kHeaderBytes);
  TOK_REQUIRE(header[0] == kGpt2Magic || header[0] == kLlama3Magic,
              "{}: not an llm.c model: magic number {}, wanted {} (GPT-2) or {} (Llama 3)", name,
              header[0], kGpt2Magic, kLlama3Magic);
  const int64_t got = file_bytes - kHeaderBytes;
  const LlmcModel model =
      header[0] == kGpt2Magic ? gpt2_model(header, name) : llama3_model(header, got, name);
  const auto wanted = data_bytes(model);
  TOK_REQUIRE(wanted.has_value(), "{}: llm.c header: the size of the weights overflows", name);
  TOK_REQUIRE(*wanted == got, "{}: the llm.c header implies {} bytes of weights, {} are there",
              name, *wanted, got);
  return model;
}

LlmcFile::LlmcFile(const std::filesystem::path& path)
    : file_(path),
      model_(parse_llmc_header(file_.bytes(), std::ssize(file_.bytes()), path.string())) {}

std::vector<TensorSource> LlmcFile::sources() const {
  std::vector<TensorSource> out;
  auto rest = file_.bytes().subspan(kHeaderBytes);
  for (const Weight& weight : weights_of(model_)) {
    const int64_t count = weight.per_layer ? model_.num_layers : 1;
    const auto bytes = static_cast<size_t>(*checked_bytes(model_.dtype, weight.dims));
    for (int64_t layer = 0; layer < count; ++layer) {
      const TensorView view{.name = prefixed(model_, weight, layer),
                            .dtype = model_.dtype,
                            .dims = weight.dims,
                            .data = rest.first(bytes)};
      append(out, model_, weight, source_of(view));
      rest = rest.subspan(bytes);
    }
  }
  return out;
}

}  // namespace tokamak
